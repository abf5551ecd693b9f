"""Files of pairs: one for each part, and the one they are joined to, in which the same two texts are kept once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from retrieval_pretraining.pair_mining import Pair, Pairs

OUTPUT_FORMATS = ("parquet", "jsonl")
PAIR_SCHEMA = pa.schema([(name, pa.string()) for name in Pair._fields])
_KEY = pa.field("key", pa.uint64())
_KEYS_AT_ONCE = 16_000_000
_ROWS_AT_ONCE = 16_384


def pair_key(text: str, text_pair: str) -> int:
    """The same 64 bits for the same two texts, whichever comes first and whatever their case."""
    low, high = sorted((text.lower(), text_pair.lower()))
    # The length, for either may hold line breaks: "a" and "b\nc" are not "a\nb" and "c".
    digest = hashlib.blake2b(f"{len(low)} {low}{high}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def write_part(pairs: Pairs, file: Path):
    """A whole file or none."""
    keys = map(pair_key, pairs.columns["text"], pairs.columns["text_pair"])
    columns = [pa.array(column, pa.string()) for column in pairs.columns.values()]
    table = pa.table([*columns, pa.array(list(keys), pa.uint64())], schema=PAIR_SCHEMA.append(_KEY))
    partial = file.with_suffix(".tmp")
    pq.write_table(table, partial, compression="zstd")
    partial.replace(file)


def join_parts(files: Sequence[Path], target: Path, *, deduplicate: bool, show_progress: bool = True) -> int:
    """Writes the pairs of all parts, in their order, to `target` (.parquet or .jsonl); the number of pairs.

    With `deduplicate` the first of several pairs of the same two texts is kept. Memory: a byte for each pair of the
    corpus, and a bounded part of the keys.
    """
    kept = _first_ones(files) if deduplicate else None
    partial = target.with_suffix(".tmp")
    written = begin = 0
    with _WRITERS[target.suffix](partial) as write:
        for file in tqdm(files, desc="joining parts", unit=" parts", disable=not show_progress or len(files) < 50):
            for batch in pq.ParquetFile(file).iter_batches(_ROWS_AT_ONCE, columns=PAIR_SCHEMA.names):
                end = begin + len(batch)
                if kept is not None:
                    batch = batch.filter(pa.array(kept[begin:end]))
                begin = end
                written += len(batch)
                write(batch)
    partial.replace(target)
    return written


def read_pairs(file: Path) -> Iterator[Pair]:
    """The pairs of a joined file, one by one."""
    if file.suffix == ".jsonl":
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                yield Pair(**json.loads(line))
    else:
        for batch in pq.ParquetFile(file).iter_batches(_ROWS_AT_ONCE):
            yield from (Pair(**row) for row in batch.to_pylist())


def _first_ones(files: Sequence[Path]) -> np.ndarray:
    """Which pairs have a key that none before them has."""
    total = sum(pq.ParquetFile(file).metadata.num_rows for file in files)
    kept = np.zeros(total, dtype=bool)
    # Keys are looked at in rounds, each for those with one remainder, so that they never are in memory all together.
    rounds = total // _KEYS_AT_ONCE + 1
    for remainder in range(rounds):
        places, keys, begin = [], [], 0
        for part in _part_keys(files):
            chosen = np.flatnonzero(part % np.uint64(rounds) == remainder)
            places.append(begin + chosen)
            keys.append(part[chosen])
            begin += len(part)
        if places:
            _, first = np.unique(np.concatenate(keys), return_index=True)
            kept[np.concatenate(places)[first]] = True
    return kept


def _part_keys(files: Sequence[Path]) -> Iterator[np.ndarray]:
    for file in files:
        yield pq.read_table(file, columns=["key"]).column("key").to_numpy()


class _ParquetOutput:
    def __init__(self, file: Path):
        self.file = file

    def __enter__(self):
        self.writer = pq.ParquetWriter(self.file, PAIR_SCHEMA, compression="zstd")
        return self.writer.write_batch

    def __exit__(self, *error):
        self.writer.close()


class _JsonLinesOutput:
    def __init__(self, file: Path):
        self.file = file

    def __enter__(self):
        self.stream = self.file.open("w", encoding="utf-8", newline="\n")
        return self.write

    def write(self, batch: pa.RecordBatch):
        self.stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in batch.to_pylist())

    def __exit__(self, *error):
        self.stream.close()


_WRITERS = {".parquet": _ParquetOutput, ".jsonl": _JsonLinesOutput}
