"""A corpus -> a file of pairs: in parts, on several processes, resumed after a kill, cached for the other doors.

The documents are cut into parts of about `PART_CHARACTERS`. One process mines a part and writes it as a whole file, so
at any moment there are finished parts and nothing else, and memory holds a few parts. In the end the parts are joined
into one file, the same two texts being kept once. What comes out depends neither on the number of processes nor on
interruptions.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from retrieval_pretraining.corpus import iterate_documents
from retrieval_pretraining.corpus_cache import CACHE_FOLDER, corpus_fingerprint, write_atomically
from retrieval_pretraining.documents import Document
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.mining_report import mining_report
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.pair_files import OUTPUT_FORMATS, join_parts, write_part
from retrieval_pretraining.pair_mining import add_frequencies, gram_document_frequencies, mine_documents
from retrieval_pretraining.readers import CorpusCounts

if TYPE_CHECKING:
    from datasets import Dataset

PART_CHARACTERS = 2_000_000
# Raise it when the same text and settings would give other pairs than before.
MINER_VERSION = 1
STATE_FILE = "_mining.json"  # `_`: is not pushed
_RESULTS = (*(f"pairs.{ending}" for ending in (*OUTPUT_FORMATS, "tmp")), "counts.json")


@dataclass
class MinedPairs:
    """A file of pairs, and the counts of how it came about (`counts.json`)."""

    file: Path
    counts: dict[str, Any]
    was_there: bool  # nothing had to be mined

    def dataset(self) -> Dataset:
        """The pairs as a dataset with the columns of `pair_mining.Pair`."""
        from datasets import Dataset

        read = Dataset.from_parquet if self.file.suffix == ".parquet" else Dataset.from_json
        return read(str(self.file), cache_dir=str(self.file.parent / ".cache"))


def load_mined_pairs(
    source: dict[str, Any],
    settings: MiningSettings,
    *,
    seed: int = 42,
    num_workers: int = 1,
    cache_dir: str | os.PathLike | None = None,
    say: Callable[[str], None] = print,
    show_progress: bool = True,
) -> MinedPairs:
    """The pairs of a corpus, from the cache if they were mined before. For doors that train on raw documents.

    `source` are the arguments of `corpus.iterate_documents`. The cache goes by the content of the files, the settings
    and the seed; a second call mines nothing and says so.
    """
    import datasets

    state = mining_state(corpus_fingerprint(**source), settings, seed, "parquet")
    key = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:32]
    folder = Path(cache_dir or datasets.config.HF_DATASETS_CACHE) / CACHE_FOLDER / f"pairs-{key}"
    pairs = mine_to_folder(source, folder, settings, seed=seed, num_workers=num_workers, show_progress=show_progress)
    how = "found in the cache, nothing was mined" if pairs.was_there else "mined"
    say(f"pairs: {pairs.counts['pairs']:,} {how} ({folder})")
    return pairs


def mine_to_folder(
    source: dict[str, Any],
    output_dir: str | os.PathLike,
    settings: MiningSettings,
    *,
    seed: int = 42,
    num_workers: int = 1,
    output_format: str = "parquet",
    overwrite: bool = False,
    show_progress: bool = True,
) -> MinedPairs:
    """Mines a corpus into `output_dir`: `pairs.parquet` or `pairs.jsonl`, and `counts.json`.

    `source` are the arguments of `corpus.iterate_documents`. A folder in which the same was mined before is left as it
    is; one in which it was begun is gone on with. With `overwrite` the pairs that were mined there are removed first,
    once it is clear that the text can be opened.

    Raises:
        InputError: a setting makes no sense, the text cannot be read, the folder cannot be written to, or holds the
            pairs of another text or of other settings.
    """
    settings.check()
    if output_format not in OUTPUT_FORMATS:
        raise InputError(f"--output_format is one of {', '.join(OUTPUT_FORMATS)}, not {output_format}.")
    if num_workers < 1:
        raise InputError(f"--num_workers is 1 or more, not {num_workers}.")
    output = Path(output_dir)
    target = output / f"pairs.{output_format}"
    state = mining_state(corpus_fingerprint(**source), settings, seed, output_format)
    if overwrite:
        remove_mined_pairs(output)
    begin_folder(output, state)
    pairs = finished_pairs(target)
    if pairs is not None:
        return pairs
    parts = output / "parts"
    parts.mkdir(exist_ok=True)
    frequent_file = None
    if settings.max_document_frequency < 1.0:
        frequent_file = parts / "frequent.npy"
        if not frequent_file.exists():
            _count_grams(source, frequent_file, settings, num_workers, show_progress)
    mine = PartMiner(parts, settings, seed, frequent_file)
    reading = CorpusCounts()
    counts: Counter = Counter()
    with tqdm(desc="mining", unit=" documents", disable=not show_progress) as progress:
        documents = iterate_documents(**source, counts=reading)
        for part in _in_processes(mine, enumerate(cut_into_parts(documents)), num_workers):
            counts.update(part)
            progress.update(part["documents"])
            progress.set_postfix_str(f"{counts['pairs']:,} pairs", refresh=False)
    files = [mine.file(number) for number in range(counts["parts"])]
    return finish_folder(target, files, counts, reading, settings, show_progress=show_progress)


def finished_pairs(target: Path) -> MinedPairs | None:
    """The pairs of a folder in which nothing is left to do."""
    counts_file = target.parent / "counts.json"
    if not (counts_file.exists() and target.exists()):
        return None
    return MinedPairs(target, json.loads(counts_file.read_text(encoding="utf-8")), was_there=True)


def finish_folder(
    target: Path,
    files: Sequence[Path],
    counts: Counter,
    reading: CorpusCounts,
    settings: MiningSettings,
    *,
    show_progress: bool,
) -> MinedPairs:
    """Joins the files of the parts to `target`, writes `counts.json` beside it, and removes the parts."""
    kept = join_parts(files, target, deduplicate=settings.deduplicate, show_progress=show_progress)
    report = mining_report(counts, reading, kept, settings)
    state = json.loads((target.parent / STATE_FILE).read_text(encoding="utf-8"))
    report["settings"] |= state["corpus"].get("cleaning", {})
    write_atomically(target.parent / "counts.json", json.dumps(report, indent=2, ensure_ascii=False))
    shutil.rmtree(target.parent / "parts")
    return MinedPairs(target, report, was_there=False)


def mining_state(corpus: dict[str, Any], settings: MiningSettings, seed: int, output_format: str) -> dict[str, Any]:
    """What decides what comes out; `corpus` stands for the text."""
    return {
        "corpus": corpus,
        "settings": asdict(settings),
        "seed": seed,
        "output_format": output_format,
        "miner": MINER_VERSION,
        "sentencex": importlib.metadata.version("sentencex"),
    }


def begin_folder(output: Path, state: dict[str, Any]):
    """The folder is ours: new, or begun with the same text and settings."""
    state_file = output / STATE_FILE
    has_pairs = any((output / name).exists() for name in _RESULTS)
    try:
        if state_file.exists() and (has_pairs or any(output.glob("parts/*"))):
            before = json.loads(state_file.read_text(encoding="utf-8"))
            settings = [name for name, value in state["settings"].items() if before["settings"].get(name) != value]
            changed = [name for name, value in state.items() if name != "settings" and before.get(name) != value]
            if settings + changed:
                raise InputError(
                    f"--output_dir {output} holds pairs that were mined otherwise ({', '.join(settings + changed)} "
                    "changed): give another --output_dir, or --overwrite_output_dir True."
                )
        elif has_pairs or ((output / "parts").exists() and not state_file.exists()):
            raise InputError(f"--output_dir {output} holds pairs that were not mined here: give another --output_dir.")
        else:
            write_atomically(state_file, json.dumps(state, indent=2, ensure_ascii=False))
    except OSError as error:
        raise InputError(f"--output_dir {output} cannot be written to: {error.strerror}.") from error


def remove_mined_pairs(output_dir: str | os.PathLike):
    """Removes what `mine_to_folder` wrote, and nothing else."""
    output = Path(output_dir)
    if (output / STATE_FILE).exists():
        for name in (*_RESULTS, STATE_FILE):
            (output / name).unlink(missing_ok=True)
        for folder in ("parts", ".cache"):
            shutil.rmtree(output / folder, ignore_errors=True)


# --- Parts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartMiner:
    """Mines a part into a file of its own, unless that is there. Is sent to the processes, so it holds no table."""

    folder: Path
    settings: MiningSettings
    seed: int
    frequent_file: Path | None

    def file(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.parquet"

    def __call__(self, number: int, documents: list[Document]) -> Counter:
        counts_file = self.file(number).with_suffix(".json")
        if counts_file.exists():
            return Counter(json.loads(counts_file.read_text()))
        frequent = None if self.frequent_file is None else np.load(self.frequent_file, mmap_mode="r")
        pairs, counts = mine_documents(documents, self.settings, seed=self.seed, frequent=frequent)
        counts["parts"] = 1
        write_part(pairs, self.file(number))
        # Last: a part without its counts is mined again.
        write_atomically(counts_file, json.dumps(counts))
        return counts


def cut_into_parts(documents: Iterable[Document], characters: int | None = None) -> Iterator[list[Document]]:
    """The documents in lists of at least so many characters (by default `PART_CHARACTERS`); the last may have less."""
    characters = characters or PART_CHARACTERS
    part, size = [], 0
    for document in documents:
        part.append(document)
        size += len(document.text)
        if size >= characters:
            yield part
            part, size = [], 0
    if part:
        yield part


def _in_processes(function: Callable, tasks: Iterable[tuple], num_workers: int) -> Iterator[Any]:
    """`function(*task)` for each task, in any order; no more tasks are held than the processes are about to need."""
    if num_workers == 1:
        for task in tasks:
            yield function(*task)
        return
    with ProcessPoolExecutor(num_workers, initializer=_end_with_parent) as pool:
        running = set()
        try:
            for task in tasks:
                running.add(pool.submit(function, *task))
                if len(running) >= 2 * num_workers:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        except BrokenProcessPool as error:
            raise InputError(
                "A process that mined was killed, most likely for want of memory; the finished parts are kept: run "
                "the same command again, with a lower --num_workers."
            ) from error
        finally:
            for future in running:
                future.cancel()


def _end_with_parent():
    """Ends this process with the one that started it, also where that was killed and could not say so."""

    def watch():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _count_grams(source: dict, file: Path, settings: MiningSettings, num_workers: int, show_progress: bool):
    """The first reading, for `max_document_frequency`: which grams are frequent, as a table in a file."""
    documents = 0

    def tables(progress: tqdm) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        nonlocal documents
        tasks = ((part, settings) for part in cut_into_parts(iterate_documents(**source)))
        for slots, counts, size in _in_processes(_count_part, tasks, num_workers):
            documents += size
            progress.update(size)
            yield slots, counts

    with tqdm(desc="counting spans", unit=" documents", disable=not show_progress) as progress:
        frequencies = add_frequencies(tables(progress))
    save_frequent(file, frequencies, documents, settings)


def save_frequent(file: Path, frequencies: np.ndarray, documents: int, settings: MiningSettings):
    """The table of the grams that are in too many of the documents, as `PartMiner` reads it."""
    partial = file.with_suffix(".tmp.npy")
    np.save(partial, frequencies > settings.max_document_frequency * documents)
    partial.replace(file)


def _count_part(documents: list[Document], settings: MiningSettings) -> tuple[np.ndarray, np.ndarray, int]:
    return *gram_document_frequencies(documents, settings), len(documents)
