"""A Hub dataset -> documents. Its columns have one type each: one that holds no text is a mistake, not bad rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from retrieval_pretraining.cleaning import clean_documents
from retrieval_pretraining.cleaning_settings import CleaningSettings
from retrieval_pretraining.corpus_counts import CorpusCounts
from retrieval_pretraining.documents import (
    OTHER_COLUMN,
    Columns,
    Document,
    require_documents,
    text_features,
    with_title,
)
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.readers import missing_column

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset


def open_hub_dataset(
    name: str, config_name: str | None, split: str, *, streaming: bool, cache_dir: str | os.PathLike | None
) -> Dataset | IterableDataset:
    import datasets

    cache_dir = None if cache_dir is None else str(cache_dir)
    try:
        return datasets.load_dataset(name, config_name, split=split, streaming=streaming, cache_dir=cache_dir)
    except (OSError, ValueError, datasets.exceptions.DatasetGenerationError) as error:
        reason = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"dataset {name}, split {split}: cannot be loaded ({reason[0]})") from error


def stream_hub_dataset(
    dataset: IterableDataset, name: str, columns: Columns, cleaning: CleaningSettings, max_samples: int | None
) -> tuple[IterableDataset, CorpusCounts]:
    """The dataset with the one column "text", title included, without the rows that have none; and counts."""
    dataset = _select_columns(dataset, name, columns)
    if max_samples is not None:
        dataset = dataset.take(max_samples)
    dataset = dataset.map(
        _clean_batch,
        batched=True,
        features=text_features(),
        remove_columns=columns.names,
        fn_kwargs={"columns": columns, "source": f"dataset {name}", "cleaning": cleaning},
    )
    require_documents(any(True for _ in dataset), [f"dataset {name}"], CorpusCounts())
    return dataset, CorpusCounts(documents=None)


def iterate_hub_dataset(
    dataset: Dataset, name: str, columns: Columns, max_samples: int | None, counts: CorpusCounts
) -> Iterator[Document]:
    index = 0
    dataset = _first_rows(_select_columns(dataset, name, columns), max_samples)
    for batch in dataset.iter(batch_size=1000):
        for values in _rows(batch, columns):
            document = _document(values, columns, counts, f"dataset {name}, row {index}", f"row:{index}")
            index += 1
            if document is not None:
                yield document


def _select_columns(dataset, name: str, columns: Columns):
    present = dataset.column_names or list(next(iter(dataset), {}))
    for column in columns.names:
        if column not in present and column not in columns.optional:
            raise InputError(missing_column(f"dataset {name}", column, columns.names, ", ".join(present)))
    return dataset.select_columns([column for column in dict.fromkeys(columns.names) if column in present])


def _first_rows(dataset: Dataset, max_samples: int | None) -> Dataset:
    return dataset.select(range(min(len(dataset), max_samples or len(dataset))))


def _rows(batch: dict[str, list], columns: Columns) -> Iterator[tuple[Any, ...]]:
    absent = [None] * len(batch[columns.text])
    return zip(*(batch.get(name, absent) for name in columns.names), strict=True)


def _document(values: tuple, columns: Columns, counts: CorpusCounts, place: str, name: str) -> Document | None:
    misfit = columns.misfit(values)
    if misfit is not None:
        raise InputError(f"{place}: {misfit}; {OTHER_COLUMN}")
    return columns.document(values, name, counts)


def _clean_batch(
    batch: dict[str, list], *, columns: Columns, source: str, cleaning: CleaningSettings
) -> dict[str, list[str]]:
    documents = (_document(row, columns, CorpusCounts(), f"{source}, a row", "") for row in _rows(batch, columns))
    cleaned = clean_documents((document for document in documents if document is not None), cleaning, CorpusCounts())
    return {"text": [with_title(document) for document in cleaned]}
