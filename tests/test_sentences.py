import random
from collections import Counter
from types import SimpleNamespace

import pytest
import sentencex

from retrieval_pretraining import sentences
from retrieval_pretraining.sentences import locate_sentences, split_sentences

PIECES = [
    *(
        "中",
        "文",
        "a",
        "B",
        "é",
        "e\u0301",
        "𠀀",
        "🙂",
        "👨\u200d👩\u200d👧",
        "3.5",
        "www.a.com",
        "Mr.",
        "e.g.",
        "[1]",
    ),
    *("。", "！", "？", "…", "……", "。。", ".", "!", "?", ";"),
    *("”", "“", '"', "'", "(", ")", "（", "）", "「", "」", "«", "»"),
    *(" ", "\t", "\n", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\u3000", "\u00a0"),
    *("\x00", "\u200b", "\ufeff"),
]
ENGLISH = (
    "The cat of Dr. Smith chases a mouse (see Fig. 3). It weighs 3.5 kg, e.g. more than most! Does it? "
    'He said: "Let us go." They went to www.a.com and stayed... Nothing else happened. '
)
CHINESE = "他说：“走吧。”她问：“去哪？”天气很好，我们去公园……然后回家！价格是3.5元/斤。Visit www.a.com. OK! "


def located(text, *, min_length=2, max_length=512):
    counts = Counter()
    places = locate_sentences(text, language="en", min_length=min_length, max_length=max_length, counts=counts)
    return [text[begin:end] for begin, end in places], dict(counts)


@pytest.fixture
def given_to_sentencex(monkeypatch):
    """The length of each text that sentencex is asked to split."""
    lengths = []

    def segment(language, text):
        lengths.append(len(text))
        return sentencex.segment(language, text)

    monkeypatch.setattr(sentences, "sentencex", SimpleNamespace(segment=segment))
    return lengths


def test_chinese_and_english_in_one_line():
    text = "他说：“走吧。”她问：“去哪？”……(省略)3.5元/斤。Visit www.a.com. OK!"
    pieces = split_sentences(text)
    assert pieces == ["他说：“走吧。”", "她问：“去哪？”", "……(省略)3.5元/斤。", "Visit www.a.com. ", "OK!"]
    assert "".join(pieces) == text


def test_a_chinese_mark_ends_a_sentence_whatever_follows():
    pieces = [
        "天气很好。",
        "3.5元一斤！",
        "2020年“是吗？”",
        "5月。",
        "iPhone 很好？",
        "“npm 也好。”",
        "é好！",
        "Version 3.5 is out.5",
    ]
    assert split_sentences("".join(pieces)) == pieces


def test_abbreviations_are_those_of_the_language():
    assert split_sentences("Das ist z.B. gut. Ja.", language="de") == ["Das ist z.B. gut. ", "Ja."]
    assert split_sentences("Mr. Smith came. He left.") == ["Mr. Smith came. ", "He left."]


def test_nothing_is_lost_and_a_line_break_always_ends_a_sentence(monkeypatch):
    monkeypatch.setattr(sentences, "_WINDOW", 40)
    generator = random.Random(0)
    for _ in range(5000):
        text = "".join(generator.choices(PIECES, k=generator.randint(0, 80)))
        pieces = split_sentences(text)
        assert "".join(pieces) == text
        assert all(len(piece.splitlines()) == 1 for piece in pieces), pieces


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r", "\u2028", "\u2029", "\x85"])
def test_a_line_break_ends_a_sentence_without_a_mark_and_inside_quotes(line_break):
    pieces = split_sentences(f"“first line{line_break}second line” (third{line_break}fourth)")
    assert [piece.strip() for piece in pieces] == ["“first line", "second line” (third", "fourth)"]


@pytest.mark.parametrize("text", [ENGLISH, CHINESE])
def test_a_long_line_is_split_as_if_it_were_looked_at_as_a_whole(monkeypatch, given_to_sentencex, text):
    line = text * 40
    for window in (200, 311, 1000):
        monkeypatch.setattr(sentences, "_WINDOW", window)
        given_to_sentencex.clear()
        assert split_sentences(line) == sentencex.segment("en", line)
        assert len(given_to_sentencex) >= 3 and max(given_to_sentencex) <= 2 * window


@pytest.mark.parametrize("sentence", ["It is so. ", "是这样。"])
def test_the_work_on_one_very_long_line_is_linear(given_to_sentencex, sentence):
    number = 200_000
    assert split_sentences(sentence * number) == [sentence] * number
    assert sum(given_to_sentencex) < 1.1 * number * len(sentence)
    assert max(given_to_sentencex) <= 2000


def test_the_work_on_one_very_long_sentence_is_linear(given_to_sentencex):
    text = "没有标点" * 20_000 + "。" + "And then. " * 3
    assert split_sentences(text)[-3:] == ["And then. "] * 3
    assert "".join(split_sentences(text)) == text
    assert sum(given_to_sentencex) < 2 * 5 * len(text)


def test_a_sentence_stands_without_the_white_space_around_it():
    text = " \u3000First one.  Second one. \n\t 第三句。\u3000\n\n   \n"
    assert located(text) == (["First one.", "Second one.", "第三句。"], {})


def test_sentences_of_two_han_characters_are_kept_and_shorter_ones_counted():
    assert located("北京\n上海\n沪\n一。\nA\n") == (["北京", "上海", "一。"], {"sentences too short": 2})
    assert located("北京\n上海市\n沪", min_length=3) == (["上海市"], {"sentences too short": 2})


def test_a_long_sentence_is_cut_at_white_space_and_counted():
    text = "alpha beta gamma delta epsilon zeta"
    found, counts = located(text, max_length=12)
    assert found == ["alpha beta", "gamma delta", "epsilon zeta"]
    assert counts == {"sentences cut": 1}


def test_a_long_sentence_without_white_space_is_cut_at_the_limit():
    assert located("一二三四五六七八九十甲", max_length=5)[0] == ["一二三四五", "六七八九十"]
    assert located("一二三四五六七八九十甲", max_length=5)[1] == {"sentences cut": 1, "sentences too short": 1}


def test_cutting_loses_nothing_but_white_space_and_leaves_none_at_the_ends():
    generator = random.Random(1)
    for _ in range(3000):
        text = "".join(
            generator.choices(["a", "bc", "中", "文", " ", "   ", "\t", "\u3000"], k=generator.randint(1, 60))
        )
        limit = generator.randint(1, 12)
        found, _ = located(text, min_length=1, max_length=limit)
        assert "".join("".join(found).split()) == "".join(text.split())
        assert all(0 < len(part) <= limit and part == part.strip() for part in found), (text, limit, found)


def test_a_long_run_of_blanks_makes_no_sentence():
    assert located("name" + " " * 2000 + "value")[0] == ["name", "value"]


@pytest.mark.parametrize("mark", ["(4)", "(a)", "(iv)"])
def test_text_that_begins_with_a_list_mark_is_split_too(mark):
    text = f"{mark} The first sentence. The second sentence. The third one."
    assert split_sentences(text) == [f"{mark} The first sentence. ", "The second sentence. ", "The third one."]
