"""The script of every character (Unicode, property Script), counted at some hundred MB a second."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import regex

from retrieval_pretraining.errors import InputError

# In the order in which they are shown. The last two hold no letters.
SCRIPTS = ("Han", "Latin", "kana", "Hangul", "Cyrillic", "other letters", "digits", "other")
LETTERS = SCRIPTS.index("digits")  # so many kinds are letters
_OTHER_LETTERS = SCRIPTS.index("other letters")
# What people call one script, and Unicode calls several, or none: the mark of a long vowel belongs to no script.
_TOGETHER = {"kana": ("Hiragana", "Katakana"), "hiragana": ("Hiragana",), "katakana": ("Katakana",)}
_LONG_VOWEL = "\u30fc\uff70"


def count_scripts(text: str) -> np.ndarray:
    """How many characters of each of `SCRIPTS` a text has."""
    return np.bincount(_script_table().take(_code_points(text)), minlength=len(SCRIPTS))


def letter_share(text: str, scripts: Sequence[str]) -> float:
    """The share of the text's letters that are of these scripts; 0 for a text without letters.

    Digits, punctuation and white space are no letters, whatever stands beside them.
    """
    codes = _code_points(text)
    letters = np.count_nonzero(_script_table().take(codes) < LETTERS)
    return np.count_nonzero(_letters_of(tuple(scripts)).take(codes)) / letters if letters else 0.0


def check_scripts(names: Sequence[str], option: str) -> None:
    """Refuses a name that Unicode does not know as that of a script."""
    for name in names:
        try:
            _letters_of((name,))
        except regex.error as error:
            raise InputError(
                f"{option} '{name}' is no script of Unicode; use names such as han, latin, kana, hangul, cyrillic, "
                "arabic or devanagari."
            ) from error


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


@cache
def _every_character() -> str:
    # Surrogates are no characters.
    return "".join(chr(code) if not 0xD800 <= code < 0xE000 else "\0" for code in range(0x110000))


def _where(pattern: str) -> np.ndarray:
    """[code points], boolean: which characters match."""
    found = np.zeros(0x110000, dtype=bool)
    for match in regex.finditer(f"(?V1)(?:{pattern})+", _every_character()):
        found[match.start() : match.end()] = True
    return found


@cache
def _letters_of(scripts: tuple[str, ...]) -> np.ndarray:
    """[code points], boolean: the letters of these scripts."""
    patterns = []
    for name in scripts:
        for script in _TOGETHER.get(name.lower(), (name,)):
            if not script.replace("_", "").isalpha():
                raise regex.error("no name")
            patterns.append(rf"\p{{Script={script}}}")
        if name.lower() in _TOGETHER:
            patterns.append(_LONG_VOWEL)
    return _where(rf"[[{''.join(patterns)}]&&\p{{Alphabetic}}]")


@cache
def _script_table() -> np.ndarray:
    """[code points], uint8: index in `SCRIPTS`."""
    table = np.full(0x110000, SCRIPTS.index("other"), dtype=np.uint8)
    table[_where(r"\p{Nd}")] = SCRIPTS.index("digits")
    table[_where(r"\p{Alphabetic}")] = _OTHER_LETTERS
    for index, name in enumerate(SCRIPTS[:_OTHER_LETTERS]):
        table[_letters_of((name,))] = index
    return table
