"""Files that lie elsewhere, behind a path such as hf://datasets/me/mine/docs.jsonl: whatever fsspec opens.

A `RemoteFile` answers what the readers ask a `pathlib.Path`. Names and passwords are where the file system looks for
them (`hf auth login`, environment variables).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from retrieval_pretraining.errors import InputError


@dataclass(frozen=True, order=True)
class RemoteFile:
    """One file, by its whole path."""

    url: str

    @property
    def pure_path(self) -> PurePosixPath:
        """Where it is on its file system."""
        return PurePosixPath("/", self.url.partition("://")[2])

    @property
    def name(self) -> str:
        return self.pure_path.name

    @property
    def suffix(self) -> str:
        return self.pure_path.suffix

    @property
    def suffixes(self) -> list[str]:
        return self.pure_path.suffixes

    def open(self, mode: str = "rb") -> BinaryIO:
        system, path = _open_system(self.url)
        return system.open(path, mode)

    def resolve(self) -> RemoteFile:
        return self

    def state(self) -> list[Any]:
        """[path, bytes, what else its file system knows of this version of it]."""
        system, path = _open_system(self.url)
        return [self.url, system.size(path), str(system.ukey(path))]

    def __str__(self) -> str:
        return self.url


AnyFile = Path | RemoteFile


def is_remote(path: str | os.PathLike | RemoteFile) -> bool:
    return isinstance(path, RemoteFile) or "://" in os.fspath(path)


def as_file(path: str | os.PathLike | RemoteFile) -> AnyFile:
    """The file of a path, local or not."""
    if isinstance(path, RemoteFile):
        return path
    return RemoteFile(os.fspath(path)) if is_remote(path) else Path(path)


def file_state(file: AnyFile) -> list[Any]:
    """[path, bytes, time of change]: differs when the file has become another one."""
    if isinstance(file, RemoteFile):
        return file.state()
    status = file.stat()
    return [str(file), status.st_size, status.st_mtime_ns]


def find_remote(pattern: str) -> tuple[list[RemoteFile], PurePosixPath | None]:
    """A path, glob or folder elsewhere -> (its files, the folder that they are all of).

    There is no folder for a single file and for a glob.

    Raises:
        InputError: the file system is not known, is not installed or cannot be reached.
    """
    try:
        system, path = _open_system(pattern)
        if system.isfile(path):
            # A chain such as zip://a.txt::https://... is more than one path.
            return [RemoteFile(pattern if "::" in pattern else system.unstrip_protocol(path))], None
        if system.isdir(path):
            files = [RemoteFile(system.unstrip_protocol(found)) for found in system.find(path)]
            return files, RemoteFile(system.unstrip_protocol(path)).pure_path
        found = system.glob(path) if any(sign in path for sign in "*?[") else []
        return [RemoteFile(system.unstrip_protocol(file)) for file in found if system.isfile(file)], None
    except InputError:
        raise
    except Exception as error:  # every file system has errors of its own
        reason = _first_line(error)
        raise InputError(f"{pattern}: cannot be looked up ({reason}); check path, network and access") from error


def _open_system(url: str):
    from fsspec.core import url_to_fs

    try:
        return url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise InputError(f"{url}: cannot be opened ({_first_line(error)}); check what stands before ://") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
