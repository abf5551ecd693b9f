"""A row of a file or a dataset -> a document: its text, its title and what it is called."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any, NamedTuple

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.readers import INVISIBLE, CorpusCounts, type_name

OTHER_COLUMN = "choose another column or convert it"


class Document(NamedTuple):
    """A document as its file has it; `document_id` names the row where the file gives no id."""

    text: str
    title: str | None
    document_id: str


class Columns(NamedTuple):
    """The columns to read. Those in `optional` may be absent and may hold anything."""

    text: str
    title: str | None = None
    ids: tuple[str, ...] = ()
    optional: frozenset[str] = frozenset()

    @classmethod
    def with_automatic(cls, text: str, title: str | None, document_id: str | None) -> Columns:
        """Title and id are looked for under their usual names unless one is given."""
        named = {text, title, document_id}
        titles = [name for name in ("title",) if name not in named] if title is None else []
        ids = [name for name in ("_id", "id") if name not in named] if document_id is None else []
        return cls(
            text,
            titles[0] if titles else title,
            tuple(ids) if document_id is None else (document_id,),
            frozenset(titles + ids),
        )

    @property
    def names(self) -> list[str]:
        return [self.text, *([] if self.title is None else [self.title]), *self.ids]

    def misfit(self, values: Sequence[Any]) -> str | None:
        """What is wrong with a row (values in the order of `names`) that has no text where it is needed."""
        for name, value in zip((self.text, self.title), values, strict=False):
            if name is None or name in self.optional or isinstance(value, str):
                continue
            if value is not None and value == value:  # NaN is how pandas writes a missing text
                return f"column '{name}' holds {type_name(value)} where text is needed"
        return None

    def document(self, values: Sequence[Any], place: str, counts: CorpusCounts) -> Document | None:
        """The document of a row, called `place` if it has no id; None, counted, for a row that has no text."""
        text, title = values[0], None if self.title is None else values[1]
        if not isinstance(text, str):
            counts.null += 1
            return None
        if not text.strip(INVISIBLE):
            counts.blank += 1
            return None
        ids = values[len(values) - len(self.ids) :]
        return Document(text, title if _is_visible(title) else None, next(filter(None, map(_as_id, ids)), place))


def _is_visible(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip(INVISIBLE))


def _as_id(value: Any) -> str | None:
    if isinstance(value, str):
        return value if _is_visible(value) else None
    is_number = isinstance(value, Number) and not isinstance(value, bool) and value == value
    return str(value) if is_number else None


def with_title(document: Document) -> str:
    """The title, if the text does not begin with it, and the text."""
    if document.title is None or document.text.startswith(document.title):
        return document.text
    return f"{document.title} {document.text}"


def require_documents(found: Any, sources: Sequence[Any], counts: CorpusCounts) -> None:
    """Raises an `InputError` that names the sources and what was dropped if nothing was found."""
    if not found:
        names = ", ".join(str(source) for source in sources[:3])
        more = f" and {len(sources) - 3} more" if len(sources) > 3 else ""
        dropped = ", ".join(
            f"{count} {reason}"
            for reason, count in {"blank": counts.blank, "null": counts.null, **counts.dropped}.items()
        )
        if counts.bad:
            dropped += f", {counts.bad} bad: {counts.where_bad()}"
        raise InputError(f"{names}{more}: 0 usable passages ({dropped}); give a corpus that has text")


def text_features():
    from datasets import Features, Value

    return Features({"text": Value("string")})
