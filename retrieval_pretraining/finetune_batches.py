"""Batches in which no text that answers a query is taken for a negative of it.

In a batch the texts of the other pairs are negatives. NO_DUPLICATES of sentence-transformers keeps equal texts apart,
but does not know of a query's second positive, which may stand in a batch as that of another query. Here no two pairs
come together where a text of one answers the query of the other, or is that query.

Shapes: N pairs, K texts of a pair that are not its query.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import numpy as np
from torch.utils.data import BatchSampler


class AnswerSafeBatches(BatchSampler):
    """Batches of row numbers, in another order each epoch; `set_epoch` comes first.

    Args:
        queries: keys, [N]; documents: keys, [N, K].
        answers: key of a query -> keys of all texts that answer it, and its own.
        batch_size: of one process. The negatives of a pair are those of the batches of all `num_processes`, which
            follow each other here.
        seed: the order depends on it and on the epoch alone.

    An epoch has N / (batch_size * num_processes) groups, rounded up; rounded down with `drop_last` and for several
    processes, whose batches must be full. Pairs that fit into none of them, as the many of one query may, are left out
    of this epoch.
    """

    def __init__(
        self,
        queries: np.ndarray,
        documents: np.ndarray,
        answers: Mapping[int, set[int]],
        batch_size: int,
        *,
        num_processes: int = 1,
        drop_last: bool = False,
        seed: int = 42,
    ):
        self.queries, self.documents, self.answers = queries, documents, answers
        self.batch_size, self.num_processes, self.seed = batch_size, num_processes, seed
        self.drop_last = drop_last or num_processes > 1
        self.sampler = range(len(queries))  # accelerate asks for one
        self.epoch, self._planned = 0, (-1, [])

    def set_epoch(self, epoch: int):
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._batches())

    def __iter__(self) -> Iterator[list[int]]:
        yield from self._batches()

    @property
    def left_out(self) -> int:
        """Pairs that are in no batch of this epoch."""
        return len(self.queries) - sum(map(len, self._batches()))

    def _batches(self) -> list[list[int]]:
        if self._planned[0] != self.epoch:
            size = self.batch_size * self.num_processes
            groups = self._groups(size)
            parts = [group[at : at + self.batch_size] for group in groups for at in range(0, size, self.batch_size)]
            self._planned = self.epoch, [part for part in parts if part]
        return self._planned[1]

    def _groups(self, size: int) -> list[list[int]]:
        """Greedily, in random order; what does not fit into a group waits for the next one.

        Of each query at most one row waits: the others stand behind it, or a query with thousands of answers would
        have all of them tried for every group.
        """
        count = len(self.queries)
        order = np.random.default_rng([self.seed, self.epoch]).permutation(count).tolist()
        coming = enumerate(order)
        waiting: list[tuple[int, int]] = []  # (place in the order, row)
        behind: dict[int, deque[tuple[int, int]]] = {}  # a query of which a row waits -> its further rows
        groups: list[list[int]] = []
        most = count // size if self.drop_last else -(-count // size)
        while len(groups) < most:
            group: list[int] = []
            texts: set[int] = set()
            answers: set[int] = set()
            first, waiting = deque(sorted(waiting)), []
            while len(group) < size:
                is_new = not first
                place, row = next(coming, (-1, -1)) if is_new else first.popleft()
                if row == -1:
                    break
                query = int(self.queries[row])
                if is_new and query in behind:
                    behind[query].append((place, row))
                    continue
                own_texts, own_answers = self.documents[row].tolist(), self.answers[query]
                if answers.isdisjoint(own_texts) and texts.isdisjoint(own_answers):
                    group.append(row)
                    texts.update(own_texts)
                    answers |= own_answers
                    if behind.get(query):
                        waiting.append(behind[query].popleft())
                    else:
                        behind.pop(query, None)
                else:
                    waiting.append((place, row))
                    behind.setdefault(query, deque())
            waiting += first
            if not group:
                break
            if len(group) == size or not self.drop_last:
                groups.append(group)
        return groups
