"""Files, folders and globs -> the files they stand for, and what to call these."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.readers import OPENERS, is_supported, split_suffix, supported_formats
from retrieval_pretraining.remote_files import AnyFile, RemoteFile, find_remote, is_remote


def resolve_files(patterns: str | os.PathLike | Sequence[str | os.PathLike]) -> list[AnyFile]:
    """Files, folders and globs -> the files they stand for, sorted, each once; those that fsspec reads come last.

    A folder is searched to the bottom for files of a supported format, hidden ones aside. A folder in BEIR layout, the
    given one or one inside it, stands for its corpus: queries and relevance grades are not text to learn from.

    Raises:
        InputError: a path does not exist, a folder or glob holds no readable file, a format is not supported.
    """
    if isinstance(patterns, (str, os.PathLike)):
        patterns = [patterns]
    if not patterns:
        raise InputError("no file was given; name at least one file, folder or glob")
    found: dict[AnyFile, AnyFile] = {}
    for pattern in patterns:
        for path in _resolve_remote(str(pattern)) if is_remote(pattern) else _resolve_one(os.fspath(pattern)):
            found.setdefault(path.resolve(), path)
    return sorted(found.values(), key=lambda file: (isinstance(file, RemoteFile), file))


def _resolve_remote(pattern: str) -> list[RemoteFile]:
    files, folder = find_remote(pattern)
    if folder is not None:
        files = _readable({file.pure_path: file for file in files}, folder)
    elif len(files) == 1:
        split_suffix(files[0])
    else:
        files = [file for file in files if is_supported(file)]
    if not files:
        raise InputError(f"{pattern}: no readable file is there; supported are {supported_formats()}")
    return files


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
    return _readable({path: path for path in folder.rglob("*") if path.is_file()}, folder)


def _readable(files: Mapping[PurePath, AnyFile], folder: PurePath) -> list[AnyFile]:
    """Of all the files below a folder, those to read."""

    def is_hidden(path: PurePath) -> bool:
        return any(part.startswith(".") for part in path.relative_to(folder).parts)

    chosen = [path for path in files if is_supported(path) and not is_hidden(path)]
    folders = {above for path in files for above in path.parents}
    for inner in {path.parent for path in chosen}:
        data = _corpus_of_retrieval_set(inner, files, folders) or _pairs_of_mining_run(inner, files)
        if data is not None:
            chosen = [path for path in chosen if path == data or inner not in path.parents]
    return [files[path] for path in chosen]


def _corpus_of_retrieval_set(
    folder: PurePath, files: Mapping[PurePath, AnyFile], folders: set[PurePath]
) -> PurePath | None:
    """`corpus.jsonl` beside `queries.jsonl` or `qrels/`, the files perhaps compressed; None for any other folder."""
    corpus, queries = (
        next((path for suffix in ("", *OPENERS) if (path := folder / f"{name}.jsonl{suffix}") in files), None)
        for name in ("corpus", "queries")
    )
    return corpus if queries is not None or folder / "qrels" in folders else None


def _pairs_of_mining_run(folder: PurePath, files: Mapping[PurePath, AnyFile]) -> PurePath | None:
    """The pairs in a folder that `mine_pairs.py` wrote, which also holds its counts; None for any other folder."""
    if folder / "_mining.json" not in files:
        return None
    return next((path for ending in ("parquet", "jsonl") if (path := folder / f"pairs.{ending}") in files), None)


def file_labels(files: Sequence[str | os.PathLike | RemoteFile]) -> list[str]:
    """A name for each file that can be published: its own or, where two share it, the path below all their folders."""
    paths = [file.pure_path if isinstance(file, RemoteFile) else Path(os.path.abspath(file)) for file in files]
    uses = Counter(path.name for path in set(paths))
    if max(uses.values(), default=0) < 2:
        return [path.name for path in paths]
    root = os.path.commonpath([path.parent for path in paths])
    return [path.name if uses[path.name] == 1 else path.relative_to(root).as_posix() for path in paths]
