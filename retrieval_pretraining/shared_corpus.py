"""Which task reads what of a corpus, where many tasks share it.

The files in a row, taken by their size, are cut into as many equal stretches as there are tasks. A task has the files
that lie in its stretch. A file in which several stretches meet is read by all of their tasks, and each has every n-th
part of it: one big file is shared as well as a thousand small ones, and only files at borders are read more than once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from retrieval_pretraining.corpus import read_raw_documents, resolve_files
from retrieval_pretraining.corpus_cache import READER_VERSION, cleaning_fingerprint
from retrieval_pretraining.documents import Document
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.readers import CorpusCounts
from retrieval_pretraining.remote_files import AnyFile, RemoteFile, file_state
from retrieval_pretraining.source_files import file_labels


class Stretch(NamedTuple):
    """Files [begin, end) of a corpus, of whose parts a task has every `sharers`-th from `turn` on."""

    begin: int
    end: int
    turn: int = 0
    sharers: int = 1


@dataclass(frozen=True)
class SharedCorpus:
    """The files of a corpus, as all tasks see them."""

    files: list[AnyFile]
    labels: list[str]  # as one process calls them
    sizes: list[int]  # bytes; 1 for an empty file
    reading: dict[str, Any]  # the other arguments of `read_raw_documents`

    @classmethod
    def from_source(cls, source: dict[str, Any]) -> SharedCorpus:
        """`source` are the arguments of `corpus.iterate_documents`; `InputError` for those that cannot be shared."""
        reading = {name: value for name, value in source.items() if value is not None}
        for name in ("dataset_name", "max_samples"):
            if name in reading:
                raise InputError(f"{name} cannot be shared by tasks: give files, or mine with mine_pairs.py.")
        if "cleaning" in reading and reading["cleaning"].needs_whole_corpus:
            raise InputError(
                "deduplicate_documents cannot be shared by tasks, none of which sees the documents of the others: "
                "mine with mine_pairs.py, or remove the duplicates first."
            )
        for name in ("dataset_config_name", "split", "cache_dir"):
            reading.pop(name, None)
        files = resolve_files(reading.pop("train_file", ()))
        files = [file if isinstance(file, RemoteFile) else Path(os.path.abspath(file)) for file in files]
        list(read_raw_documents([], **reading))  # checks the options
        return cls(files, file_labels(files), [max(1, file_state(file)[1]) for file in files], reading)

    def fingerprint(self) -> dict[str, Any]:
        """What is read. By the state of the files: for their content all of them would have to be read."""
        states = [file_state(file) for file in self.files]
        digest = hashlib.blake2b(json.dumps(states).encode(), digest_size=16).hexdigest()
        reading = {name: value for name, value in self.reading.items() if name != "cleaning"}
        cleaning = cleaning_fingerprint(self.reading.get("cleaning"))
        return {"reader": READER_VERSION, "files": len(self.files), "state": digest, **reading, **cleaning}

    def stretches(self, rank: int, tasks: int) -> list[Stretch]:
        """What a task has, in the order of the corpus: files of its own in one piece, shared ones singly."""
        total, end, found = sum(self.sizes), 0, []
        for number, size in enumerate(self.sizes):
            first = end * tasks // total
            end += size
            last = (end * tasks - 1) // total
            if first == last == rank and found and found[-1].sharers == 1:
                found[-1] = Stretch(found[-1].begin, number + 1)
            elif first <= rank <= last:
                found.append(Stretch(number, number + 1, rank - first, last - first + 1))
        return found

    def read(self, stretch: Stretch, counts: CorpusCounts) -> Iterator[Document]:
        """All documents of the files, also those of parts that others have. Who reads a file first counts it."""
        counts = counts if stretch.turn == 0 else CorpusCounts()
        files = slice(stretch.begin, stretch.end)
        return read_raw_documents(self.files[files], labels=self.labels[files], counts=counts, **self.reading)
