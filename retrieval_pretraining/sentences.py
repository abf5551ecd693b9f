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
# Before a digit sentencex takes any mark for a decimal point, and before "a" to "z" for that of an abbreviation: these
# are neither.
_MARK_INSIDE = re.compile(r"(?:(?<=[。！？])|(?<=[。！？][”’」』）]))(?=[\da-z])")
_HAS_MARK_INSIDE = re.compile(r"[。！？][”’」』）]?[\da-z]")  # the same, soon found to be absent
# What begins with one of these, such as "(1) A sentence. Another.", sentencex does not split.
_LIST_MARK = re.compile(r"\s*\(\w{1,3}\)")


def split_sentences(text: str, *, language: str = "en") -> list[str]:
    """Pieces that joined are `text`; the white space between two sentences ends the first.

    `language`: whose abbreviations are known ("en", "zh", "de" ... as sentencex has them). The marks of all scripts
    end a sentence whatever the language.
    """
    pieces: list[str] = []
    for line in text.splitlines(keepends=True):
        begin, window = 0, _WINDOW
        while len(line) - begin > window:
            found = _segment(line[begin : begin + window], language)
            if len(found) == 1:
                window *= 2
                continue
            # The last one may go on beyond the window.
            pieces += found[:-1]
            begin, window = begin + sum(map(len, found[:-1])), _WINDOW
        pieces += _segment(line[begin:] if begin else line, language)
    return pieces


def _segment(text: str, language: str) -> list[str]:
    mark = _LIST_MARK.match(text)
    begin = mark.end() if mark else 0
    pieces = sentencex.segment(language, text[begin:])
    if begin:
        pieces[:1] = [text[:begin] + "".join(pieces[:1])]
    if any(sign in text for sign in "。！？") and _HAS_MARK_INSIDE.search(text):
        return [part for piece in pieces for part in _MARK_INSIDE.split(piece)]
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
    """Places of the parts of a long text, none longer than `max_length` nor, blanks aside, much shorter than half."""
    parts, begin = [], 0
    while len(text) - begin > max_length:
        spaces = list(_SPACE.finditer(text, begin + max_length // 2, begin + max_length + 1))
        end = spaces[-1].start() if spaces else begin + max_length
        blank = _SPACE.match(text, end)
        # A run of blanks may reach beyond where it was looked for, to both sides.
        parts.append((begin, begin + len(text[begin:end].rstrip())))
        begin = blank.end() if blank else end
    if begin < len(text):
        parts.append((begin, len(text)))
    return parts
