"""Which sentences of a document share a heavy piece of text: exactly, and in time linear in the text.

The weight of a text is the sum over its characters: 10 for a CJK letter, 3 for another letter, 1 for anything else.
Two sentences belong together when their heaviest common substring, letters in lower case, weighs at least
`min_span_weight`, or `min_span_weight_short` if one of the sentences is short (GUR, arXiv 2306.10056, section 3.1;
whole numbers for the paper's tenths, so that ten Latin letters weigh exactly as much as three Han characters).

Comparing all pairs is quadratic. But take, from every position of a sentence, the shortest substring that reaches the
threshold: its minimal gram. It depends on the characters alone, so two sentences have a common substring of at least
that weight if and only if they have a common minimal gram. Finding the pairs is then a join on equal grams: hash them,
sort the hashes, and compare the characters of those that fall together.

Shape suffixes: C characters, S sentences, E entries (positions whose gram occurs elsewhere in the document), G grams,
M members (sentences that have a gram, listed gram by gram), P pairs of sentences.
"""

from __future__ import annotations

import functools
import unicodedata
from dataclasses import dataclass

import numpy as np

# Code points above have no letter of another weight and no lower case (Unicode 17: planes 4 and up are not letters).
_TABLE_SIZE = 0x40000
_BASE = 0x9E3779B97F4A7C15
_INVERSE_BASE = pow(_BASE, -1, 2**64)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_EXPANSION_SLICE = 4_000_000


@dataclass(frozen=True)
class SpanRule:
    """What makes two sentences a pair. All are weights: 10 a CJK letter, 3 another letter, 1 anything else."""

    min_span_weight: int = 30
    min_span_weight_short: int = 20
    max_short_sentence_weight: int = 150


@functools.cache
def _character_tables() -> tuple[np.ndarray, np.ndarray]:
    """(lower case, weight) of every code point.

    Lower case is taken letter by letter and only where it is one character long, so that positions stay what they are.
    A CJK letter is one that Unicode calls wide: full-width Latin letters are not.
    """
    lower = np.arange(0x110000, dtype=np.uint32)
    weight = np.ones(0x110000, dtype=np.uint8)
    for code in range(_TABLE_SIZE):
        character = chr(code)
        lowered = character.lower()
        if len(lowered) == 1:
            lower[code] = ord(lowered)
        if unicodedata.category(character)[0] == "L":
            weight[code] = 10 if unicodedata.east_asian_width(character) == "W" else 3
    return lower, weight


def text_weight(text: str) -> int:
    """The weight of a text in the units of `SpanRule`."""
    return int(_character_tables()[1][_codes(text)].sum())


def normalise(text: str) -> str:
    """What is compared in place of `text`, character by character: lower case."""
    return _character_tables()[0][_codes(text)].tobytes().decode("utf-32-le", "surrogatepass")


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")


def _powers(size: int) -> tuple[np.ndarray, np.ndarray]:
    """(base^i, base^-i) modulo 2^64 for i up to `size` and beyond."""
    return _power_tables(1 << max(size.bit_length(), 17))


@functools.lru_cache(maxsize=1)
def _power_tables(size: int) -> tuple[np.ndarray, np.ndarray]:
    tables = np.ones((2, size), dtype=np.uint64)
    tables[0, 1:], tables[1, 1:] = np.uint64(_BASE), np.uint64(_INVERSE_BASE)
    np.multiply.accumulate(tables, axis=1, out=tables)
    return tables[0], tables[1]


class SentenceBlock:
    """The sentences of some documents side by side in arrays.

    Args:
        sentences: S texts, those of a document next to each other.
        document_S: the number of each one's document, ascending.
    """

    def __init__(self, sentences: list[str], document_S: np.ndarray):
        self._length_S = length_S = np.fromiter(map(len, sentences), dtype=np.int64, count=len(sentences))
        self.document_S = document_S
        self.end_S = np.cumsum(length_S)
        self.start_S = self.end_S - length_S
        self.sentence_C = self.spread(np.arange(len(sentences), dtype=np.int32))
        lower, weight = _character_tables()
        code_C = _codes("".join(sentences)).astype(np.intp)  # the type of an index: with others numpy takes longer
        self.character_C = lower[code_C]
        weight_C = weight[code_C]
        self.weight_before_C = np.zeros(len(code_C) + 1, dtype=np.int32)
        np.cumsum(weight_C, out=self.weight_before_C[1:])
        self.weight_S = self.weight_before_C[self.end_S] - self.weight_before_C[self.start_S]
        self._weight_until_C = self.spread(self.weight_before_C[self.end_S])
        # The first end of at least each weight, to be looked up: a binary search for each character takes longer.
        self._end_of_weight = np.repeat(np.arange(1, len(code_C) + 1, dtype=np.int32), weight_C)
        self._document_hash_C = self.spread(mixed(document_S.astype(np.uint64)))
        power_C, self._inverse_C = (powers[: len(code_C)] for powers in _powers(len(code_C)))
        self._prefix_hash_C = np.zeros(len(code_C) + 1, dtype=np.uint64)
        np.cumsum((self.character_C + np.uint32(1)) * power_C, out=self._prefix_hash_C[1:])

    def spread(self, value_S: np.ndarray) -> np.ndarray:
        """The value of each character's sentence."""
        return np.repeat(value_S, self._length_S)

    def minimal_grams(self, threshold: int) -> tuple[np.ndarray, np.ndarray]:
        """(fits_C, end_C): the end of the shortest substring of at least `threshold` from each position, where there
        is one in the sentence; any number elsewhere."""
        reached_C = self.weight_before_C[:-1] + np.int32(threshold)
        fits_C = reached_C <= self._weight_until_C
        return fits_C, np.take(self._end_of_weight, reached_C - 1, mode="clip")

    def gram_hashes(self, end_C: np.ndarray) -> np.ndarray:
        """Polynomial hashes of 64 bits of the text from each position to its end; to be `mixed` before use."""
        hash_C = self._prefix_hash_C.take(end_C)
        hash_C -= self._prefix_hash_C[:-1]
        hash_C *= self._inverse_C
        return hash_C


def mixed(values: np.ndarray) -> np.ndarray:
    """Every bit made to depend on every other, modulo 2^64 (the low bits of products know only low bits)."""
    values = values ^ (values >> np.uint64(32))
    values *= _MIX
    values ^= values >> np.uint64(29)
    return values


@dataclass
class SharedGrams:
    """Where the minimal grams stand that at least two sentences of one document have."""

    position_E: np.ndarray  # places in the block, ascending within a gram
    gram_E: np.ndarray  # ascending, counted from 0 without gaps


def shared_grams(
    block: SentenceBlock,
    threshold: int,
    *,
    eligible_S: np.ndarray | None = None,
    leader_S: np.ndarray | None = None,
    frequent: np.ndarray | None = None,
    hash_bits: int = 64,
) -> SharedGrams:
    """The join: minimal grams of `threshold` that two sentences or more of one document have.

    Args:
        eligible_S: sentences that take part; all by default.
        leader_S: sentences of which each pair needs one; grams that none of these has may be left out.
        frequent: a table of booleans; grams whose `frequency_slot` is True are ignored.
        hash_bits: for tests; with few of them different grams collide, which must not change what comes out.
    """
    taken_C, end_C = block.minimal_grams(threshold)
    if eligible_S is not None:
        taken_C &= block.spread(eligible_S)
    hash_C = block.gram_hashes(end_C)
    if frequent is not None:
        taken_C &= ~frequent[frequency_slot(hash_C, threshold, len(frequent))]
    # One sort of plain integers does it: the upper bits are hash and document, the lower ones the position.
    position_bits = len(block.character_C).bit_length()
    hash_C += block._document_hash_C
    key_C = mixed(hash_C)
    if leader_S is not None:
        slot_C = (key_C >> np.uint64(64 - position_bits)).view(np.int64)
        led = np.zeros(2**position_bits, dtype=bool)
        led[slot_C[taken_C & block.spread(leader_S)]] = True
        taken_C &= led[slot_C]
    key_C &= np.uint64(2**64 - 2 ** max(position_bits, 64 - hash_bits))
    key_C |= np.arange(len(key_C), dtype=np.uint64)
    keys = key_C[taken_C]
    keys.sort()
    group = keys >> np.uint64(position_bits)
    starts = np.concatenate([[True], group[1:] != group[:-1], [True]])
    shared = np.flatnonzero(~(starts[:-1] & starts[1:]))
    position_E = (keys[shared] & np.uint64(2**position_bits - 1)).view(np.int64)
    group_E = np.cumsum(starts[shared]) - 1
    return _without_lonely(block, *_exact_grams(block, position_E, end_C[position_E] - position_E, group_E))


def frequency_slot(hashes: np.ndarray, threshold: int, slots: int) -> np.ndarray:
    """The place of each gram of a threshold in a table of `slots` (a power of two)."""
    return (mixed(hashes + np.uint64(threshold)) & np.uint64(slots - 1)).view(np.int64)


def _exact_grams(block: SentenceBlock, position_E, length_E, group_E) -> tuple[np.ndarray, np.ndarray]:
    """Groups of equal hashes -> groups of equal grams, by comparing the characters with those of the entry before."""
    same = (group_E[1:] != group_E[:-1]) | _equal_grams(block, position_E, length_E)
    if same.all():
        return position_E, group_E
    # Different grams met under one hash: name these few by their text.
    mixed = np.unique(group_E[1:][~same])
    names: dict[tuple, int] = {}
    gram_E = group_E.astype(np.int64)
    for entry in np.flatnonzero(np.isin(group_E, mixed)):
        position = position_E[entry]
        text = block.character_C[position : position + length_E[entry]].tobytes()
        document = block.document_S[block.sentence_C[position]]
        gram_E[entry] = names.setdefault((document, text), len(group_E) + len(names))
    order = np.lexsort((position_E, gram_E))
    _, gram_E = np.unique(gram_E[order], return_inverse=True)
    return position_E[order], gram_E


def _equal_grams(block: SentenceBlock, position_E, length_E) -> np.ndarray:
    """Whether each entry but the first is the same text, in the same document, as the entry before it."""
    one, other = position_E[:-1], position_E[1:]
    document_E = block.document_S[block.sentence_C[position_E]]
    same = (length_E[1:] == length_E[:-1]) & (document_E[1:] == document_E[:-1])
    for offset in range(int(length_E.max(initial=0))):
        open_ = np.flatnonzero(same & (length_E[1:] > offset))
        if not len(open_):
            break
        same[open_] = block.character_C[one[open_] + offset] == block.character_C[other[open_] + offset]
    return same


def _without_lonely(block: SentenceBlock, position_E, gram_E) -> SharedGrams:
    """Leaves out the grams that only one sentence has."""
    sentence_E = block.sentence_C[position_E]
    several = np.zeros(int(gram_E.max(initial=-1)) + 1, dtype=bool)
    changes = (gram_E[1:] == gram_E[:-1]) & (sentence_E[1:] != sentence_E[:-1])
    several[gram_E[1:][changes]] = True
    number = np.cumsum(several) - 1
    kept = several[gram_E]
    return SharedGrams(position_E[kept], number[gram_E[kept]])


def heaviest_spans(block: SentenceBlock, grams: SharedGrams, one_P, other_P) -> tuple[np.ndarray, ...]:
    """The heaviest common substring of each pair of sentences that shares one of `grams`.

    Returns (start_P, length_P, weight_P): the place in the block, inside the pair's first sentence. The first of
    several that are equally heavy; weight 0 for a pair that shares no gram.
    """
    start_P, length_P, weight_P = (np.zeros(len(one_P), dtype=np.int64) for _ in range(3))
    by_place = np.argsort(grams.position_E)
    place_E, gram_at_place_E = grams.position_E[by_place], grams.gram_E[by_place]
    sentences = len(block.start_S)
    key_E = grams.gram_E * sentences + block.sentence_C[grams.position_E]
    key_K, first_K, count_K = np.unique(key_E, return_index=True, return_counts=True)
    begin_P = np.searchsorted(place_E, block.start_S[one_P])
    count_P = np.searchsorted(place_E, block.end_S[one_P]) - begin_P
    for pairs in _slices(count_P, _EXPANSION_SLICE // 16):
        pair, entry = expand(begin_P[pairs], count_P[pairs])
        pair += pairs.start
        key = gram_at_place_E[entry] * sentences + other_P[pair]
        order = np.argsort(key)  # in their order they are found much sooner
        place = np.empty_like(order)
        place[order] = np.minimum(np.searchsorted(key_K, key[order]), len(key_K) - 1)
        begin, count = first_K[place], np.where(key_K[place] == key, count_K[place], 0)
        for some in _slices(count, _EXPANSION_SLICE):
            which, match = expand(begin[some], count[some])
            which += some.start
            found = _longest_matches(block, pair[which], place_E[entry[which]], grams.position_E[match])
            _keep_heaviest(block, found, start_P, length_P, weight_P)
    return start_P, length_P, weight_P


def _slices(count_N: np.ndarray, most: int):
    """Slices of N whose counts sum to about `most`."""
    total_N = np.cumsum(count_N)
    begin = 0
    while begin < len(count_N):
        done = total_N[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(total_N, done + most, side="right")))
        yield slice(begin, end)
        begin = end


def expand(begin_N: np.ndarray, count_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All (n, begin_N[n] + k) with k < count_N[n], in this order."""
    number = np.repeat(np.arange(len(count_N)), count_N)
    within = np.arange(len(number)) - np.repeat(np.cumsum(count_N) - count_N, count_N)
    return number, begin_N[number] + within


def _longest_matches(block: SentenceBlock, pair, place, other):
    """Grows common grams at (place, other) to both sides; (pair, start, length) of what they grow to."""
    # A long common substring has a gram at each of its positions: one of each row of neighbours is enough.
    diagonal = other - place
    order = np.lexsort((place, diagonal, pair))
    pair, place, other, diagonal = pair[order], place[order], other[order], diagonal[order]
    follows = (pair[1:] == pair[:-1]) & (diagonal[1:] == diagonal[:-1]) & (place[1:] == place[:-1] + 1)
    first = np.concatenate([[True], ~follows])[: len(pair)]
    pair, place, other = pair[first], place[first], other[first]
    one_S, other_S = block.sentence_C[place], block.sentence_C[other]
    left = _common_length(
        block, place - 1, other - 1, np.minimum(place - block.start_S[one_S], other - block.start_S[other_S]), -1
    )
    right = _common_length(
        block, place, other, np.minimum(block.end_S[one_S] - place, block.end_S[other_S] - other), 1
    )
    return pair, place - left, left + right


def _common_length(block: SentenceBlock, place, other, room, step: int) -> np.ndarray:
    """How many characters agree, going from (place, other) by `step`, at most `room`."""
    length = np.zeros(len(place), dtype=np.int64)
    going = np.flatnonzero(room > 0)
    while len(going):
        offset = step * length[going]
        agree = block.character_C[place[going] + offset] == block.character_C[other[going] + offset]
        going = going[agree]
        length[going] += 1
        going = going[length[going] < room[going]]
    return length


def _keep_heaviest(block: SentenceBlock, found, start_P, length_P, weight_P):
    pair, start, length = found
    weight = block.weight_before_C[start + length] - block.weight_before_C[start]
    best = np.lexsort((start, -weight, pair))
    pair, start, length, weight = pair[best], start[best], length[best], weight[best]
    first = np.concatenate([[True], pair[1:] != pair[:-1]])[: len(pair)]
    first &= weight > weight_P[pair]
    chosen = pair[first]
    start_P[chosen], length_P[chosen], weight_P[chosen] = start[first], length[first], weight[first]
