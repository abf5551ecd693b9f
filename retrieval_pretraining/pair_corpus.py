"""Pairs to train on: read from files or a dataset that has them, or mined from the documents that these hold."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from retrieval_pretraining.corpus import iterate_documents, load_counted
from retrieval_pretraining.corpus_cache import cache_key, corpus_fingerprint, file_cache_key, generated_dataset
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.hub_text import open_hub_dataset
from retrieval_pretraining.mined_pairs import MinedPairs, load_mined_pairs
from retrieval_pretraining.mining_report import reading_counts
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.readers import INVISIBLE, READERS, CorpusCounts, SourceFile
from retrieval_pretraining.remote_files import AnyFile
from retrieval_pretraining.source_files import resolve_files

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

PAIR_COLUMN = "text_pair"
_READING = ("encoding", "encoding_errors", "on_bad_line", "document_separator")


def load_pairs(
    source: dict[str, Any],
    settings: MiningSettings,
    *,
    strategies: Sequence[str] | None = None,
    seed: int = 42,
    num_workers: int = 1,
    counts: CorpusCounts | None = None,
    say: Callable[[str], None] = print,
    show_progress: bool = True,
) -> Dataset:
    """A dataset with the columns text, text_pair and, where it is known, document_id.

    `source` are the arguments of `corpus.iterate_documents`. Where it has a column `text_pair` its rows are the pairs;
    else they are documents, which are mined with `settings`, once for the same text, settings and seed. `strategies`
    mines with each of these in place of the one of the settings; the pairs follow each other. What was read of the
    documents is added to `counts`.

    Raises:
        InputError: the text cannot be read, or has no pairs; it has pairs of its own, and they would be cleaned.
    """
    import datasets

    most = source.get("max_samples")
    if most is not None and most < 1:
        raise InputError(f"--max_train_samples or --max_eval_samples is {most}; give 1 or more, or leave it out")
    given = _given_pairs(source)
    if given is not None:
        cleaning = source.get("cleaning")
        if cleaning is not None and not cleaning.is_off:
            flags = ", ".join(f"--{name}" for name in cleaning.changed())
            raise InputError(f"{flags}: the text has pairs of its own ({PAIR_COLUMN}), only documents are cleaned.")
        if settings != MiningSettings() or strategies:
            logger.warning(
                "the text has pairs of its own (%s): nothing is mined, and what says how has no effect", PAIR_COLUMN
            )
        return given(say)
    options = {"seed": seed, "num_workers": num_workers, "cache_dir": source.get("cache_dir"), "say": say}
    options["show_progress"] = show_progress
    mined = [_mine(source, _with_strategy(settings, name), options) for name in strategies or [settings.strategy]]
    if counts is not None:
        counts.add(reading_counts(mined[0].counts))  # each strategy reads the same
    return datasets.concatenate_datasets([pairs.dataset() for pairs in mined])


def _given_pairs(source: dict[str, Any]) -> Callable[[Callable[[str], None]], Dataset] | None:
    """What loads the pairs that the source has, or None: then it holds documents."""
    name = source.get("dataset_name")
    if name is not None:
        hub = {"streaming": False, "cache_dir": source.get("cache_dir")}
        dataset = open_hub_dataset(name, source.get("dataset_config_name"), source.get("split", "train"), **hub)
        if PAIR_COLUMN not in dataset.column_names:
            return None
        return lambda say: _pairs_of_dataset(dataset, name, source, say)
    files = resolve_files(source["train_file"])
    options = {option: source[option] for option in _READING if option in source}
    with_pairs = [_has_pairs(file, options) for file in files]
    if any(with_pairs) and not all(with_pairs):
        one, other = files[with_pairs.index(True)], files[with_pairs.index(False)]
        raise InputError(f"{one} holds pairs and {other} holds documents: train on the one or the other.")
    if not any(with_pairs):
        return None
    return lambda say: _pairs_of_files(files, source, options, say)


def _with_strategy(settings: MiningSettings, strategy: str) -> MiningSettings:
    """The settings with this strategy, without those that have no effect on it."""
    changed = replace(settings, strategy=strategy)
    if not changed.compares_spans:
        changed = replace(changed, max_document_frequency=1.0)
    return changed


def _mine(source: dict[str, Any], settings: MiningSettings, options: dict[str, Any]) -> MinedPairs:
    mined = load_mined_pairs(source, settings, **options)
    if not mined.counts["pairs"]:
        why = f"--strategy {settings.strategy} found none in {mined.counts['documents']:,} documents"
        if settings.strategy == "lcs":
            why = "no two sentences of a document share a span that is heavy enough"
        raise InputError(f"No pair was mined: {why}. For txt files --document_separator says what a document is.")
    return mined


def load_mined_documents(
    source: dict[str, Any], *, leave_out: Collection[str] = ()
) -> tuple[Dataset, CorpusCounts] | None:
    """The documents that `load_pairs` mines, title and text, with the one column text; None where pairs are given.

    `leave_out` are the `document_id`s of those that are held out.
    """
    if _given_pairs(source) is not None:
        return None

    def read(counts: CorpusCounts) -> Iterator[str]:
        for document in iterate_documents(**source, counts=counts):
            if document.document_id not in leave_out:
                yield f"{document.title or ''} {document.text}".strip()

    key = cache_key(["documents", corpus_fingerprint(**source)], {"leave_out": sorted(leave_out)})
    return load_counted(read, [], key, source.get("cache_dir"))  # names no source: `iterate_documents` has


def _has_pairs(file: AnyFile, options: dict[str, Any]) -> bool:
    """Whether one of the first rows of the file has a pair."""
    found = SourceFile(file, CorpusCounts(), optional=frozenset([PAIR_COLUMN]), **options)
    if found.kind == ".txt":
        return False
    return any(values[0] is not None for _, values in itertools.islice(READERS[found.kind](found, [PAIR_COLUMN]), 100))


def _pairs_of_dataset(dataset: Dataset, name: str, source: dict[str, Any], say: Callable[[str], None]) -> Dataset:
    text, document = source.get("text_column_name", "text"), source.get("id_column_name") or "document_id"
    if text not in dataset.column_names:
        present = ", ".join(dataset.column_names)
        raise InputError(
            f"dataset {name}: no column '{text}'; columns present: {present}; name one of them with --text_column_name"
        )
    wanted = [text, PAIR_COLUMN, *([document] if document in dataset.column_names else [])]
    dataset = dataset.select(range(min(len(dataset), source.get("max_samples") or len(dataset))))
    dataset = dataset.select_columns(wanted)
    for column in wanted[:2]:
        nulls = sum(batch.column(column).null_count for batch in dataset.with_format("arrow").iter(batch_size=10_000))
        if dataset.features[column].dtype not in ("string", "large_string") or nulls:
            raise InputError(
                f"dataset {name}: column '{column}' holds no text in some rows; every row needs two texts"
            )
    dataset = dataset.rename_columns(
        {old: new for old, new in ((text, "text"), (document, "document_id")) if old in wanted and old != new}
    )
    say(f"pairs: {len(dataset):,} of dataset {name}")
    return dataset


def _pairs_of_files(
    files: list[AnyFile], source: dict[str, Any], options: dict, say: Callable[[str], None]
) -> Dataset:
    import datasets

    text, document = source.get("text_column_name", "text"), source.get("id_column_name") or "document_id"
    columns, most = [text, PAIR_COLUMN, document], source.get("max_samples")
    features = datasets.Features({name: datasets.Value("string") for name in ("text", PAIR_COLUMN, "document_id")})
    key = file_cache_key([file.resolve() for file in files], {**options, "columns": columns, "max_samples": most})
    rows = _read_pairs(files, columns, options)
    dataset = generated_dataset(lambda: itertools.islice(rows, most), features, key, source.get("cache_dir"))
    say(f"pairs: {len(dataset):,} of {len(files)} file{'s' if len(files) > 1 else ''}")
    return dataset


def _read_pairs(files: Sequence[AnyFile], columns: list[str], options: dict) -> Iterator[dict[str, str | None]]:
    counts, found, empty = CorpusCounts(), False, 0
    for path in files:
        file = SourceFile(path, counts, optional=frozenset([columns[2]]), **options)
        for place, (text, pair, document) in READERS[file.kind](file, columns):
            wrong = [name for name, value in zip(columns, (text, pair), strict=False) if not isinstance(value, str)]
            if wrong:
                reason = f"column '{wrong[0]}' holds no text"
                file.bad_row(
                    reason, f"{reason}; every row needs two texts (--text_column_name, text_pair)", place=place
                )
            elif text.strip(INVISIBLE) and pair.strip(INVISIBLE):
                found = True
                yield {"text": text, PAIR_COLUMN: pair, "document_id": None if document is None else str(document)}
            else:
                empty += 1
    if not found:
        raise InputError(f"{files[0]}: 0 usable pairs; every row needs two texts")
    if empty or counts.bad:
        logger.warning("dropped %s pairs in which a text is empty, %s bad rows", f"{empty:,}", f"{counts.bad:,}")


def hold_out_documents(pairs: Dataset, percentage: float, *, seed: int) -> tuple[Dataset, Dataset]:
    """(training, validation): all pairs of a document go to the same side, for its sentences come more than once."""
    import numpy as np

    names = pairs["document_id"] if "document_id" in pairs.column_names else [None] * len(pairs)
    # A pair whose document is not known is a document of its own.
    keys = np.array([name if name is not None else f"\0{row}" for row, name in enumerate(names)])
    documents, document_of = np.unique(keys, return_inverse=True)
    if len(documents) < 2:
        raise InputError("--validation_split_percentage needs pairs of at least 2 documents; these are of 1.")
    count = min(max(1, round(len(documents) * percentage / 100)), len(documents) - 1)
    held = np.zeros(len(documents), dtype=bool)
    held[np.random.default_rng(seed).permutation(len(documents))[:count]] = True
    return pairs.select(np.flatnonzero(~held[document_of])), pairs.select(np.flatnonzero(held[document_of]))
