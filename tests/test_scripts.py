"""Characters by script, and the share of a script among the letters."""

import pytest

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.scripts import SCRIPTS, check_scripts, count_scripts, letter_share


@pytest.mark.parametrize(
    "text, script",
    [
        ("汉字漢〇々𠀀", "Han"),
        ("abc ÉßĄ ｗｉｄｅ".replace(" ", ""), "Latin"),
        ("ひらがなカタカナーｶﾅ", "kana"),
        ("한국어ᄒ", "Hangul"),
        ("Привет", "Cyrillic"),
        ("العربيةהעבריתελληνικάไทยहिन्दी".replace("\u094d", ""), "other letters"),
        ("0123456789٣３", "digits"),
        (" ,.。！🙂\n\u3000\x00", "other"),
    ],
)
def test_every_character_has_one_script(text, script):
    counts = count_scripts(text)
    assert counts.sum() == len(text)
    assert {name: count for name, count in zip(SCRIPTS, counts) if count} == {script: len(text)}


def test_an_empty_text_has_no_character():
    assert count_scripts("").sum() == 0 and letter_share("", ["han"]) == 0.0


def test_the_share_is_that_of_letters():
    assert letter_share("汉字 abc, 123!", ["han"]) == 0.4
    assert letter_share("汉字 abc, 123!", ["Han", "LATIN"]) == 1.0
    assert letter_share("2026-11-30", ["han", "latin"]) == 0.0
    assert letter_share("カタカナー ひらがな", ["kana"]) == letter_share("カナー", ["katakana"]) == 1.0
    assert letter_share("العربية abc", ["arabic"]) == 0.7


def test_scripts_are_those_of_unicode():
    check_scripts(["han", "Hani", "kana", "Devanagari", "old_italic"], "--keep_scripts")
    for name in ("chinese", "", "han}", "h an"):
        with pytest.raises(InputError, match=f"--keep_scripts '{name}' is no script of Unicode"):
            check_scripts([name], "--keep_scripts")
