"""Where a document that is too long for one passage is cut."""

from __future__ import annotations

import bisect

import numpy as np

from .errors import InputError
from .sentences import split_sentences

CHUNK_BOUNDARIES = ("sentence", "token")


def check_chunking(chunk_boundary: str, overlap: int, room: int) -> None:
    """`InputError` where chunks of `room` tokens cannot be made so."""
    if chunk_boundary not in CHUNK_BOUNDARIES:
        raise InputError(f"chunk_boundary '{chunk_boundary}' is not known; use {' or '.join(CHUNK_BOUNDARIES)}")
    if overlap < 0:
        raise InputError(f"an overlap of {overlap} tokens is none; use 0 or more")
    if overlap > room // 2:
        raise InputError(f"an overlap of {overlap} tokens is more than half a passage; use at most {room // 2}")


def cut_evenly(total: int, room: int, *, overlap: int = 0) -> list[tuple[int, int]]:
    """[begin, end) of the chunks of `total` tokens: all but the last are full, each has the last `overlap` tokens of
    the one before."""
    begins = range(0, max(1, total - overlap), room - overlap)
    return [(begin, min(begin + room, total)) for begin in begins]


def cut_at_sentences(
    sentence_ends: np.ndarray, word_starts: np.ndarray, room: int, *, overlap: int = 0
) -> list[tuple[int, int]]:
    """[begin, end) of the chunks of a document: as many whole sentences as fit, whole words of those that do not.

    Every token is in a chunk, and every sentence of at most `room` tokens is whole in one.

    Args:
        sentence_ends: the token behind each sentence, rising; the last is the number of tokens.
        word_starts: the tokens that begin a word, rising, from 0 on.
        room: tokens of a chunk, at most.
        overlap: so many of the last tokens of a chunk also begin the next one, at most: whole sentences if one
            is as short, else whole words; less where the next sentence would not be whole otherwise.
    """
    ends, words = sentence_ends.tolist(), word_starts.tolist()
    total = ends[-1]
    chunks = [(0, _end_of_chunk(0, 0, room, ends, words))]
    while (end := chunks[-1][1]) < total:
        begin = end
        if overlap:
            following = ends[bisect.bisect_right(ends, end)]
            earliest = end - overlap
            if following - end <= room:
                earliest = max(earliest, following - room)
            begin = _first_at_or_after(earliest, ends, end) or _first_at_or_after(earliest, words, end) or end
        chunks.append((begin, _end_of_chunk(begin, end, room, ends, words)))
    return chunks


def _first_at_or_after(earliest: int, places: list[int], before: int) -> int | None:
    number = bisect.bisect_left(places, earliest)
    return places[number] if number < len(places) and places[number] < before else None


def _end_of_chunk(begin: int, covered: int, room: int, ends: list[int], words: list[int]) -> int:
    """The end of the chunk from `begin` on, beyond `covered`, where the one before ended."""
    limit = begin + room
    if limit >= ends[-1]:
        return ends[-1]
    number = bisect.bisect_right(ends, limit)
    last = ends[number - 1] if number else 0
    if last > covered and ends[number] - last <= room:
        return last
    # The next sentence fits in no chunk: this one is filled with words of it.
    last_word = words[bisect.bisect_right(words, limit) - 1]
    return last_word if last_word > max(last, covered, begin + room // 2) else limit


def sentence_ends(text: str, token_begins: np.ndarray) -> np.ndarray:
    """The token behind each sentence of `text`, rising and distinct; the last is the number of tokens.

    `token_begins`: where each token begins in `text`, in characters.
    """
    ends, place = [], 0
    for piece in split_sentences(text):
        # Some tokenizers count the space before a word to the word.
        ends.append(place + len(piece.rstrip()))
        place += len(piece)
    found = np.unique(np.append(np.searchsorted(token_begins, ends), len(token_begins)))
    return found[found > 0]
