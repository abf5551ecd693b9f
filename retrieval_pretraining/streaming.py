"""Batches from text that is read while training: larger than memory, each passage once a pass, resumable to the batch.

The text is divided among streams, one for each process and dataloader worker; the n-th document belongs to stream
n % streams. A stream reads on and on, pass after pass. It gathers a block of passages, shuffles it, sorts it by
length, cuts it into batches, and puts these in a random order that all streams share: what all processes compute in a
step is of like lengths. A block ends where a pass ends, so a pass has each passage exactly once, and no batch is
filled up with others.

Batch number k is a function of (text, settings, k). Where its block begins is saved with a checkpoint, so a resumed
run reads on to that document, tokenises one block, and has the batches that the run would have had.
"""

from __future__ import annotations

import copy
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from .errors import InputError
from .length_batches import passage_length
from .passages import encode_documents

if TYPE_CHECKING:
    from datasets import IterableDataset

logger = logging.getLogger(__name__)

BLOCK = "stream_block"  # what a batch says about the block it is from, beside what the model takes
_DOCUMENTS_AT_ONCE = 64


@dataclass
class PassageStream:
    """Text that is read while training.

    Args:
        documents: a `datasets.IterableDataset` with a column `text`, or, without `encode`, of passages.
        encode: texts -> passages, as `encode_documents` gives them.
        shuffle_buffer_size: passages among which the order is random; 1: that of the text.
    """

    documents: IterableDataset
    encode: Callable[[list[str]], dict[str, list]] | None = None
    shuffle_buffer_size: int = 10_000

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All passages, in the order of the text."""
        for document in self.documents:
            yield from (passage for _, _, passage in self.passages([(0, document)]))

    def passages(self, documents: list[tuple[int, dict]]) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """(number of the document, number of the passage in it, passage) of numbered documents."""
        if self.encode is None:
            yield from ((number, 0, document) for number, document in documents)
            return
        encoded = self.encode([document["text"] for _, document in documents])
        last, place = None, 0
        for document, input_ids, word_ids in zip(encoded["document"], encoded["input_ids"], encoded["word_ids"]):
            place = place + 1 if document == last else 0
            last = document
            # Arrays: a block of lists of Python's numbers would take ten times the memory.
            passage = {"input_ids": np.array(input_ids, np.int32), "word_ids": np.array(word_ids, np.int32)}
            yield documents[document][0], place, passage


def stream_documents(
    documents: IterableDataset, tokenizer: Any, *, shuffle_buffer_size: int = 10_000, **options: Any
) -> PassageStream:
    """A stream of texts -> a stream of passages; `options` are those of `encode_documents`."""
    return PassageStream(documents, partial(encode_documents, tokenizer=tokenizer, **options), shuffle_buffer_size)


class Block(NamedTuple):
    """Where a block begins: the number of its first batch in its stream, and the passage that comes first in it."""

    batch: int = 0
    epoch: int = 0  # passes over the text that are behind
    document: int = 0
    passage: int = 0  # of that document


class StreamBatch(NamedTuple):
    passages: list[dict[str, Any]]
    stream: int
    block: Block


class StreamBatches(Dataset):
    """Batch number -> `StreamBatch`, for one process. Numbers that rise are served as they are read.

    Args:
        source: the text.
        batch_size: passages of a batch, at most.
        seed: of the order.
        num_streams: of this process: its dataloader workers, or 1.
        process_index, num_processes: which part of the text is this process's own.
        group_by_length: like lengths in a batch.
        shuffle: False: the order of the text.
        drop_last: leave out passages of which there are too few for a whole batch, at the end of each pass.
        show_progress: a bar where a resumed run reads on to where it was.
    """

    def __init__(
        self,
        source: PassageStream,
        batch_size: int,
        *,
        seed: int,
        num_streams: int = 1,
        process_index: int = 0,
        num_processes: int = 1,
        group_by_length: bool = True,
        shuffle: bool = True,
        drop_last: bool = False,
        show_progress: bool = False,
    ):
        self.source = source
        self.batch_size = batch_size
        self.seed = seed
        self.num_streams = num_streams
        self.process_index = process_index
        self.num_processes = num_processes
        self.shuffle = shuffle and source.shuffle_buffer_size > 1
        self.group_by_length = group_by_length and self.shuffle
        self.drop_last = drop_last
        self.show_progress = show_progress
        self.blocks: dict[int, Block] = {}  # of each stream, the last one that is known
        self._open: dict[int, tuple[int, Iterator[StreamBatch]]] = {}

    @property
    def _block_size(self) -> int:
        return self.batch_size * max(1, round(self.source.shuffle_buffer_size / self.batch_size))

    def dataloader(self, total: int, collator: Callable, **options: Any) -> DataLoader:
        """The first `total` batches, collated. `options` are those of `DataLoader`."""
        return DataLoader(
            self,
            sampler=range(total),
            batch_size=1,
            collate_fn=_StreamCollator(collator),
            worker_init_fn=_one_thread_each,
            **options,
        )

    def __getitem__(self, number: int) -> StreamBatch:
        # Which worker asks for a stream depends on where the run was resumed: a stream goes by the number.
        index, stream = divmod(number, self.num_streams)
        at, batches = self._open.get(stream, (index + 1, None))
        if at > index:
            block = self.blocks.get(stream, Block())
            block = block if block.batch <= index else Block()
            at, batches = block.batch, self._batches(stream, block)
        skipped = self._bar(range(at, index), stream, "going on to the batch where the run stopped", "batches")
        for _ in skipped:
            next(batches)
        batch = next(batches)
        self._open[stream] = (index + 1, batches)
        return batch

    # --- Reading --------------------------------------------------------------------------------------------------

    def _batches(self, stream: int, start: Block) -> Iterator[StreamBatch]:
        """The endless batches of a stream from the beginning of a block on."""
        batch, epoch, document, passage = start
        while True:
            passages = self._passages(stream, epoch, document, passage)
            gathered = list(itertools.islice(passages, self._block_size))
            first, ahead = batch, []
            while gathered:
                block = Block(batch, epoch, *gathered[0][:2])
                for rows in self._arranged([row for _, _, row in gathered], stream, block):
                    yield StreamBatch(rows, stream, block)
                    batch += 1
                    # The next block is read piece by piece, so that nobody waits for all of it.
                    ahead += itertools.islice(passages, self.batch_size)
                gathered, ahead = ahead, []
            if batch == first and (document, passage) == (0, 0):
                raise InputError(
                    f"The text has too few passages for {self.num_processes * self.num_streams} processes and workers "
                    f"with batches of {self.batch_size}: lower --dataloader_num_workers, or leave out --streaming."
                )
            epoch, document, passage = epoch + 1, 0, 0

    def _passages(self, stream: int, epoch: int, document: int, passage: int) -> Iterator[tuple[int, int, dict]]:
        """The passages of a stream in one pass, numbered, from `passage` of `document` on."""
        own = self._own_documents(stream, epoch, document)
        while some := list(itertools.islice(own, _DOCUMENTS_AT_ONCE)):
            for place in self.source.passages(some):
                if place[:2] >= (document, passage):
                    yield place

    def _own_documents(self, stream: int, epoch: int, document: int) -> Iterator[tuple[int, dict]]:
        streams = self.num_processes * self.num_streams
        own = self.process_index * self.num_streams + stream
        documents = self.source.documents
        if self.shuffle and getattr(documents, "num_shards", 1) > 1:
            # A buffer of one: only the order of the files. A dataset of its own, as workers share the epoch of one.
            documents = documents.shuffle(seed=self.seed, buffer_size=1)
            documents.set_epoch(epoch)
        # `iter` leaves the division among workers to us: `datasets` divides files, of which there may be one.
        rows = (dict(zip(batch, row)) for batch in documents.iter(_DOCUMENTS_AT_ONCE) for row in zip(*batch.values()))
        for _ in self._bar(range(document), stream, "reading on to where the run stopped", "documents"):
            next(rows, None)
        for number, row in enumerate(rows, start=document):
            if number % streams == own:
                yield number, row

    def _arranged(self, passages: list[dict], stream: int, block: Block) -> list[list[dict]]:
        """The batches of a block."""
        count = len(passages) // self.batch_size
        if not self.drop_last:
            count = -(-len(passages) // self.batch_size)
        if count == 0:
            return []
        order, turns = np.arange(len(passages)), np.arange(count)
        if self.shuffle:
            generator = np.random.default_rng((self.seed, self.process_index, stream, block.batch))
            order = generator.permutation(order)
            # A key for each number: the numbers are shared by all processes, so are the keys.
            numbers = (block.batch + turns) * self.num_streams + stream
            keys = np.array([np.random.default_rng((self.seed, number)).random() for number in numbers])
            turns = keys.argsort().argsort()
        if self.drop_last:
            order = order[: count * self.batch_size]
        if self.group_by_length:
            lengths = np.array([passage_length(passage) for passage in passages])
            order = order[np.argsort(lengths[order], kind="stable")]
        batches = np.array_split(order, count)  # of nearly equal sizes, not one small one
        return [[passages[place] for place in batches[turn]] for turn in turns]

    def _bar(self, steps: range, stream: int, description: str, unit: str):
        if not (self.show_progress and stream == 0 and len(steps)):
            return steps
        from tqdm.auto import tqdm

        return tqdm(steps, desc=description, unit=f" {unit}", delay=1.0, leave=False)

    # --- Resuming ---------------------------------------------------------------------------------------------------

    def note(self, batch: dict[str, Any]):
        """Takes what a collated batch says about its block out of it, and keeps it."""
        stream, *block = batch.pop(BLOCK).tolist()
        self.blocks[stream] = Block(*block)

    def _layout(self) -> dict[str, int | bool]:
        """What decides where blocks begin."""
        names = ("num_processes", "num_streams", "batch_size", "_block_size", "shuffle", "seed")
        return {name.strip("_"): getattr(self, name) for name in names}

    def _file(self, folder: str | os.PathLike) -> Path:
        return Path(folder) / f"stream_{self.process_index}.json"

    def save(self, folder: str | os.PathLike):
        """Writes where the blocks begin that the last batches came from."""
        content = {
            "layout": self._layout(),
            "blocks": {stream: block._asdict() for stream, block in self.blocks.items()},
        }
        self._file(folder).write_text(json.dumps(content, indent=2), encoding="utf-8")

    def load(self, folder: str | os.PathLike):
        """Reads it again. Without it a resumed run goes through all batches from the first on, which takes longer."""
        self.blocks = {}
        if not self._file(folder).is_file():
            return
        content = json.loads(self._file(folder).read_text(encoding="utf-8"))
        changed = [name for name, value in self._layout().items() if content["layout"].get(name) != value]
        if changed:
            logger.warning(
                "The run was saved with another %s: the text is now read in another order, in which so many batches "
                "are skipped as were trained on.",
                " and ".join(changed),
            )
            return
        self.blocks = {int(stream): Block(**block) for stream, block in content["blocks"].items()}


class _StreamCollator:
    """A collator for `StreamBatch`; the pass over the text is the epoch of the masks."""

    def __init__(self, collator: Callable):
        self.collator = copy.copy(collator)
        if hasattr(collator, "_epoch"):
            self.collator._epoch = torch.zeros((), dtype=torch.int64)  # its own: workers are in passes of their own

    def __call__(self, batches: list[StreamBatch]) -> dict[str, torch.Tensor]:
        (batch,) = batches
        if hasattr(self.collator, "set_epoch"):
            self.collator.set_epoch(batch.block.epoch)
        return {**self.collator(batch.passages), BLOCK: torch.tensor([batch.stream, *batch.block])}


def _one_thread_each(worker: int):
    # Workers tokenise side by side. Threads of a forked tokenizer are off anyway, with a warning.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
