"""Mining pairs on many machines: the miner as steps of datatrove, for its local, Slurm and Ray executors.

    for stage in mining_stages({"train_file": "docs"}, MiningSettings(), "outputs/pairs", tasks=8):
        LocalPipelineExecutor(stage.pipeline, tasks=stage.tasks, logging_dir=f"outputs/logs/{stage.name}").run()
    pairs = join_pairs("outputs/pairs")

A task reads its share of the files itself (`shared_corpus.py`) with the readers of this project, so that titles, ids
and bad lines are what they are in `mine_pairs.py`, and mines it part by part. A part is a file, whole or not there: a
task that was killed goes on with the part it was at. Part files are named so that their order is that of the corpus;
joined, they are the pairs of one process. `PairMiner` is the plain step, between any reader and writer of datatrove.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from retrieval_pretraining.corpus_cache import write_atomically
from retrieval_pretraining.documents import Document, require_documents
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.mined_pairs import (
    PART_CHARACTERS,
    STATE_FILE,
    MinedPairs,
    PartMiner,
    begin_folder,
    cut_into_parts,
    finish_folder,
    finished_pairs,
    mining_state,
    save_frequent,
)
from retrieval_pretraining.mining_report import pairs_card
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.pair_files import OUTPUT_FORMATS
from retrieval_pretraining.pair_mining import add_frequencies, gram_document_frequencies, mine_documents
from retrieval_pretraining.readers import CorpusCounts
from retrieval_pretraining.shared_corpus import SharedCorpus, Stretch

try:
    import datatrove.data
    from datatrove.pipeline.base import PipelineStep
except ImportError as error:
    raise ImportError(
        f'mining on many machines needs datatrove ({error}): pip install "retromae-gur[cluster]"'
    ) from error


class Stage(NamedTuple):
    """A pipeline and the number of tasks to run it in, when the stage before it is done."""

    name: str
    pipeline: list[PipelineStep]
    tasks: int


def mining_stages(
    source: dict[str, Any],
    settings: MiningSettings,
    output_dir: str | os.PathLike,
    *,
    tasks: int,
    seed: int = 42,
    output_format: str = "parquet",
    part_characters: int = PART_CHARACTERS,
) -> list[Stage]:
    """All from the documents to the folder that `mined_pairs.mine_to_folder` makes, for any executor of datatrove.

    The stages are "mine" and "join", and for a `max_document_frequency` "count" and "sum" before them. `source` are
    the arguments of `corpus.iterate_documents`, but for Hub datasets and `max_samples`. All machines must see the
    files and `output_dir` under the same path. `part_characters` is what a task mines at once.

    Raises:
        InputError: a setting makes no sense, there are no such files, the folder cannot be written to, or was begun
            with other text, other settings or another number of tasks.
    """
    settings.check()
    if tasks < 1:
        raise InputError(f"tasks is 1 or more, not {tasks}.")
    if output_format not in OUTPUT_FORMATS:
        raise InputError(f"output_format is one of {', '.join(OUTPUT_FORMATS)}, not {output_format}.")
    corpus = SharedCorpus.from_source(source)
    state = mining_state(corpus.fingerprint(), settings, seed, output_format)
    state |= {"tasks": tasks, "part_characters": part_characters}
    output = Path(os.path.abspath(output_dir))
    begin_folder(output, state)
    stages = [
        Stage("mine", [MineShare(corpus, output, state)], tasks),
        Stage("join", [OneTask(join_pairs, output)], 1),
    ]
    if settings.max_document_frequency < 1.0:
        count, add = CountSpans(corpus, output, state), OneTask(sum_spans, output)
        stages = [Stage("count", [count], tasks), Stage("sum", [add], 1), *stages]
    return stages


def join_pairs(output_dir: str | os.PathLike) -> MinedPairs:
    """Joins what the tasks mined to one file of pairs, with `counts.json` and `README.md`, as one process writes them.

    A second call only says what is there. Call it after the last stage: Ray's executor does not raise when a task
    fails.

    Raises:
        InputError: tasks have not finished (which ones), parts are missing, or the files have no document.
    """
    output = Path(output_dir)
    state = _read_state(output)
    target = output / f"pairs.{state['output_format']}"
    pairs = finished_pairs(target)
    if pairs is not None:
        return pairs
    counts, reading = Counter(), CorpusCounts()
    for task in _of_all_tasks(output, "task-{:05d}.json"):
        done = json.loads(task.read_text(encoding="utf-8"))
        counts.update(done["counts"])
        reading.add(CorpusCounts(**done["reading"]))
    require_documents(reading.documents, [f"the files mined into {output}"], reading)
    files = sorted(output.glob("parts/*/part-*.parquet"))
    if len(files) != counts["parts"]:
        raise InputError(
            f"{output / 'parts'} holds {len(files):,} of {counts['parts']:,} parts: remove {output} and the "
            "logging_dir of the executor, and begin again."
        )
    pairs = finish_folder(target, files, counts, reading, MiningSettings(**state["settings"]), show_progress=False)
    write_atomically(output / "README.md", pairs_card(target.name, pairs.counts))
    return pairs


def sum_spans(output_dir: str | os.PathLike):
    """For `max_document_frequency`: what the tasks counted -> the table of the grams that are too frequent."""
    output = Path(output_dir)
    state = _read_state(output)
    target = output / "parts" / "frequent.npy"
    if target.exists() or finished_pairs(output / f"pairs.{state['output_format']}") is not None:
        return
    frequencies, documents = 0, 0
    for file in _of_all_tasks(output, "spans-{:05d}.npz"):
        with np.load(file) as table:
            frequencies = frequencies + table["frequencies"]
            documents += int(table["documents"])
    save_frequent(target, frequencies, documents, MiningSettings(**state["settings"]))


def _read_state(output: Path) -> dict[str, Any]:
    file = output / STATE_FILE
    if not file.exists():
        raise InputError(f"{file} is not there: call mining_stages first, with a folder that all machines share.")
    state = json.loads(file.read_text(encoding="utf-8"))
    if "tasks" not in state:
        raise InputError(f"{output} was begun in one process: go on with mine_pairs.py, or give another folder.")
    return state


def _of_all_tasks(output: Path, name: str) -> list[Path]:
    """The file that each task leaves when it has finished."""
    tasks = _read_state(output)["tasks"]
    files = [output / "parts" / name.format(rank) for rank in range(tasks)]
    missing = [str(rank) for rank, file in enumerate(files) if not file.exists()]
    if missing:
        raise InputError(
            f"{len(missing):,} of {tasks:,} tasks have not finished ({', '.join(missing[:10])}"
            f"{', ...' if len(missing) > 10 else ''}): their logs say why; launch the same again, without the "
            "logging_dir if the executor takes them for completed."
        )
    return files


# --- The steps ----------------------------------------------------------------------------------------------------


class OneTask(PipelineStep):
    """Calls a function on the folder of the pairs."""

    type = "PAIRS"

    def __init__(self, function: Callable[[Path], Any], output: Path):
        self.name = function.__name__
        super().__init__()
        self.function, self.output = function, output

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        with self.track_time("corpus"):
            self.function(self.output)


class _ShareStep(PipelineStep):
    """A step that reads the task's share of the corpus, and leaves a file when it has finished."""

    type = "PAIRS"

    def __init__(self, corpus: SharedCorpus, output: Path, state: dict[str, Any]):
        super().__init__()
        self.corpus, self.output, self.state = corpus, output, state
        self.settings = MiningSettings(**state["settings"])

    def is_done(self, file: Path, tasks: int) -> bool:
        if _read_state(self.output) != self.state:
            raise InputError(f"{self.output} was begun anew with other text or settings: launch this again.")
        if tasks != self.state["tasks"]:
            raise InputError(f"mining_stages got tasks={self.state['tasks']}, the executor {tasks}: use stage.tasks.")
        file.parent.mkdir(exist_ok=True)
        return file.exists() or finished_pairs(self.output / f"pairs.{self.state['output_format']}") is not None

    def parts(self, rank: int, tasks: int, reading: CorpusCounts) -> Iterator[tuple[Stretch, int, list[Document]]]:
        """(stretch, number in the stretch, documents) of each part that the task has."""
        for stretch in self.corpus.stretches(rank, tasks):
            documents = self.corpus.read(stretch, reading)
            for number, part in enumerate(cut_into_parts(documents, self.state["part_characters"])):
                if number % stretch.sharers == stretch.turn:
                    yield stretch, number, part


class MineShare(_ShareStep):
    """Mines the task's share, each part into a file."""

    name = "mine"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        done = self.output / "parts" / f"task-{rank:05d}.json"
        if self.is_done(done, world_size):
            return
        frequent_file = done.with_name("frequent.npy") if self.settings.max_document_frequency < 1.0 else None
        if frequent_file is not None and not frequent_file.exists():
            raise InputError(f"{frequent_file} is not there: run the stages count and sum before this one.")
        reading, total = CorpusCounts(), Counter()
        for stretch, number, part in self.parts(rank, world_size, reading):
            folder = done.with_name(f"{stretch.begin:08d}")
            folder.mkdir(exist_ok=True)
            with self.track_time("part"):
                counts = PartMiner(folder, self.settings, self.state["seed"], frequent_file)(number, part)
            total.update(counts)
            _update_stats(self, counts)
        write_atomically(done, json.dumps({"counts": total, "reading": asdict(reading)}))


class CountSpans(_ShareStep):
    """For `max_document_frequency`: in how many documents of the task's share each gram is."""

    name = "count"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        done = self.output / "parts" / f"spans-{rank:05d}.npz"
        if self.is_done(done, world_size):
            return
        documents = 0

        def tables() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            nonlocal documents
            for _, _, part in self.parts(rank, world_size, CorpusCounts()):
                documents += len(part)
                yield gram_document_frequencies(part, self.settings)

        frequencies = add_frequencies(tables())
        partial = done.with_suffix(".tmp.npz")
        np.savez_compressed(partial, frequencies=frequencies, documents=documents)
        partial.replace(done)
        _update_stats(self, {"documents": documents})


class PairMiner(PipelineStep):
    """Documents of any reader -> a document for each pair, for any writer: `text`, and the rest as metadata.

    A title is looked for in the metadata. The same two texts may come more than once: no task knows the others.
    """

    type, name = "PAIRS", "miner"

    def __init__(self, settings: MiningSettings, *, seed: int = 42):
        super().__init__()
        settings.check()
        if settings.max_document_frequency < 1.0:
            raise InputError("max_document_frequency needs a reading before this one: use mining_stages.")
        self.settings, self.seed = settings, seed

    def run(self, data: Iterable, rank: int = 0, world_size: int = 1) -> Iterator[datatrove.data.Document]:
        numbers = itertools.count()
        for part in cut_into_parts(map(_as_document, data)):
            with self.track_time("part"):
                pairs, counts = mine_documents(part, self.settings, seed=self.seed)
            _update_stats(self, counts)
            for pair in pairs:
                metadata = pair._asdict()
                text = metadata.pop("text")
                yield datatrove.data.Document(text, f"{pair.document_id}/{next(numbers)}", metadata=metadata)


def _as_document(document: datatrove.data.Document) -> Document:
    title = document.metadata.get("title")
    return Document(document.text, title if isinstance(title, str) else None, str(document.id))


def _update_stats(step: PipelineStep, counts: dict[str, int]):
    for name, value in counts.items():
        step.stat_update(name, value=value, unit="part")
