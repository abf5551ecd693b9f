"""Files or Hub data -> documents, counted.

A text file holds one passage a line; json, csv, tsv and parquet files hold one in a text column. Nothing but that
column (and a title column, if asked for) is looked at, so the others may hold anything. Every dropped row is counted.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.readers import (
    INVISIBLE,
    READERS,
    REPLACEMENT,
    CorpusCounts,
    SourceFile,
    is_supported,
    split_suffix,
    supported_formats,
    type_name,
)

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

__all__ = ["CorpusCounts", "load_documents", "read_documents", "resolve_files"]

CACHE_FOLDER = "retrieval_pretraining"
# Part of every cache key: raise it when the same file would be read as other documents than before.
READER_VERSION = 1


def resolve_files(patterns: str | os.PathLike | Sequence[str | os.PathLike]) -> list[Path]:
    """Files, folders and globs -> the files they stand for, sorted, each once.

    A folder is searched to the bottom for files of a supported format, hidden ones aside.

    Raises:
        InputError: a path does not exist, a folder or glob holds no readable file, a format is not supported.
    """
    if isinstance(patterns, (str, os.PathLike)):
        patterns = [patterns]
    if not patterns:
        raise InputError("no file was given; name at least one file, folder or glob")
    found: dict[Path, Path] = {}
    for pattern in patterns:
        for path in _resolve_one(os.fspath(pattern)):
            found.setdefault(path.resolve(), path)
    return sorted(found.values())


def _resolve_one(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if path.is_dir():
        files = _files_below(path)
        if not files:
            raise InputError(f"{pattern}: the folder holds no readable file; supported are {supported_formats()}")
    elif path.exists():
        split_suffix(path)
        files = [path]
    elif glob.has_magic(pattern):
        matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
        files = [match for match in matches if match.is_file() and is_supported(match)]
        files += [file for match in matches if match.is_dir() for file in _files_below(match)]
        if not files:
            raise InputError(f"{pattern}: matches no readable file; supported are {supported_formats()}")
    else:
        raise InputError(f"{pattern}: no such file or folder; check the path")
    return files


def _files_below(folder: Path) -> list[Path]:
    def is_hidden(path: Path) -> bool:
        return any(part.startswith(".") for part in path.relative_to(folder).parts)

    return [path for path in folder.rglob("*") if path.is_file() and is_supported(path) and not is_hidden(path)]


def read_documents(
    files: Sequence[str | os.PathLike],
    *,
    text_column_name: str = "text",
    title_column_name: str | None = None,
    encoding: str = "utf-8",
    encoding_errors: str = "strict",
    counts: CorpusCounts | None = None,
) -> Iterator[str]:
    """Yields the documents of `files` one by one, as they are in the file, and keeps `counts` up to date.

    Rows without text (null) and rows without a visible character (blank) are dropped. With a title column a document
    is `title text`, unless the text already begins with its title. `encoding_errors` is strict, replace or ignore.

    Raises:
        InputError: a file cannot be read, decoded or parsed (with its line), has no such column (with those it has),
            or a text is no string.
    """
    if encoding_errors not in ("strict", *REPLACEMENT):
        raise InputError(f"encoding_errors '{encoding_errors}' is not known; use strict, replace or ignore")
    counts = CorpusCounts() if counts is None else counts
    columns = [text_column_name] if title_column_name is None else [text_column_name, title_column_name]
    for path in files:
        file = SourceFile(Path(path), encoding, encoding_errors, counts)
        counts.files += 1
        for place, values in READERS[file.kind](file, columns):
            document = _join(values, columns, counts, file.path, place)
            if document is not None:
                counts.documents += 1
                yield document


def _join(values: Sequence[Any], columns: Sequence[str], counts: CorpusCounts, source: Any, place: str) -> str | None:
    """Text, or text and title -> the document; None, counted, for a row that has no text."""
    for name, value in zip(columns, values, strict=False):
        # NaN is how pandas writes a missing text.
        if not isinstance(value, str) and value is not None and value == value:
            raise InputError(
                f"{source}, {place}: column '{name}' holds {type_name(value)} where text is needed; "
                "choose another column or convert it"
            )
    text, title = values[0], values[1] if len(values) > 1 else None
    if not isinstance(text, str):
        counts.null += 1
        return None
    if not text.strip(INVISIBLE):
        counts.blank += 1
        return None
    if isinstance(title, str) and title.strip(INVISIBLE) and not text.startswith(title):
        return f"{title} {text}"
    return text


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
    streaming: bool = False,
    max_samples: int | None = None,
    cache_dir: str | os.PathLike | None = None,
) -> tuple[Dataset | IterableDataset, CorpusCounts]:
    """Files (`train_file`) or a Hub dataset (`dataset_name`) -> a dataset with the one column "text", and counts.

    Files become an Arrow file in the cache of `datasets`, so the corpus may be larger than memory; a second call with
    the same options and unchanged files, from this process or another, reuses it. With `streaming` nothing but the
    first document is read until the dataset is iterated; its shards are the files, so a worker more than there are
    files stays idle.

    `max_samples` limits the documents of files, and the rows read of a Hub dataset.

    Raises:
        InputError: everything that `resolve_files` and `read_documents` raise, neither or both sources, an unknown
            dataset, a corpus without one usable passage.
    """
    if (train_file is None) == (dataset_name is None):
        raise InputError("give either train_file or dataset_name, to say where the text comes from")
    if max_samples is not None and max_samples < 1:
        raise InputError(
            f"--max_train_samples or --max_eval_samples is {max_samples}; give 1 or more, or leave it out"
        )
    columns = {"text_column_name": text_column_name, "title_column_name": title_column_name}
    if dataset_name is not None:
        return _load_hub_dataset(
            dataset_name, dataset_config_name, split, columns, streaming, max_samples, cache_dir and str(cache_dir)
        )
    files = [path.resolve() for path in resolve_files(train_file)]
    options = {**columns, "encoding": encoding, "encoding_errors": encoding_errors}
    load = _stream_files if streaming else _load_files
    return load(files, options, max_samples, cache_dir)


def _generate_rows(files: list[str], **options) -> Iterator[dict[str, str]]:
    for document in read_documents(files, **options):
        yield {"text": document}


def _text_features():
    from datasets import Features, Value

    return Features({"text": Value("string")})


def _stream_files(files: list[Path], options: dict, max_samples: int | None, cache_dir):
    from datasets import IterableDataset

    counts = CorpusCounts()
    _require_documents(any(True for _ in read_documents(files, counts=counts, **options)), files, counts)
    dataset = IterableDataset.from_generator(
        _generate_rows, features=_text_features(), gen_kwargs={"files": [str(file) for file in files], **options}
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
        _require_documents(counts.documents, files, counts)
        # Before the Arrow file is declared whole, so that whoever finds that file finds the counts too.
        _write_atomically(counts_file, json.dumps(asdict(counts)))

    root = Path(cache_dir or datasets.config.HF_DATASETS_CACHE)
    key = _cache_key(files, {**options, "max_samples": max_samples})
    counts_file = root / CACHE_FOLDER / f"{key}.json"
    try:
        # Our own key: that of `datasets` hashes the code of the generator, and not the state of the files.
        dataset = datasets.Dataset.from_generator(
            generate, features=_text_features(), cache_dir=str(root), fingerprint=key
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


def _cache_key(files: list[Path], options: dict) -> str:
    states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(json.dumps([READER_VERSION, states, options], sort_keys=True).encode()).hexdigest()[:32]


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(text)
    partial.replace(path)


def _require_documents(found: Any, sources: Sequence[Any], counts: CorpusCounts) -> None:
    if not found:
        names = ", ".join(str(source) for source in sources[:3])
        more = f" and {len(sources) - 3} more" if len(sources) > 3 else ""
        raise InputError(
            f"{names}{more}: 0 usable passages ({counts.blank} blank, {counts.null} null); give a corpus that has text"
        )


def _load_hub_dataset(name, config_name, split, columns, streaming, max_samples, cache_dir):
    import datasets

    try:
        dataset = datasets.load_dataset(name, config_name, split=split, streaming=streaming, cache_dir=cache_dir)
    except (OSError, ValueError, datasets.exceptions.DatasetGenerationError) as error:
        reason = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"dataset {name}, split {split}: cannot be loaded ({reason[0]})") from error
    present = dataset.column_names or list(next(iter(dataset), {}))
    wanted = [column for column in columns.values() if column is not None]
    for column in wanted:
        if column not in present:
            raise InputError(
                f"dataset {name}: no column '{column}'; columns present: {', '.join(present)}; "
                "name one of them with --text_column_name"
            )
    dataset = dataset.select_columns(wanted)
    clean = {"batched": True, "remove_columns": wanted, "fn_kwargs": {"columns": wanted, "source": f"dataset {name}"}}
    if streaming:
        if max_samples is not None:
            dataset = dataset.take(max_samples)
        dataset = dataset.map(_clean_batch, features=_text_features(), **clean)
        _require_documents(any(True for _ in dataset), [f"dataset {name}"], CorpusCounts())
        return dataset, CorpusCounts(documents=None)
    dataset = dataset.select(range(min(len(dataset), max_samples or len(dataset))))
    batches = dataset.with_format("arrow").iter(batch_size=10_000)
    counts = CorpusCounts(null=sum(batch.column(wanted[0]).null_count for batch in batches))
    rows = len(dataset)
    dataset = dataset.map(_clean_batch, features=_text_features(), desc="Reading documents", **clean)
    counts.documents = len(dataset)
    counts.blank = rows - counts.documents - counts.null
    _require_documents(counts.documents, [f"dataset {name}"], counts)
    return dataset, counts


def _clean_batch(batch: dict[str, list], *, columns: list[str], source: str) -> dict[str, list[str]]:
    rows = zip(*(batch[column] for column in columns), strict=True)
    documents = [_join(row, columns, CorpusCounts(), source, "a row") for row in rows]
    return {"text": [document for document in documents if document is not None]}
