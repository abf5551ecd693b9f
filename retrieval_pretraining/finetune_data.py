"""What fine-tuning learns from: a query, a text that answers it, and texts that do not, where there are any.

    data = load_training_data({"train_file": ["pairs.jsonl", "data/mine"]})
    data.pairs[0]   # {"query": ..., "positive": ..., "negatives": [...]}

A row is told by its columns (`LAYOUTS`): this project's pairs, sentence-transformers' triplets, FlagEmbedding's lists,
or the columns that the user names. A folder in BEIR layout gives its judged queries: grades above 0 are positives, the
others negatives, and its documents are where further negatives are looked for.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from retrieval_pretraining.corpus import iterate_documents
from retrieval_pretraining.corpus_cache import CACHE_FOLDER, cache_key, generated_dataset, write_atomically
from retrieval_pretraining.corpus_counts import CorpusCounts, plural
from retrieval_pretraining.documents import with_title
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.hub_text import open_hub_dataset
from retrieval_pretraining.readers import INVISIBLE, READERS, SourceFile, type_name
from retrieval_pretraining.remote_files import AnyFile, file_state, is_remote
from retrieval_pretraining.retrieval_data import RetrievalData, load_retrieval_data
from retrieval_pretraining.source_files import resolve_files

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

_READING = ("encoding", "encoding_errors", "on_bad_line")
_ROWS_LOOKED_AT = 100
_MOST_NUMBERED = 32  # negative_1 ... negative_32

ADVICE = (
    "name those of the query and of the text that answers it with --query_column_name and --positive_column_name, or "
    "mine pairs from documents first (mine_pairs.py)"
)


class Layout(NamedTuple):
    """Names of columns. A positive or a negative may be a text or a list of texts; negatives may be absent, and may be
    several columns: `negative` stands for `negative_1`, `negative_2` ... as well."""

    query: str
    positive: str
    negatives: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        numbered = [f"{name}_{number}" for name in self.negatives for number in range(1, _MOST_NUMBERED + 1)]
        return [self.query, self.positive, *self.negatives, *numbered]


# The first one whose query and positive a file has.
LAYOUTS = (
    Layout("text", "text_pair", ("negatives", "negative")),  # this project
    Layout("anchor", "positive", ("negative", "negatives")),  # sentence-transformers
    Layout("query", "pos", ("neg",)),  # FlagEmbedding
    Layout("query", "positive", ("negative", "negatives")),
    Layout("question", "answer", ("negative", "negatives")),
)


@dataclass
class TrainingData:
    """`pairs` has the columns query, positive and negatives (a list, perhaps empty); `documents` are those of the
    retrieval folders among the sources, `has_negatives` says whether a pair has any."""

    pairs: Dataset
    documents: list[str] = field(default_factory=list)
    has_negatives: bool = False


def load_training_data(
    source: dict[str, Any], *, layout: Layout | None = None, say: Callable[[str], None] = print
) -> TrainingData:
    """The pairs of `train_file` (files, globs, folders, also in BEIR layout) or of `dataset_name` on the Hub.

    `source`: these, `split` (of the Hub's dataset or the qrels of a folder), `max_samples`, `cache_dir` and how files
    are read (`encoding`, `encoding_errors`, `on_bad_line`). `layout` are columns that the user named.

    Raises:
        InputError: a file cannot be read, has no such columns, a row holds something else than text, or nothing is
            left.
    """
    import datasets

    text = datasets.Value("string")
    features = datasets.Features({"query": text, "positive": text, "negatives": datasets.Sequence(text)})
    documents: list[str] = []
    if source.get("dataset_name") is not None:
        state, rows, said = _hub_rows(source, layout)
    else:
        folders, others = _retrieval_folders(source["train_file"])
        judged = [load_retrieval_data(folder, split=source.get("split", "train")) for folder in folders]
        files = resolve_files(others) if others else []
        documents = [text for data in judged for text in data.corpus_texts]
        options = {name: source[name] for name in _READING if name in source}
        counts = CorpusCounts()
        parts = [_judged_rows(data) for data in judged]
        layouts = [layout] if layout is not None else LAYOUTS
        parts += [_file_rows(file, _layout_of_file(file, layouts, options), options, counts) for file in files]
        rows = itertools.chain.from_iterable(parts)
        state = [[_folder_state(folder, source) for folder in folders], [file_state(file) for file in files], options]
        said = ", ".join([f"judged in {data.name}" for data in judged] + [plural(len(files), "file")] * bool(files))

    key = cache_key(state, {"layout": layout, "max_samples": source.get("max_samples"), "kind": "finetune"})
    root = Path(source.get("cache_dir") or datasets.config.HF_DATASETS_CACHE)
    dropped_file = root / CACHE_FOLDER / f"{key}.json"

    def generate() -> Iterator[dict[str, Any]]:
        dropped: Counter = Counter()
        kept = itertools.islice((pair for row in rows for pair in _pairs(row, dropped)), source.get("max_samples"))
        first = next(kept, None)
        if first is None:
            names = source.get("dataset_name") or ", ".join(map(str, source["train_file"]))
            raise InputError(f"{names}: 0 usable pairs; every row needs a query and a text that answers it")
        yield first
        yield from kept
        write_atomically(dropped_file, json.dumps(dropped))

    pairs = generated_dataset(generate, features, key, root)
    negatives = sum(len(row) for batch in pairs.select_columns("negatives").iter(1000) for row in batch["negatives"])
    say(f"pairs: {len(pairs):,} ({said})" + (f", {negatives / len(pairs):.1f} negatives each" if negatives else ""))
    dropped = json.loads(dropped_file.read_text(encoding="utf-8")) if dropped_file.is_file() else {}
    if dropped:
        say("dropped: " + ", ".join(f"{plural(count, 'pair')} {reason}" for reason, count in dropped.items()))
    return TrainingData(pairs, documents, negatives > 0)


def load_documents_to_mine(corpus_file: Sequence[str], options: dict[str, Any]) -> list[str]:
    """The texts of `--corpus_file`, title included, in which negatives are looked for."""
    return [with_title(document) for document in iterate_documents(train_file=corpus_file, **options)]


# --- Rows: a query, its positives, its negatives ------------------------------------------------------------------


class _Row(NamedTuple):
    query: str
    positives: list[str]
    negatives: list[str]


def _judged_rows(data: RetrievalData) -> Iterator[_Row]:
    texts = dict(zip(data.corpus_ids, data.corpus_texts, strict=True))
    for query_id, query in zip(data.query_ids, data.query_texts, strict=True):
        grades: dict[str, int] = {}
        for document, grade in data.qrels[query_id].items():
            if document in texts:  # the same text may stand in the corpus twice
                grades[texts[document]] = max(grade, grades.get(texts[document], grade))
        positives = [text for text, grade in grades.items() if grade > 0]
        yield _Row(query, positives, [text for text, grade in grades.items() if grade <= 0])


def _file_rows(path: AnyFile, layout: Layout, options: dict, counts: CorpusCounts) -> Iterator[_Row]:
    file = _source_file(path, options, counts, optional=layout.columns[2:])
    for place, values in READERS[file.kind](file, layout.columns):
        row = _row(values, layout)
        if isinstance(row, str):
            file.bad_row(row, f"{row} where text is needed", place=place)
        else:
            yield row
    if counts.bad:
        logger.warning("%s: %s", path, f"{counts.bad:,} bad rows were skipped: {counts.where_bad()}")


def _layout_of_file(path: AnyFile, layouts: Sequence[Layout], options: dict) -> Layout:
    """The first layout whose columns the first rows have; `InputError` with the columns that are there."""
    wanted = list(dict.fromkeys(name for layout in layouts for name in (layout.query, layout.positive)))
    file = _source_file(path, options, CorpusCounts(), optional=wanted)
    rows = itertools.islice(READERS[file.kind](file, wanted), _ROWS_LOOKED_AT)
    present = {name for _, values in rows for name, value in zip(wanted, values, strict=True) if value is not None}
    for layout in layouts:
        if {layout.query, layout.positive} <= present:
            return layout
    # The reader knows the columns that are there, and says so.
    nearest = next((layout for layout in layouts if layout.query in present), layouts[0])
    for _ in READERS[file.kind](_source_file(path, options, CorpusCounts()), [nearest.query, nearest.positive]):
        pass
    raise InputError(f"{path}: no row has both a query and a text that answers it; {ADVICE}")


def _source_file(path: AnyFile, options: dict, counts: CorpusCounts, *, optional: Sequence[str] = ()) -> SourceFile:
    file = SourceFile(path, counts, optional=frozenset(optional), **options)
    file.column_advice = ADVICE
    if file.kind == ".txt":
        raise InputError(f"{path}: text has no pairs; give jsonl, csv, tsv or parquet, or mine pairs (mine_pairs.py)")
    return file


def _hub_rows(source: dict[str, Any], layout: Layout | None) -> tuple[Any, Iterator[_Row], str]:
    name, split = source["dataset_name"], source.get("split", "train")
    hub = {"streaming": False, "cache_dir": source.get("cache_dir")}
    dataset = open_hub_dataset(name, source.get("dataset_config_name"), split, **hub)
    present = set(dataset.column_names)
    chosen = layout or next((each for each in LAYOUTS if {each.query, each.positive} <= present), None)
    if chosen is None or not {chosen.query, chosen.positive} <= present:
        raise InputError(
            f"dataset {name}: no columns of pairs; columns present: {', '.join(dataset.column_names)}; {ADVICE}"
        )

    def rows() -> Iterator[_Row]:
        columns = [column for column in chosen.columns if column in present]
        for number, values in enumerate(dataset.select_columns(columns)):
            row = _row([values.get(column) for column in chosen.columns], chosen)
            if isinstance(row, str):
                raise InputError(f"dataset {name}, row {number}: {row} where text is needed")
            yield row

    return dataset._fingerprint, rows(), f"dataset {name}"


def _row(values: Sequence[Any], layout: Layout) -> _Row | str:
    """The row, or what is wrong with it."""
    query, positive, *negatives = values
    if not isinstance(query, str):
        return f"column '{layout.query}' holds {type_name(query)}"
    texts: dict[bool, list[str]] = {True: [], False: []}
    for name, value in zip(layout.columns[1:], (positive, *negatives), strict=True):
        is_positive = name == layout.positive
        if value is None and not is_positive:
            continue
        found = value if isinstance(value, (list, tuple)) else [value]
        wrong = next((type_name(each) for each in found if not isinstance(each, str)), None)
        if wrong is None and is_positive and not found:
            wrong = "an empty list"
        if wrong is not None:
            return f"column '{name}' holds {wrong}"
        texts[is_positive] += found
    return _Row(query, texts[True], texts[False])


def _pairs(row: _Row, dropped: Counter) -> Iterator[dict[str, Any]]:
    """A pair for each positive."""
    negatives = list(dict.fromkeys(text for text in row.negatives if text.strip(INVISIBLE)))
    for positive in dict.fromkeys(row.positives):
        if not (row.query.strip(INVISIBLE) and positive.strip(INVISIBLE)):
            dropped["with an empty text"] += 1
        elif row.query.split() == positive.split():
            dropped["of a text with itself"] += 1
        else:
            yield {"query": row.query, "positive": positive, "negatives": negatives}


# --- Where rows come from -----------------------------------------------------------------------------------------


def _retrieval_folders(sources: Sequence[str]) -> tuple[list[Path], list[str]]:
    """(folders in BEIR layout, everything else)."""
    folders = [Path(each).expanduser() for each in sources if not is_remote(each)]
    judged = [folder for folder in folders if (folder / "qrels").is_dir()]
    return judged, [each for each in sources if Path(each).expanduser() not in judged]


def _folder_state(folder: Path, source: dict[str, Any]) -> list:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [source.get("split"), [file_state(path) for path in files]]
