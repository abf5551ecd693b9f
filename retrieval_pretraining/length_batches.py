"""The order of examples in which a batch holds like lengths, so that little of it is padding.

The order is a function of (seed, epoch, lengths) and of nothing else: a resumed run takes it up again, several
processes and workers agree on it, and a batch that is divided among processes or accumulation steps holds the same
examples.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

# Batches are cut from the sorted examples of so many batches, drawn at random: of 100, a batch has the lengths of one
# per cent of the text. More leave less padding, and fewer others for an example to meet.
POOL_BATCHES = 100
_ID_COLUMNS = ("input_ids", "input_ids_pair")


def length_grouped_order(
    lengths: np.ndarray, batch_size: int, *, seed: int, epoch: int, pool_batches: int = POOL_BATCHES
) -> np.ndarray:
    """An order of the examples, int64 `[N]`, of which each `batch_size` in a row have like lengths.

    The examples are shuffled and dealt into pools of `pool_batches` batches; each pool is sorted and cut into batches,
    and the batches of all pools are shuffled. Of each epoch other examples meet, and their order is another. Inside a
    batch lengths rise, so that its parts (those of processes, or of accumulation steps) are as alike as can be.

    Where the batches do not come out even, the one that is short comes last; its lengths are as likely short as long.

    Args:
        lengths: of the examples, in tokens, `[N]`.
        batch_size: examples of a training step: those of all processes and accumulation steps.
        seed, epoch: another order for each.
    """
    lengths = np.asarray(lengths)
    generator = np.random.default_rng((seed % 2**64, epoch))
    order = generator.permutation(len(lengths))
    batches, rest = divmod(len(lengths), batch_size)
    bounds = np.linspace(0, batches, max(1, -(-batches // pool_batches)) + 1).astype(np.int64) * batch_size
    bounds[-1] = len(lengths)
    for begin, end in itertools.pairwise(bounds):
        pool = order[begin:end]
        order[begin:end] = pool[np.argsort(lengths[pool], kind="stable")]
    if rest:
        # The short batch is taken out of the last pool, wherever it lies between two of that pool's other batches.
        begin = bounds[-2] + batch_size * generator.integers((bounds[-1] - bounds[-2]) // batch_size + 1)
        short = order[begin : begin + rest].copy()
        order[begin:-rest] = order[begin + rest :]
        order[-rest:] = short
    whole = order[: batches * batch_size].reshape(batches, batch_size)
    order[: batches * batch_size] = whole[generator.permutation(batches)].ravel()
    return order


def random_order(count: int, *, seed: int, epoch: int) -> np.ndarray:
    """An order of so many examples without regard to anything, int64 `[count]`: that of accelerate's own sampler."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch)).numpy()


def padding_share(lengths: np.ndarray, batch_size: int) -> float:
    """The share of padding among all tokens when examples of these lengths are batched in the order they have.

    `lengths` are `[N]`, or `[N, texts]` where an example has several texts, all padded to the longest of the batch.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    lengths = lengths.reshape(len(lengths), -1)
    begins = np.arange(0, len(lengths), batch_size)
    sizes = np.diff(np.append(begins, len(lengths))) * lengths.shape[1]
    return float(1.0 - lengths.sum() / (np.maximum.reduceat(lengths.max(axis=1), begins) * sizes).sum())


def padding_report(
    lengths: np.ndarray, *, batch_size: int, step_batch_size: int, seed: int, group_by_length: bool
) -> str:
    """One line: how much is padding in batches of like lengths and in random order, the order of the run first.

    Args:
        lengths: as in `padding_share`.
        batch_size: examples that are padded together; `step_batch_size`: those of a training step.
        seed: of the run's order.
        group_by_length: which of the two is the order of the run.
    """
    longest = np.asarray(lengths).reshape(len(lengths), -1).max(axis=1)
    grouped = padding_share(lengths[length_grouped_order(longest, step_batch_size, seed=seed, epoch=0)], batch_size)
    mixed = padding_share(lengths[random_order(len(lengths), seed=seed, epoch=0)], batch_size)
    if group_by_length:
        return f"batches of like lengths: {grouped:.1%} of their tokens are padding, in random order {mixed:.1%}"
    return f"{mixed:.1%} of the tokens of random batches are padding, with group_by_length {grouped:.1%}"


def passage_length(example: dict[str, Any]) -> int:
    """The tokens of an example: of a pair, those of its longer text, to which both are padded."""
    return max(len(example[name]) for name in _ID_COLUMNS if name in example)


def text_lengths(dataset: Any, *, length_column_name: str = "length") -> np.ndarray:
    """The tokens of the one text, or the two, of each example, int64 `[N, texts]`.

    They are taken from the column `length_column_name` where there is one, else from where the lists of ids begin and
    end in a `datasets.Dataset`, in milliseconds for millions of rows; of any other dataset every row is looked at.
    """
    import datasets
    import pyarrow.compute

    if not isinstance(dataset, datasets.Dataset):
        rows = [[len(row[name]) for name in _ID_COLUMNS if name in row] for row in dataset]
        return np.array(rows, dtype=np.int64).reshape(len(dataset), -1)
    if length_column_name in dataset.column_names:
        lengths = [dataset.data.column(length_column_name).to_numpy()]
    else:
        columns = [dataset.data.column(name) for name in _ID_COLUMNS if name in dataset.column_names]
        lengths = [pyarrow.compute.list_value_length(column).to_numpy() for column in columns]
    lengths = np.stack(lengths, axis=1).astype(np.int64)
    if dataset._indices is not None:  # rows were selected or shuffled
        lengths = lengths[dataset._indices.column(0).to_numpy()]
    return lengths


class EpochSampler(Sampler[int]):
    """An order of `count` examples for a `DataLoader`: `order(epoch)`, a permutation. `set_epoch` comes first."""

    def __init__(self, count: int, order: Callable[[int], np.ndarray]):
        self.count = count
        self.order = order
        self.epoch = 0

    def set_epoch(self, epoch: int):
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        order = self.order(self.epoch)
        for begin in range(0, self.count, 100_000):  # not all of a large corpus as Python's numbers
            yield from order[begin : begin + 100_000].tolist()
