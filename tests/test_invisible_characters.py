"""What cannot be seen goes where it means nothing, and stays where a script or an emoji needs it."""

import pytest

from retrieval_pretraining.invisible_characters import remove_control_characters


@pytest.mark.parametrize(
    "text, expected",
    [
        ("nul\x00 bell\x07 del\x7f c1\x9f", "nul bell del c1"),
        ("zero\u200bwidth 中\u200b文", "zerowidth 中文"),
        ("left\u200cover\u200d 中\u200d文", "leftover 中文"),
        ("\ufeffmark in the mid\ufeffdle", "mark in the middle"),
        ("soft\u00adhyphen", "softhyphen"),
        ("\u202aleft\u202c \u2067right\u2069 \u200emark\u200f", "left right mark"),
        ("word\u2060joiner f\u2061(x)", "wordjoiner f(x)"),
        ("none\ufffe\uffff\ufdd0", "none"),
        ("ok\U000e0041\U000e0042", "ok"),
    ],
)
def test_what_cannot_be_seen_is_removed(text, expected):
    assert remove_control_characters(text) == expected


@pytest.mark.parametrize("end", ["\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029"])
def test_every_line_end_becomes_a_newline(end):
    assert remove_control_characters(f"a{end}b") == "a\nb"


def test_separators_keep_words_apart():
    assert remove_control_characters("a\x1cb\x1fc") == "a b c"


@pytest.mark.parametrize(
    "text",
    [
        "tab\tand\nnewline stay",
        "می\u200cخواهم",  # Persian: two parts of a word that are not joined
        "क\u094d\u200dष ම\u0dca\u200dය",  # Hindi, Sinhala: the form of a conjunct
        "👩\u200d👩\u200d👧 👨🏽\u200d💻 ❤\ufe0f\u200d🔥",
        "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",  # the flag of England
        "ไทย\u200bภาษา ភាសា\u200bខ្មែរ",  # where words end
        "葛\U000e0100 ☎\ufe0e",  # the form of a Han character, of an emoji
        "\u3000 \xa0 private \ue000 replaced \ufffd",
    ],
)
def test_what_has_a_meaning_stays(text):
    assert remove_control_characters(text) == text
