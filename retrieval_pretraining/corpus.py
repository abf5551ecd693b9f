"""Files or Hub data -> documents, counted.

A text file holds one passage a line, or as `document_separator` says; json, csv, tsv and parquet files hold one in a
text column. Nothing but that column (and those of title and id, if asked for) is looked at, so the others may hold
anything. Every dropped row is counted.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval_pretraining.documents import (
    OTHER_COLUMN,
    Columns,
    Document,
    require_documents,
    text_features,
    with_title,
)
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.hub_text import clean_hub_dataset, iterate_hub_dataset, open_hub_dataset
from retrieval_pretraining.readers import READERS, READING_CHOICES, CorpusCounts, SourceFile
from retrieval_pretraining.source_files import file_labels, resolve_files

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

__all__ = [
    "CorpusCounts",
    "Document",
    "iterate_documents",
    "load_documents",
    "read_documents",
    "read_raw_documents",
    "resolve_files",
]

CACHE_FOLDER = "retrieval_pretraining"
# Part of every cache key: raise it when the same file would be read as other documents than before.
READER_VERSION = 1


def read_documents(
    files: Sequence[str | os.PathLike],
    *,
    text_column_name: str = "text",
    title_column_name: str | None = None,
    encoding: str = "utf-8",
    encoding_errors: str = "strict",
    on_bad_line: str = "error",
    document_separator: str = "line",
    counts: CorpusCounts | None = None,
) -> Iterator[str]:
    """Yields the documents of `files` one by one, as they are in the file, and keeps `counts` up to date.

    Rows without text (null) and rows without a visible character (blank) are dropped. With a title column a document
    is `title text`, unless the text already begins with its title. `encoding_errors` is strict, replace or ignore.
    `on_bad_line` says what a row that cannot be parsed, or whose text is no string, is: an error, or skip and count.
    `document_separator` is for .txt: a document is a line, a paragraph (blank_line) or the whole file.

    Raises:
        InputError: a file cannot be read, decoded or parsed (with its line), has no such column (with those it has),
            or a text is no string.
    """
    for document in _read(
        files,
        Columns(text_column_name, title_column_name),
        counts,
        encoding=encoding,
        encoding_errors=encoding_errors,
        on_bad_line=on_bad_line,
        document_separator=document_separator,
    ):
        yield with_title(document)


def read_raw_documents(
    files: Sequence[str | os.PathLike],
    *,
    text_column_name: str = "text",
    title_column_name: str | None = None,
    id_column_name: str | None = None,
    encoding: str = "utf-8",
    encoding_errors: str = "strict",
    on_bad_line: str = "error",
    document_separator: str = "line",
    counts: CorpusCounts | None = None,
    labels: Sequence[str] | None = None,
) -> Iterator[Document]:
    """As `read_documents`, but with the title apart and with an id.

    Without `title_column_name` the title is that of the column "title" where there is one. The id is a string or a
    number in the column `id_column_name` or, without that, in "_id" or else "id"; where there is none it says where
    the document is: "docs.jsonl:7". A column that is named must exist. `labels` are what to call the files there, by
    default their `file_labels`: whoever reads some files of a corpus gives those that they have among all.
    """
    return _read(
        files,
        Columns.with_automatic(text_column_name, title_column_name, id_column_name),
        counts,
        encoding=encoding,
        encoding_errors=encoding_errors,
        on_bad_line=on_bad_line,
        document_separator=document_separator,
        labels=labels,
    )


def _read(
    files: Sequence[str | os.PathLike],
    columns: Columns,
    counts: CorpusCounts | None,
    *,
    labels: Sequence[str] | None = None,
    **reading: str,
) -> Iterator[Document]:
    for name, known in READING_CHOICES.items():
        if reading[name] not in known:
            raise InputError(f"{name} '{reading[name]}' is not known; use {', '.join(known[:-1])} or {known[-1]}")
    counts = CorpusCounts() if counts is None else counts
    for path, label in zip(files, labels or file_labels(files), strict=True):
        file = SourceFile(Path(path), counts, optional=columns.optional, **reading)
        counts.files += 1
        for place, values in READERS[file.kind](file, columns.names):
            reason = columns.misfit(values)
            if reason is not None:
                file.bad_row(reason, f"{reason}; {OTHER_COLUMN}", place=place)
                continue
            document = columns.document(values, f"{label}:{place.split()[-1]}", counts)
            if document is not None:
                counts.documents += 1
                yield document


def iterate_documents(
    *,
    train_file: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    split: str = "train",
    text_column_name: str = "text",
    title_column_name: str | None = None,
    id_column_name: str | None = None,
    encoding: str = "utf-8",
    encoding_errors: str = "strict",
    on_bad_line: str = "error",
    document_separator: str = "line",
    max_samples: int | None = None,
    cache_dir: str | os.PathLike | None = None,
    counts: CorpusCounts | None = None,
) -> Iterator[Document]:
    """Files (`train_file`) or a Hub dataset (`dataset_name`) -> their documents, as `read_raw_documents` gives them.

    A document of a Hub dataset that has no id is called "row:<index>". `max_samples` limits the documents of files,
    and the rows read of a Hub dataset.

    Raises:
        InputError: everything that `load_documents` raises; at the end of a corpus without one usable passage.
    """
    _check_source(train_file, dataset_name, max_samples)
    counts = CorpusCounts() if counts is None else counts
    columns = Columns.with_automatic(text_column_name, title_column_name, id_column_name)
    if dataset_name is not None:
        sources: list[Any] = [f"dataset {dataset_name}"]
        dataset = open_hub_dataset(dataset_name, dataset_config_name, split, streaming=False, cache_dir=cache_dir)
        documents = iterate_hub_dataset(dataset, dataset_name, columns, max_samples, counts)
    else:
        sources = resolve_files(train_file)
        documents = _read(
            sources,
            columns,
            counts,
            encoding=encoding,
            encoding_errors=encoding_errors,
            on_bad_line=on_bad_line,
            document_separator=document_separator,
        )
        documents = itertools.islice(documents, max_samples)
    return _not_empty(documents, sources, counts)


def corpus_fingerprint(
    *,
    train_file: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    split: str = "train",
    cache_dir: str | os.PathLike | None = None,
    **options: Any,
) -> dict[str, Any]:
    """What `iterate_documents` of the same arguments would give, by the content of the files or of the dataset."""
    if dataset_name is not None:
        dataset = open_hub_dataset(dataset_name, dataset_config_name, split, streaming=False, cache_dir=cache_dir)
        content: Any = {"dataset": dataset._fingerprint}
    else:
        files = resolve_files(train_file)
        content = [[label, _digest(file)] for label, file in zip(file_labels(files), files, strict=True)]
    return {"reader": READER_VERSION, "content": content, **options}


def _digest(file: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _not_empty(documents: Iterator[Document], sources: Sequence[Any], counts: CorpusCounts) -> Iterator[Document]:
    found = False
    for document in documents:
        found = True
        yield document
    require_documents(found, sources, counts)


def _check_source(train_file: Any, dataset_name: str | None, max_samples: int | None) -> None:
    if (train_file is None) == (dataset_name is None):
        raise InputError("give either train_file or dataset_name, to say where the text comes from")
    if max_samples is not None and max_samples < 1:
        raise InputError(
            f"--max_train_samples or --max_eval_samples is {max_samples}; give 1 or more, or leave it out"
        )


def load_documents(
    *,
    train_file: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    split: str = "train",
    text_column_name: str = "text",
    title_column_name: str | None = None,
    encoding: str = "utf-8",
    encoding_errors: str = "strict",
    on_bad_line: str = "error",
    document_separator: str = "line",
    streaming: bool = False,
    max_samples: int | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> tuple[Dataset | IterableDataset, CorpusCounts]:
    """Files (`train_file`) or a Hub dataset (`dataset_name`) -> a dataset with the one column "text", and counts.

    Files become an Arrow file in the cache of `datasets`, so the corpus may be larger than memory; a second call with
    the same options and unchanged files, from this process or another, reuses it. With `streaming` nothing but the
    first document is read until the dataset is iterated; its shards are the files, so a worker more than there are
    files stays idle.

    `max_samples` limits the documents of files, and the rows read of a Hub dataset. `on_bad_line` is for files: the
    columns of a Hub dataset have one type each.

    Raises:
        InputError: everything that `resolve_files` and `read_documents` raise, neither or both sources, an unknown
            dataset, a corpus without one usable passage.
    """
    _check_source(train_file, dataset_name, max_samples)
    if dataset_name is not None:
        dataset = open_hub_dataset(dataset_name, dataset_config_name, split, streaming=streaming, cache_dir=cache_dir)
        return clean_hub_dataset(dataset, dataset_name, Columns(text_column_name, title_column_name), max_samples)
    files = [path.resolve() for path in resolve_files(train_file)]
    options = {
        "text_column_name": text_column_name,
        "title_column_name": title_column_name,
        "encoding": encoding,
        "encoding_errors": encoding_errors,
        "on_bad_line": on_bad_line,
        "document_separator": document_separator,
    }
    load = _stream_files if streaming else _load_files
    return load(files, options, max_samples, cache_dir)


def _generate_rows(files: list[str], **options) -> Iterator[dict[str, str]]:
    for document in read_documents(files, **options):
        yield {"text": document}


def _stream_files(files: list[Path], options: dict, max_samples: int | None, cache_dir):
    from datasets import IterableDataset

    counts = CorpusCounts()
    require_documents(any(True for _ in read_documents(files, counts=counts, **options)), files, counts)
    dataset = IterableDataset.from_generator(
        _generate_rows, features=text_features(), gen_kwargs={"files": [str(file) for file in files], **options}
    )
    if max_samples is not None:
        dataset = dataset.take(max_samples)
    return dataset, CorpusCounts(files=len(files), documents=None)


def _load_files(files: list[Path], options: dict, max_samples: int | None, cache_dir):
    import datasets

    def count_while_reading(counts: CorpusCounts) -> Iterator[str]:
        return itertools.islice(read_documents(files, counts=counts, **options), max_samples)

    def generate() -> Iterator[dict[str, str]]:
        counts = CorpusCounts()
        for document in count_while_reading(counts):
            yield {"text": document}
        require_documents(counts.documents, files, counts)
        # Before the Arrow file is declared whole, so that whoever finds that file finds the counts too.
        write_atomically(counts_file, json.dumps(asdict(counts)))

    root = Path(cache_dir or datasets.config.HF_DATASETS_CACHE)
    key = file_cache_key(files, {**options, "max_samples": max_samples})
    counts_file = root / CACHE_FOLDER / f"{key}.json"
    try:
        # Our own key: that of `datasets` hashes the code of the generator, and not the state of the files.
        dataset = datasets.Dataset.from_generator(
            generate, features=text_features(), cache_dir=str(root), fingerprint=key
        )
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise
    if counts_file.exists():
        return dataset, CorpusCounts(**json.loads(counts_file.read_text()))
    counts = CorpusCounts()
    for _ in count_while_reading(counts):
        pass
    return dataset, counts


def file_cache_key(files: list[Path], options: dict) -> str:
    states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([READER_VERSION, states, options], sort_keys=True).encode()).hexdigest()[:32]


def write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
