"""Files, folders and globs -> the files they stand for, and what to call these."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.readers import OPENERS, is_supported, split_suffix, supported_formats


def resolve_files(patterns: str | os.PathLike | Sequence[str | os.PathLike]) -> list[Path]:
    """Files, folders and globs -> the files they stand for, sorted, each once.

    A folder is searched to the bottom for files of a supported format, hidden ones aside. A folder in BEIR layout, the
    given one or one inside it, stands for its corpus: queries and relevance grades are not text to learn from.

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

    files = [path for path in folder.rglob("*") if path.is_file() and is_supported(path) and not is_hidden(path)]
    for inner in {path.parent for path in files}:
        data = _corpus_of_retrieval_set(inner) or _pairs_of_mining_run(inner)
        if data is not None:
            files = [path for path in files if path == data or inner not in path.parents]
    return files


def _corpus_of_retrieval_set(folder: Path) -> Path | None:
    """`corpus.jsonl` beside `queries.jsonl` or `qrels/`, the files perhaps compressed; None for any other folder."""
    corpus, queries = (
        next((path for suffix in ("", *OPENERS) if (path := folder / f"{name}.jsonl{suffix}").is_file()), None)
        for name in ("corpus", "queries")
    )
    return corpus if queries is not None or (folder / "qrels").is_dir() else None


def _pairs_of_mining_run(folder: Path) -> Path | None:
    """The pairs in a folder that `mine_pairs.py` wrote, which also holds its counts; None for any other folder."""
    if not (folder / "_mining.json").is_file():
        return None
    return next((path for ending in ("parquet", "jsonl") if (path := folder / f"pairs.{ending}").is_file()), None)


def file_labels(files: Sequence[str | os.PathLike]) -> list[str]:
    """A name for each file that can be published: its own or, where two share it, the path below all their folders."""
    paths = [Path(os.path.abspath(file)) for file in files]
    uses = Counter(path.name for path in set(paths))
    if max(uses.values(), default=0) < 2:
        return [path.name for path in paths]
    root = os.path.commonpath([path.parent for path in paths])
    return [path.name if uses[path.name] == 1 else path.relative_to(root).as_posix() for path in paths]
