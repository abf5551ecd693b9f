"""Which of the possible pairs of a document are taken, when a sentence may be used a few times only.

The possible pairs are given as lists of sentences of which any leader goes with any later member. A long list stands
for a quadratic number of pairs, so they are not all looked at: documents with few pairs are enumerated, of the others
random members are proposed to each other, round by round, until used-up sentences have left lists short enough to
enumerate. What comes out is random under the seed and maximal: every possible pair that was left out has a sentence
that has been used as often as it may be. It depends on the document alone, not on those mined beside it.

Shape suffixes: S sentences, D documents, L lists, M members (of all lists, list by list), P pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrieval_pretraining.span_join import SentenceBlock, SharedGrams, expand, mixed

UNLIMITED = 2**31 - 1
# Documents up to this many possible pairs a sentence are enumerated at once.
_ENUMERATED_PER_SENTENCE = 64
_MAX_ROUNDS = 200


@dataclass
class PairLists:
    """Lists of sentences of one document each, leaders first; `list_M` ascends from 0 without gaps."""

    member_M: np.ndarray
    list_M: np.ndarray
    leaders_L: np.ndarray

    @classmethod
    def from_members(cls, member, list_, leader_S: np.ndarray | None = None) -> PairLists:
        """Members sorted by list, then by place in the text. Lists without a pair are left out."""
        leader = np.ones(len(member), dtype=bool) if leader_S is None else leader_S[member]
        if leader_S is not None:
            order = np.argsort(2 * list_ + ~leader, kind="stable")
            member, list_, leader = member[order], list_[order], leader[order]
        size_L = np.bincount(list_)
        leaders_L = np.bincount(list_[leader], minlength=len(size_L))
        useful_L = (leaders_L > 0) & (size_L > 1)
        kept = useful_L[list_]
        return cls(member[kept], (np.cumsum(useful_L) - 1)[list_[kept]], leaders_L[useful_L])

    @classmethod
    def from_grams(cls, block: SentenceBlock, grams: SharedGrams, leader_S=None) -> PairLists:
        """One list for each shared gram, but for grams that only repeat the list of the one a character before."""
        kept = ~_repeats(block, grams)[grams.gram_E]
        sentence, gram = block.sentence_C[grams.position_E[kept]].astype(np.int64), grams.gram_E[kept]
        first = np.ones(len(gram), dtype=bool)
        first[1:] = (gram[1:] != gram[:-1]) | (sentence[1:] != sentence[:-1])
        return cls.from_members(sentence[first], gram[first], leader_S)

    @classmethod
    def joined(cls, one: PairLists, other: PairLists) -> PairLists:
        return cls(
            np.concatenate([one.member_M, other.member_M]),
            np.concatenate([one.list_M, other.list_M + len(one.leaders_L)]),
            np.concatenate([one.leaders_L, other.leaders_L]),
        )

    @property
    def size_L(self) -> np.ndarray:
        return np.bincount(self.list_M, minlength=len(self.leaders_L))

    @property
    def pairs_L(self) -> np.ndarray:
        """How many pairs each list stands for."""
        return self.leaders_L * self.size_L - self.leaders_L * (self.leaders_L + 1) // 2

    @property
    def first_M(self) -> np.ndarray:
        """The index of each list's first member."""
        return np.cumsum(self.size_L) - self.size_L

    def only(self, kept_M: np.ndarray) -> PairLists:
        """Without the other members, and without the lists that then have no pair."""
        rank_M = np.arange(len(self.member_M)) - self.first_M[self.list_M]
        leader_M = kept_M & (rank_M < self.leaders_L[self.list_M])
        leaders_L = np.bincount(self.list_M[leader_M], minlength=len(self.leaders_L))
        useful_L = (leaders_L > 0) & (np.bincount(self.list_M[kept_M], minlength=len(leaders_L)) > 1)
        kept_M = kept_M & useful_L[self.list_M]
        return PairLists(self.member_M[kept_M], (np.cumsum(useful_L) - 1)[self.list_M[kept_M]], leaders_L[useful_L])

    def enumerate(self) -> tuple[np.ndarray, np.ndarray]:
        """All pairs, those of several lists several times."""
        rank_M = np.arange(len(self.member_M)) - self.first_M[self.list_M]
        later_M = self.size_L[self.list_M] - 1 - rank_M
        number, other = expand(
            np.arange(1, len(self.member_M) + 1), np.where(rank_M < self.leaders_L[self.list_M], later_M, 0)
        )
        return self.member_M[number], self.member_M[other]

    def propose(self, random_M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A random pair for each member: a leader gets any other member, one that is none gets a leader."""
        rank_M = np.arange(len(self.member_M)) - self.first_M[self.list_M]
        leaders_M, size_M = self.leaders_L[self.list_M], self.size_L[self.list_M]
        is_leader_M = rank_M < leaders_M
        partner_M = (random_M % np.where(is_leader_M, size_M - 1, leaders_M).astype(np.uint64)).astype(np.int64)
        partner_M += is_leader_M & (partner_M >= rank_M)
        return self.member_M, self.member_M[self.first_M[self.list_M] + partner_M]


def _repeats(block: SentenceBlock, grams: SharedGrams) -> np.ndarray:
    """Whether all places of a gram follow, a character on, those of another gram that has no more: then both have the
    same sentences. It is so for all but the first of the grams of a longer common text."""
    gram_C = np.full(len(block.character_C) + 1, -1, dtype=np.int64)
    gram_C[grams.position_E] = grams.gram_E
    before_E = np.where(
        grams.position_E > block.start_S[block.sentence_C[grams.position_E]], gram_C[grams.position_E - 1], -1
    )
    count_G = np.bincount(grams.gram_E)
    if not len(count_G):
        return np.zeros(0, dtype=bool)
    first_G = np.cumsum(count_G) - count_G
    lowest_G, highest_G = np.minimum.reduceat(before_E, first_G), np.maximum.reduceat(before_E, first_G)
    return (lowest_G >= 0) & (lowest_G == highest_G) & (count_G[lowest_G] == count_G)


@dataclass
class Selection:
    """The pairs that were taken, `one_P` < `other_P`, and what became of the others that were looked at."""

    one_P: np.ndarray
    other_P: np.ndarray
    candidates: int
    over_sentence_cap: int
    over_document_cap: int


def select_pairs(
    lists: PairLists,
    *,
    document_S: np.ndarray,
    seed_D: np.ndarray,
    uses_S: np.ndarray,
    uses_D: np.ndarray,
) -> Selection:
    """Takes pairs in random order while both sentences, and their document, may still be used.

    Args:
        document_S: the number of each sentence's document, ascending.
        seed_D: 64 random bits of each document.
        uses_S, uses_D: how often each may be used; `UNLIMITED` for no limit.
    """
    budget = _Budget(document_S, uses_S, uses_D)
    sentences_D = np.bincount(document_S, minlength=len(seed_D))
    within_S = (np.arange(len(document_S)) - (np.cumsum(sentences_D) - sentences_D)[document_S]).astype(np.uint64)
    least_uses_D = uses_D.copy()
    np.minimum.at(least_uses_D, document_S, uses_S)
    chosen, candidates = [], 0
    for number in range(_MAX_ROUNDS):
        pairs_D = np.bincount(document_S[lists.member_M[lists.first_M]], lists.pairs_L, minlength=len(seed_D))
        enumerated_D = (pairs_D <= _ENUMERATED_PER_SENTENCE * sentences_D) | (least_uses_D == UNLIMITED)
        if number == _MAX_ROUNDS - 1:
            enumerated_D[:] = True
        enumerated_M = enumerated_D[document_S[lists.member_M]]
        few, many = lists.only(enumerated_M), lists.only(~enumerated_M)
        random_M = _list_hashes(many, within_S, seed_D[document_S[many.member_M]], number)
        pairs = [np.stack(few.enumerate()), np.stack(many.propose(random_M))]
        one_P, other_P = _each_once(np.concatenate(pairs, axis=1), len(document_S), without=chosen)
        priority_P = mixed(mixed(seed_D[document_S[one_P]] + within_S[one_P]) + within_S[other_P])
        order = np.argsort(priority_P)
        taken = budget.take(one_P[order], other_P[order])
        candidates += len(one_P)
        chosen.append(np.stack([one_P[order][taken], other_P[order][taken]]))
        lists = many.only(budget.has_left()[many.member_M])
        if not len(lists.member_M):
            break
    one_P, other_P = np.concatenate(chosen, axis=1)
    order = np.lexsort((other_P, one_P))
    return Selection(one_P[order], other_P[order], candidates, budget.over_sentence_cap, budget.over_document_cap)


class _Budget:
    """How often each sentence and each document may still be used."""

    def __init__(self, document_S, uses_S, uses_D):
        self.document_S = document_S
        self.left_S, self.left_D = uses_S.tolist(), uses_D.tolist()
        self.over_sentence_cap = self.over_document_cap = 0

    def take(self, one_P, other_P) -> np.ndarray:
        """Goes through the pairs in their order; says which were taken."""
        taken_P = np.zeros(len(one_P), dtype=bool)
        document_P = self.document_S[one_P]
        waiting = np.arange(len(one_P))
        while len(waiting):
            # Most of many pairs have a sentence that is used up by then: these are sifted out in between.
            sentence_left = np.array(self.left_S)
            open_ = (sentence_left[one_P[waiting]] > 0) & (sentence_left[other_P[waiting]] > 0)
            self.over_sentence_cap += len(open_) - int(open_.sum())
            waiting = waiting[open_]
            now, waiting = np.split(waiting, [len(self.left_S)])
            taken_P[now] = self._take_one_by_one(one_P[now], other_P[now], document_P[now])
        return taken_P

    def _take_one_by_one(self, one_P, other_P, document_P) -> list[bool]:
        left_S, left_D, taken = self.left_S, self.left_D, []
        for one, other, document in zip(one_P.tolist(), other_P.tolist(), document_P.tolist(), strict=True):
            fits = left_S[one] > 0 and left_S[other] > 0 and left_D[document] > 0
            if fits:
                left_S[one] -= 1
                left_S[other] -= 1
                left_D[document] -= 1
            elif left_S[one] > 0 and left_S[other] > 0:
                self.over_document_cap += 1
            else:
                self.over_sentence_cap += 1
            taken.append(fits)
        return taken

    def has_left(self) -> np.ndarray:
        """Whether each sentence may still be in a pair."""
        return (np.array(self.left_S) > 0) & (np.array(self.left_D) > 0)[self.document_S]


def _list_hashes(lists: PairLists, within_S, seed_M, number: int) -> np.ndarray:
    """64 random bits for each member, which depend on its document and its list alone."""
    first_M = within_S[lists.member_M[lists.first_M]][lists.list_M]
    size_M = lists.size_L[lists.list_M].astype(np.uint64)
    hashes = seed_M + np.uint64(number)
    for part in (within_S[lists.member_M], first_M, size_M):
        hashes = mixed(hashes + part)
    return hashes


def _each_once(pairs: np.ndarray, sentences: int, without: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Sorted pairs with the lower sentence first, each once, without those given."""
    keys = np.sort(np.minimum(*pairs) * sentences + np.maximum(*pairs))
    keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)]]  # sooner than np.unique, which hashes
    for known in without:
        keys = keys[~np.isin(keys, known[0] * sentences + known[1])]
    return keys // sentences, keys % sentences
