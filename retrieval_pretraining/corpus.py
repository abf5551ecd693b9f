"""Files or Hub data -> documents, counted.

A text file holds one passage a line, or as `document_separator` says; json, csv, tsv and parquet files hold one in a
text column. Nothing but that column (and those of title and id, if asked for) is looked at, so the others may hold
anything. Every dropped row is counted.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval_pretraining.cleaning import clean_documents
from retrieval_pretraining.cleaning_settings import CleaningSettings
from retrieval_pretraining.corpus_cache import (
    CACHE_FOLDER,
    cache_key,
    cleaning_fingerprint,
    file_cache_key,
    generated_dataset,
    write_atomically,
)
from retrieval_pretraining.corpus_counts import CorpusCounts, add_to
from retrieval_pretraining.documents import (
    OTHER_COLUMN,
    Columns,
    Document,
    require_documents,
    text_features,
    with_title,
)
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.hub_text import iterate_hub_dataset, open_hub_dataset, stream_hub_dataset
from retrieval_pretraining.readers import READERS, READING_CHOICES, SourceFile
from retrieval_pretraining.remote_files import AnyFile, RemoteFile, as_file
from retrieval_pretraining.scripts import SCRIPTS, count_scripts
from retrieval_pretraining.source_files import file_labels, resolve_files

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

__all__ = [
    "CorpusCounts",
    "Document",
    "iterate_documents",
    "load_counted",
    "load_documents",
    "read_documents",
    "read_raw_documents",
    "resolve_files",
]


def read_documents(
    files: Sequence[str | os.PathLike],
    *,
    text_column_name: str = "text",
    title_column_name: str | None = None,
    encoding: str = "utf-8",
    encoding_errors: str = "strict",
    on_bad_line: str = "error",
    document_separator: str = "line",
    cleaning: CleaningSettings | None = None,
    counts: CorpusCounts | None = None,
) -> Iterator[str]:
    """Yields the documents of `files` one by one, as they are in the file, and keeps `counts` up to date.

    With `cleaning` they are cleaned, and what it drops is left out.

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
        cleaning=cleaning,
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
    cleaning: CleaningSettings | None = None,
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
        cleaning=cleaning,
        labels=labels,
    )


def _read(
    files: Sequence[str | os.PathLike],
    columns: Columns,
    counts: CorpusCounts | None,
    *,
    labels: Sequence[str] | None = None,
    cleaning: CleaningSettings | None = None,
    **reading: str,
) -> Iterator[Document]:
    for name, known in READING_CHOICES.items():
        if reading[name] not in known:
            raise InputError(f"{name} '{reading[name]}' is not known; use {', '.join(known[:-1])} or {known[-1]}")
    kept = CorpusCounts() if counts is None else counts
    documents = _read_files(files, labels or file_labels(files), columns, kept, reading)
    return _cleaned(documents, cleaning, kept, count_characters=counts is not None)


def _read_files(
    files: Sequence[str | os.PathLike | RemoteFile],
    labels: Sequence[str],
    columns: Columns,
    counts: CorpusCounts,
    reading: dict[str, str],
) -> Iterator[Document]:
    for path, label in zip(files, labels, strict=True):
        file = SourceFile(as_file(path), counts, optional=columns.optional, **reading)
        counts.files += 1
        for place, values in READERS[file.kind](file, columns.names):
            reason = columns.misfit(values)
            if reason is not None:
                file.bad_row(reason, f"{reason}; {OTHER_COLUMN}", place=place)
                continue
            document = columns.document(values, f"{label}:{place.split()[-1]}", counts)
            if document is not None:
                yield document


def _cleaned(
    documents: Iterator[Document], cleaning: CleaningSettings | None, counts: CorpusCounts, *, count_characters: bool
) -> Iterator[Document]:
    """The documents that are left when cleaned, counted: the one place that all of them come through."""
    for document in clean_documents(documents, cleaning or CleaningSettings(), counts):
        counts.documents += 1
        if count_characters:
            found = count_scripts(f"{document.title or ''}{document.text}").tolist()
            for script, count in zip(SCRIPTS, found, strict=True):
                if count:
                    add_to(counts.characters, script, count)
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
    cleaning: CleaningSettings | None = None,
    max_samples: int | None = None,
    cache_dir: str | os.PathLike | None = None,
    counts: CorpusCounts | None = None,
) -> Iterator[Document]:
    """Files (`train_file`) or a Hub dataset (`dataset_name`) -> their documents, as `read_raw_documents` gives them.

    A document of a Hub dataset that has no id is called "row:<index>". `max_samples` limits the documents of files
    that are left when cleaned, and the rows read of a Hub dataset.

    Raises:
        InputError: everything that `load_documents` raises; at the end of a corpus without one usable passage.
    """
    _check_source(train_file, dataset_name, max_samples)
    (cleaning or CleaningSettings()).check()
    counts = CorpusCounts() if counts is None else counts
    columns = Columns.with_automatic(text_column_name, title_column_name, id_column_name)
    if dataset_name is not None:
        sources: list[Any] = [f"dataset {dataset_name}"]
        dataset = open_hub_dataset(dataset_name, dataset_config_name, split, streaming=False, cache_dir=cache_dir)
        documents = iterate_hub_dataset(dataset, dataset_name, columns, max_samples, counts)
        documents = _cleaned(documents, cleaning, counts, count_characters=True)
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
            cleaning=cleaning,
        )
        documents = itertools.islice(documents, max_samples)
    return _not_empty(documents, sources, counts)


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
    cleaning: CleaningSettings | None = None,
    streaming: bool = False,
    max_samples: int | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> tuple[Dataset | IterableDataset, CorpusCounts]:
    """Files (`train_file`) or a Hub dataset (`dataset_name`) -> a dataset with the one column "text", and counts.

    Files become an Arrow file in the cache of `datasets`, so the corpus may be larger than memory; a second call with
    the same options and unchanged files, from this process or another, reuses it. With `streaming` nothing but the
    first document is read until the dataset is iterated; its shards are the files, so a worker more than there are
    files stays idle.

    `max_samples` limits the documents of files that are left when cleaned, and the rows read of a Hub dataset.
    `on_bad_line` is for files: the columns of a Hub dataset have one type each.

    Raises:
        InputError: everything that `resolve_files` and `read_documents` raise, neither or both sources, an unknown
            dataset, a corpus without one usable passage, a stream without duplicates.
    """
    _check_source(train_file, dataset_name, max_samples)
    cleaning = cleaning or CleaningSettings()
    cleaning.check()
    if streaming and cleaning.needs_whole_corpus:
        raise InputError(
            "--deduplicate_documents compares a document with all before it, which no worker of a stream has seen: "
            "leave out --streaming, or remove the duplicates first."
        )
    if dataset_name is not None:
        dataset = open_hub_dataset(dataset_name, dataset_config_name, split, streaming=streaming, cache_dir=cache_dir)
        columns = Columns(text_column_name, title_column_name)
        if streaming:
            return stream_hub_dataset(dataset, dataset_name, columns, cleaning, max_samples)

        def read_rows(counts: CorpusCounts) -> Iterator[str]:
            documents = iterate_hub_dataset(dataset, dataset_name, columns, max_samples, counts)
            return map(with_title, _cleaned(documents, cleaning, counts, count_characters=True))

        options = {"columns": columns.names, "max_samples": max_samples, **cleaning_fingerprint(cleaning)}
        key = cache_key(dataset._fingerprint, options)
        return load_counted(read_rows, [f"dataset {dataset_name}"], key, cache_dir)
    files = [path.resolve() for path in resolve_files(train_file)]
    options = {
        "text_column_name": text_column_name,
        "title_column_name": title_column_name,
        "encoding": encoding,
        "encoding_errors": encoding_errors,
        "on_bad_line": on_bad_line,
        "document_separator": document_separator,
    }
    if streaming:
        return _stream_files(files, {**options, "cleaning": cleaning}, max_samples)

    def read_files(counts: CorpusCounts) -> Iterator[str]:
        return itertools.islice(read_documents(files, counts=counts, cleaning=cleaning, **options), max_samples)

    key = file_cache_key(files, {**options, "max_samples": max_samples, **cleaning_fingerprint(cleaning)})
    return load_counted(read_files, files, key, cache_dir)


def _generate_rows(files: list[str], **options) -> Iterator[dict[str, str]]:
    for document in read_documents(files, **options):
        yield {"text": document}


def _stream_files(files: list[AnyFile], options: dict, max_samples: int | None):
    from datasets import IterableDataset

    counts = CorpusCounts()
    require_documents(any(True for _ in read_documents(files, counts=counts, **options)), files, counts)
    dataset = IterableDataset.from_generator(
        _generate_rows, features=text_features(), gen_kwargs={"files": [str(file) for file in files], **options}
    )
    if max_samples is not None:
        dataset = dataset.take(max_samples)
    return dataset, CorpusCounts(files=len(files), documents=None)


def load_counted(
    read: Callable[[CorpusCounts], Iterator[str]], sources: Sequence[Any], key: str, cache_dir
) -> tuple[Dataset, CorpusCounts]:
    """The dataset of the texts that `read` gives and counts; both from the cache if they are there under this key.

    Raises `InputError` where there is none, which names `sources`, and what `read` raises.
    """
    import datasets

    def generate() -> Iterator[dict[str, str]]:
        counts = CorpusCounts()
        for document in read(counts):
            yield {"text": document}
        require_documents(counts.documents, sources, counts)
        # Before the Arrow file is declared whole, so that whoever finds that file finds the counts too.
        write_atomically(counts_file, json.dumps(asdict(counts)))

    root = Path(cache_dir or datasets.config.HF_DATASETS_CACHE)
    counts_file = root / CACHE_FOLDER / f"{key}.json"
    dataset = generated_dataset(generate, text_features(), key, root)
    if counts_file.exists():
        return dataset, CorpusCounts(**json.loads(counts_file.read_text()))
    counts = CorpusCounts()
    for _ in read(counts):
        pass
    return dataset, counts
