"""Which texts answer which query, as far as the training pairs say: what must never be a negative.

Texts are known by a key of 64 bits, so that this holds for millions of pairs. Shapes: N pairs, K texts of a pair that
are not its query.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset

NEGATIVE = "negative_"  # columns of the training examples: negative_1, negative_2 ...


def text_key(text: str) -> int:
    """The same for texts that differ in white space only."""
    return int.from_bytes(hashlib.blake2b(" ".join(text.split()).encode(), digest_size=8).digest(), "little")


def text_keys(texts: Iterable[str]) -> np.ndarray:
    """Keys, uint64 [texts]."""
    return np.fromiter(map(text_key, texts), dtype=np.uint64)


class Relevance:
    """`answers[query key]`: the keys of all its positives, in whichever pair they stand, and of the query itself."""

    def __init__(self, queries: Iterable[int], positives: Iterable[int]):
        self.answers: dict[int, set[int]] = defaultdict(set)
        for query, positive in zip(queries, positives, strict=True):
            self.answers[query] |= {query, positive}

    @classmethod
    def of(cls, pairs: Dataset) -> Relevance:
        """That of a dataset with the columns query and positive."""
        keys = (
            (text_key(query), text_key(positive))
            for batch in pairs.select_columns(["query", "positive"]).iter(1000)
            for query, positive in zip(batch["query"], batch["positive"], strict=True)
        )
        return cls(*zip(*keys, strict=True))


def example_keys(examples: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Of training examples the keys of the queries, uint64 [N], and of the other texts, uint64 [N, K]: the positive
    comes first, then the negatives."""
    columns = ["positive", *negative_columns(examples)]
    queries_N = text_keys(text for batch in examples.iter(1000) for text in batch["query"])
    documents_NK = [text_keys(text for batch in examples.iter(1000) for text in batch[name]) for name in columns]
    return queries_N, np.stack(documents_NK, axis=1)


def negative_columns(examples: Dataset | Sequence[str]) -> list[str]:
    names = getattr(examples, "column_names", examples)
    return [name for name in names if name.startswith(NEGATIVE)]
