"""Other text mixed into that of a domain, by share: what keeps a model general while it adapts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from retrieval_pretraining.errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset


def check_shares(shares: Sequence[float], corpora: int):
    """`InputError` unless there is one share above 0 for each corpus, and they leave some for the text itself."""
    if len(shares) != corpora:
        raise InputError(f"--mix_share has {len(shares)} values for {corpora} --mix_file: give one for each.")
    if any(not 0.0 < share < 1.0 for share in shares):
        raise InputError(f"--mix_share is above 0 and below 1, not {' '.join(map(str, shares))}.")
    if sum(shares) >= 1.0:
        raise InputError(f"--mix_share adds up to {sum(shares):g}: leave some for --train_file.")


def mixture(sizes: Sequence[int], shares: Sequence[float], *, seed: int) -> list[np.ndarray]:
    """Which examples of each corpus make an epoch: int64 row numbers, a list for each of `sizes`.

    The first corpus is the text itself: all of its examples, once. Of each other one so many are drawn that they are
    the share of all examples that `shares` gives, one a corpus after the first; of a corpus that has fewer, each comes
    the same number of times, but for one. The same seed draws the same examples.

    Example: 700 examples and a share of .3 for another corpus: 300 of its examples.
    """
    chosen = [np.arange(sizes[0])]
    rest = 1.0 - sum(shares)
    for number, (size, share) in enumerate(zip(sizes[1:], shares, strict=True)):
        generator = np.random.default_rng([seed, number])
        wanted = max(1, round(sizes[0] * share / rest))
        rounds = [generator.permutation(size) for _ in range(-(-wanted // size))]
        chosen.append(np.concatenate(rounds)[:wanted])
    return chosen


def mix(examples: Sequence[Dataset], shares: Sequence[float], *, seed: int) -> Dataset:
    """The datasets of `mixture` as one; the order is left to the sampler."""
    import datasets

    rows = mixture([len(each) for each in examples], shares, seed=seed)
    return datasets.concatenate_datasets([each.select(own) for each, own in zip(examples, rows, strict=True)])
