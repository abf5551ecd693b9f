"""Which documents were there before: the same text, or nearly the same. One pass, the first one is kept.

White space and invisible characters make no difference; case does, but not to near duplicates.

Near duplicates are found by MinHash (Broder, 1997) over shingles of `SHINGLE` characters, which works for scripts
without spaces, and locality-sensitive hashing: two texts are compared where one of the bands of their signatures is
the same, and are near duplicates if the share of equal minima, an estimate of the Jaccard similarity of their shingles
(standard error at most 0.045), is the threshold or more.
"""

from __future__ import annotations

import hashlib
import re

import numpy as np

from retrieval_pretraining.extras import import_extra
from retrieval_pretraining.readers import ZERO_WIDTH

SHINGLE = 5
PERMUTATIONS = 128
_SEED = 42
_RECENT_KEYS = 1 << 18
_PROBES = 4
_TEXTS_AT_ONCE = 4096
# Two texts at the threshold share a band, and so are compared, with at least this probability.
_RECALL = 0.95

_INVISIBLE = re.compile(f"[{ZERO_WIDTH}]+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


def _bare(text: str) -> str:
    """The text without white space and invisible characters."""
    text = "".join(text.split())
    return text if text.isascii() else _INVISIBLE.sub("", text)


class ExactDuplicates:
    """Texts by a hash of 64 bits: of 100 million different texts two have the same with probability 0.0003.

    Memory: 8 bytes a text (twice that for moments), and some 25 MB.
    """

    def __init__(self):
        self.recent: set[int] = set()
        self.runs: list[np.ndarray] = []  # sorted keys, each run longer than all behind it

    def add(self, text: str) -> bool:
        """Whether the text is new."""
        digest = hashlib.blake2b(_bare(text).encode("utf-8", "surrogatepass"), digest_size=8).digest()
        key = int.from_bytes(digest, "little")
        if key in self.recent or any(_is_in(key, run) for run in self.runs):
            return False
        self.recent.add(key)
        if len(self.recent) >= _RECENT_KEYS:
            self._store()
        return True

    def _store(self):
        keys = np.fromiter(self.recent, dtype=np.uint64, count=len(self.recent))
        self.recent = set()
        while self.runs and len(self.runs[-1]) <= len(keys):
            keys = np.concatenate([self.runs.pop(), keys])
        keys.sort()
        self.runs.append(keys)


def _is_in(key: int, run: np.ndarray) -> bool:
    place = run.searchsorted(np.uint64(key))
    return place < len(run) and int(run[place]) == key


class NearDuplicates:
    """Texts by their signatures, `PERMUTATIONS` minima of 16 bits.

    Memory: 400 to 800 bytes a text that is kept (threshold 0.5: 600 to 1,200), half as much again for moments.
    """

    def __init__(self, threshold: float):
        self.minhash = import_extra("rensa", "cleaning").RMinHash
        self.threshold = threshold
        self.bands, self.rows = choose_bands(threshold)
        self.factors = np.random.default_rng(_SEED).integers(1 << 63, size=self.rows, dtype=np.uint64) * 2 + 1
        self.size = 0
        self.signatures = np.empty((256, PERMUTATIONS), dtype=np.uint16)
        self.table = np.full((self.bands, 1024), -1, dtype=np.int32)  # [bands, slots]: which text, or none

    def add(self, text: str) -> bool:
        """Whether the text is new, and no near duplicate of one that was."""
        signature = self._signature(text)
        slots = self._slots(signature[None])[0]
        band = np.arange(self.bands)
        found = self.table[band[:, None], slots]
        candidates = found[found >= 0]
        if candidates.size:
            equal = np.count_nonzero(self.signatures[candidates] == signature, axis=1)
            if equal.max() >= self.threshold * PERMUTATIONS:
                return False
        if self.size == len(self.signatures):
            self.signatures = np.concatenate([self.signatures, np.empty_like(self.signatures)])
        self.signatures[self.size] = signature
        # A text that finds no free slot is not named in that band: the others are enough, and a band that very many
        # texts share tells nothing.
        free = found < 0
        band = band[free.any(axis=1)]
        self.table[band, slots[band, free.argmax(axis=1)[band]]] = self.size
        self.size += 1
        if 2 * self.size > self.table.shape[1]:
            self._grow()
        return True

    def _signature(self, text: str) -> np.ndarray:
        hashes = _shingle_hashes(_bare(text).lower())
        matrix = self.minhash.digest_matrix_from_flat_token_hashes(hashes, [0, len(hashes)], PERMUTATIONS, _SEED)
        return np.array(matrix.to_rows()[0], dtype=np.uint32).astype(np.uint16)

    def _slots(self, signatures: np.ndarray) -> np.ndarray:
        """[texts, PERMUTATIONS] -> [texts, bands, _PROBES]: where the table may name a text."""
        values = signatures[:, : self.bands * self.rows].reshape(len(signatures), self.bands, self.rows)
        keys = (values * self.factors).sum(axis=2)
        keys = ((keys ^ (keys >> np.uint64(32))) * _MIX) >> np.uint64(24)
        return ((keys[:, :, None] + np.arange(_PROBES, dtype=np.uint64)) % self.table.shape[1]).astype(np.int64)

    def _grow(self):
        """A table of twice as many slots, in which texts get their slots anew, in blocks."""
        self.table = np.full((self.bands, 2 * self.table.shape[1]), -1, dtype=np.int32)
        for begin in range(0, self.size, _TEXTS_AT_ONCE):
            end = min(begin + _TEXTS_AT_ONCE, self.size)
            slots = self._slots(self.signatures[begin:end])
            waiting = np.ones((self.bands, end - begin), dtype=bool)
            for probe in range(_PROBES):
                wanted = slots[:, :, probe].T
                band, text = np.nonzero(waiting & (self.table[np.arange(self.bands)[:, None], wanted] < 0))
                # Of those that want the same slot the first one gets it.
                _, first = np.unique(band * self.table.shape[1] + wanted[band, text], return_index=True)
                band, text = band[first], text[first]
                self.table[band, wanted[band, text]] = begin + text
                waiting[band, text] = False


def choose_bands(threshold: float) -> tuple[int, int]:
    """(bands, rows): as many rows as go with `_RECALL` at the threshold, for fewer needless comparisons."""
    for rows in range(16, 1, -1):
        bands = PERMUTATIONS // rows
        if 1 - (1 - threshold**rows) ** bands >= _RECALL:
            return bands, rows
    raise ValueError(f"no bands find near duplicates at {threshold}")


def _shingle_hashes(text: str) -> np.ndarray:
    """A hash of 64 bits of every `SHINGLE` characters in a row; of a shorter text, of all of it."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    width = min(SHINGLE, max(1, len(codes)))
    count = max(1, len(codes) - width + 1)
    hashes = np.full(count, width, dtype=np.uint64)
    for offset in range(width if len(codes) else 0):
        hashes = (hashes + codes[offset : offset + count]) * _FACTOR
    hashes ^= hashes >> np.uint64(31)
    return hashes * _MIX
