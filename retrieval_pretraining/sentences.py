"""Text -> sentences, of Chinese, English and texts that mix them: nothing is lost, and a line break always ends one.

The boundaries are those of sentencex (MIT, Wikimedia): it needs no data, leaves decimals, abbreviations, URLs
and ellipses whole, and keeps closing quotes with their sentence.
"""

from __future__ import annotations

import re
from collections import Counter

import sentencex

# sentencex reads a long line in quadratic time, so it gets a window of it. A boundary depends on what is near.
_WINDOW = 2000
_SPACE = re.compile(r"\s+")


def split_sentences(text: str, *, language: str = "en") -> list[str]:
    """Pieces that joined are `text`; the white space between two sentences ends the first.

    `language`: whose abbreviations are known ("en", "zh", "de" ... as sentencex has them). The marks of all scripts
    end a sentence whatever the language.
    """
    pieces: list[str] = []
    for line in text.splitlines(keepends=True):
        begin, window = 0, _WINDOW
        while len(line) - begin > window:
            found = sentencex.segment(language, line[begin : begin + window])
            if len(found) == 1:
                window *= 2
                continue
            # The last one may go on beyond the window.
            pieces += found[:-1]
            begin, window = begin + sum(map(len, found[:-1])), _WINDOW
        pieces += sentencex.segment(language, line[begin:] if begin else line)
    return pieces


def locate_sentences(
    text: str, *, language: str, min_length: int, max_length: int, counts: Counter
) -> list[tuple[int, int]]:
    """(begin, end) of each sentence in `text`, without the white space around it.

    Lengths are in characters. Shorter sentences are left out, longer ones cut, at white space where there is some;
    both are counted.
    """
    places: list[tuple[int, int]] = []
    end = 0
    for piece in split_sentences(text, language=language):
        begin, end = end, end + len(piece)
        stripped = piece.strip()
        if not stripped:
            continue
        begin += piece.index(stripped[0])
        if len(stripped) <= max_length:
            parts = [(begin, begin + len(stripped))]
        else:
            counts["sentences cut"] += 1
            parts = [(begin + one, begin + other) for one, other in _cut(stripped, max_length)]
        for one, other in parts:
            if other - one < min_length:
                counts["sentences too short"] += 1
            else:
                places.append((one, other))
    return places


def _cut(text: str, max_length: int) -> list[tuple[int, int]]:
    """Places of the parts of a long text, none longer than `max_length` and none much shorter than half of it."""
    parts, begin = [], 0
    while len(text) - begin > max_length:
        spaces = list(_SPACE.finditer(text, begin + max_length // 2, begin + max_length + 1))
        end, following = spaces[-1].span() if spaces else (begin + max_length, begin + max_length)
        parts.append((begin, end))
        begin = following
    if begin < len(text):
        parts.append((begin, len(text)))
    return parts
