import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from documents_for_tests import chinese_documents, random_sentences

from retrieval_pretraining.documents import Document
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.pair_mining import (
    FREQUENCY_SLOTS,
    add_frequencies,
    gram_document_frequencies,
    mine_documents,
)

GOLDEN = json.loads((Path(__file__).parent / "golden/golden_gur.json").read_text(encoding="utf-8"))["mining"]
LONG = "，而这里还有很多别的字与此完全无关"  # a sentence that holds it is not short
MOTOR = "永磁同步电机控制"


def mine(*texts, title=None, seed=42, frequent=None, **settings):
    """(pairs, counts) of documents that all have this title."""
    documents = [Document(text, title, f"d{number}") for number, text in enumerate(texts)]
    pairs, counts = mine_documents(documents, MiningSettings(**settings), seed=seed, frequent=frequent)
    assert counts["pairs"] == len(pairs)
    return list(pairs), counts


def texts_of(pairs) -> list[tuple[str, str]]:
    return [(pair.text, pair.text_pair) for pair in pairs]


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    """Random ones, every other with a title, which may stand in the text too."""
    generator, found = random.Random(8), []
    for number in range(400):
        sentences = random_sentences(generator) or ["x"]
        title = sentences[0] if number % 2 else None
        found.append(Document("\n".join(sentences[number % 4 == 1 :]), title, f"d{number}"))
    return found


# --- each fault of the authors' miner ---


def test_all_paragraphs_of_a_document_are_used_to_their_last_sentence():
    first, second = f"本文研究{MOTOR}方法。", "天气很好。"
    third, fourth = "围网选用包塑钢丝。", f"{MOTOR}需要模型。"
    fifth, sixth = "Something else entirely.", "这种围网选用新材料。"
    pairs, counts = mine(f"{first}{second}\n{third}{fourth}\n{fifth}{sixth}")
    assert texts_of(pairs) == [(first, fourth), (third, sixth)]
    assert [pair.shared_span for pair in pairs] == [MOTOR, "围网选用"]
    assert counts["sentences"] == 6 and counts["sentences left over"] == 2


def test_what_is_cleaned_away_is_not_in_the_pairs():
    pairs, _ = mine(f" \u3000{MOTOR}很好。 \r\n\r\n\t我们研究{MOTOR}。\u2028 \n")
    assert texts_of(pairs) == [(f"{MOTOR}很好。", f"我们研究{MOTOR}。")]


def test_text_that_looks_like_code_is_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "__import__('os').system('touch pwn')"
    pairs, _ = mine(f"{code}\nsee {code}", title=f"{code} {{0}} %s")
    assert (code, f"see {code}") in texts_of(pairs)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("strategy", ["lcs", "random", "title"])
def test_no_pair_is_given_twice_in_either_order(documents, strategy):
    pairs, _ = mine_documents(documents, MiningSettings(strategy=strategy, max_pairs_per_sentence=0))
    keys = [(pair.document_id, *sorted((pair.text.lower(), pair.text_pair.lower()))) for pair in pairs]
    assert len(keys) == len(set(keys)) > 100
    assert all(one != other for _, one, other in keys)


@pytest.mark.parametrize("strategy", ["lcs", "random", "inverse_cloze", "crop"])
def test_the_seed_decides_and_nothing_else(strategy):
    text = chinese_documents(1, sentences=60)[0]["text"]
    settings = {"strategy": strategy, "max_pairs_per_document": 8}
    random.seed(1)
    first = mine(text, seed=1, **settings)
    random.seed(2)
    np.random.seed(2)
    assert mine(text, seed=1, **settings) == first
    assert mine(text, seed=2, **settings)[0] != first[0]


def test_ten_latin_letters_weigh_as_much_as_three_han_characters():
    tail = LONG.translate(dict.fromkeys(map(ord, LONG), "é")) * 4  # another letter
    one, other = f"abcdefghij{tail}1", f"zz abcdefghij{tail.replace('é', 'ö')}"
    (pair,), _ = mine(f"{one}\n{other}")
    assert pair.shared_span == "abcdefghij"
    assert mine(f"{one[1:]}\n{other}")[0] == []
    assert mine(f"甲天气好{LONG}\n乙天气好{LONG[::-1]}{LONG[1]}")[0][0].shared_span == "天气好"


def test_no_common_span_is_missed():
    pairs, _ = mine("\n".join(GOLDEN["sentences"]), max_pairs_per_sentence=0)
    number = {sentence: index for index, sentence in enumerate(GOLDEN["sentences"])}
    assert [[number[one], number[other]] for one, other in texts_of(pairs)] == GOLDEN["pairs"]


def test_full_width_letters_do_not_count_as_han():
    assert mine("ＡＢＣ一二\n三四ＡＢＣ")[0] == []
    assert len(mine("ＡＢＣＤＥＦＧ一二\n三四ＡＢＣＤＥＦＧ")[0]) == 1


# --- lcs ---


def test_less_is_enough_beside_a_short_sentence():
    long = ("天气" + LONG, "今日天气，" + "完全相反的另一句话与彼处毫无关系可言")
    assert mine("\n".join(long))[0] == []
    (pair,), _ = mine(f"{long[0]}\n看天气")
    assert pair.shared_span == "天气"


def test_the_span_stands_in_the_first_text_as_it_is_and_in_the_other_but_for_upper_case(documents):
    pairs, _ = mine_documents(documents, MiningSettings())
    assert len(pairs) > 400
    for pair in pairs:
        assert pair.shared_span in pair.text and pair.shared_span.lower() in pair.text_pair.lower()
        assert pair.strategy == "lcs"


def test_pairs_stand_in_the_order_of_the_text():
    text = chinese_documents(1, sentences=40)[0]["text"]
    pairs, _ = mine(text)
    places = [(text.index(one), text.index(other)) for one, other in texts_of(pairs)]
    assert places == sorted(places) and all(one < other for one, other in places)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_sentence_is_in_so_many_pairs_and_the_title_in_one_more(limit):
    body = "\n".join(f"{MOTOR}{character}" for character in "甲乙丙丁戊己庚辛")
    pairs, _ = mine(body, title=f"论{MOTOR}", max_pairs_per_sentence=limit)
    uses = Counter(text for pair in texts_of(pairs) for text in pair)
    assert uses.pop(f"论{MOTOR}") <= limit + 1 and max(uses.values()) == limit
    most = max(
        Counter(
            text
            for pair in texts_of(mine(body, title=f"论{MOTOR}", seed=seed, max_pairs_per_sentence=limit)[0])
            for text in pair
        )[f"论{MOTOR}"]
        for seed in range(40)
    )
    assert most == limit + 1


def test_a_document_gives_so_many_pairs_at_most():
    rows = chinese_documents(30, sentences=30)
    pairs, counts = mine(*(row["text"] for row in rows), max_pairs_per_document=3)
    assert Counter(pair.document_id for pair in pairs) == {f"d{number}": 3 for number in range(30)}
    assert counts["candidates over the document limit"] > 0


# --- sentences ---


def test_repeated_sentences_count_once_whatever_their_case():
    pairs, counts = mine("Tom is chasing Jerry.\nTOM IS CHASING JERRY.\nJerry runs.\nTom is chasing Jerry.", title="A")
    assert texts_of(pairs) == []
    assert counts["sentences"] == 2 and counts["sentences repeated"] == 2


def test_a_sentence_that_repeats_the_title_is_not_paired_with_it():
    pairs, counts = mine(f"论{MOTOR}\n{MOTOR}很好", title=f"论{MOTOR}")
    assert texts_of(pairs) == [(f"论{MOTOR}", f"{MOTOR}很好")]
    assert (counts["titles"], counts["sentences"], counts["sentences repeated"]) == (1, 1, 1)


@pytest.mark.parametrize("strategy", ["lcs", "title", "random"])
@pytest.mark.parametrize("limits", [{}, {"max_pairs_per_document": 2}, {"max_pairs_per_sentence": 1}])
@pytest.mark.parametrize("leftover", ["drop", "self", "join", "inverse_cloze"])
def test_the_counts_add_up(documents, strategy, limits, leftover):
    pairs, counts = mine_documents(documents, MiningSettings(strategy=strategy, leftover_strategy=leftover, **limits))
    assert counts["documents"] == 400 and counts["titles"] == 200
    dropped = counts["candidates over the sentence limit"] + counts["candidates over the document limit"]
    from_leftovers = counts["pairs from left-over sentences"]
    assert counts["candidates"] == counts["pairs"] - from_leftovers + dropped
    assert from_leftovers == sum(pair.strategy != strategy for pair in pairs)
    if leftover != "join":
        used = {(pair.document_id, text) for pair in pairs if pair.strategy == strategy for text in pair[:2]}
        assert counts["sentences"] + counts["titles"] == len(used) + counts["sentences left over"]
    if strategy == "title":
        assert all(pair.text == documents[int(pair.document_id[1:])].title for pair in pairs if leftover == "drop")


def test_documents_without_a_sentence_are_counted():
    pairs, counts = mine("x", "。", "\n", MOTOR)
    assert not pairs and counts["documents"] == 4 and counts["sentences too short"] == 2


# --- boilerplate ---


BOILERPLATE = "版权所有违者必究"


def boilerplate_texts(number: int = 20) -> list[str]:
    rows = chinese_documents(number, seed=5)
    return [f"{BOILERPLATE}{index}号文件。{row['text']}联系我们，{BOILERPLATE}。" for index, row in enumerate(rows)]


def frequent_table(texts, **settings) -> np.ndarray:
    documents = [Document(text, None, "") for text in texts]
    frequencies = add_frequencies([gram_document_frequencies(documents, MiningSettings(**settings))])
    return frequencies > 0.5 * len(texts)


def test_spans_that_are_in_too_many_documents_make_no_pair():
    texts = boilerplate_texts()
    plain = [pair for pair in mine(*texts)[0] if BOILERPLATE in pair.shared_span]
    assert len(plain) == 20
    pairs, _ = mine(*texts, frequent=frequent_table(texts))
    assert pairs == [pair for pair in mine(*texts)[0] if BOILERPLATE not in pair.shared_span] and len(pairs) > 40


def test_boilerplate_with_more_around_it_still_makes_a_pair():
    texts = [*boilerplate_texts(), f"{BOILERPLATE}，{MOTOR}。关于{BOILERPLATE}，{MOTOR}说明。"]
    pairs, _ = mine(*texts, frequent=frequent_table(texts))
    assert pairs[-1].shared_span == f"{BOILERPLATE}，{MOTOR}" and pairs[-1].document_id == "d20"


def test_document_frequencies_of_parts_add_up():
    documents = [Document(text, None, "") for text in boilerplate_texts()]
    whole = add_frequencies([gram_document_frequencies(documents, MiningSettings())])
    parts = (gram_document_frequencies(documents[begin : begin + 7], MiningSettings()) for begin in (0, 7, 14))
    assert len(whole) == FREQUENCY_SLOTS and whole.max() == 20
    assert np.array_equal(whole, add_frequencies(parts))


def test_a_span_counts_once_for_a_document_however_often_it_is_there():
    text = f"{BOILERPLATE}。见{BOILERPLATE}。{BOILERPLATE * 2}。"
    assert add_frequencies([gram_document_frequencies([Document(text, None, "")], MiningSettings())]).max() == 1


# --- settings ---


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"strategy": "lsc"}, "--strategy is one of lcs, title, inverse_cloze, crop, random, not lsc."),
        ({"leftover_strategy": "keep"}, "--leftover_strategy is one of drop, self, join, inverse_cloze, not keep."),
        ({"max_pairs_per_sentence": -1}, "--max_pairs_per_sentence is 1 or more, or 0 for no limit, not -1."),
        ({"max_pairs_per_document": -2}, "--max_pairs_per_document is 1 or more, or 0 for no limit, not -2."),
        ({"min_span_weight": 0}, "--min_span_weight is 1 or more, not 0."),
        ({"min_span_weight": 2**31 - 1}, "--min_span_weight is at most 20000, for no sentence weighs more, not 21"),
        ({"min_span_weight_short": 0}, "--min_span_weight_short is 1 or more, not 0."),
        ({"min_span_weight": 10}, "--min_span_weight_short 20 is more than --min_span_weight 10: short sentences"),
        ({"min_sentence_length": 0}, "--min_sentence_length is 1 or more, not 0."),
        ({"max_sentence_length": 1}, "--max_sentence_length lies from --min_sentence_length to 2000, not at 1."),
        ({"max_sentence_length": 2001}, "--max_sentence_length lies from --min_sentence_length to 2000, not at 2001."),
        ({"max_context_length": 500}, "--max_context_length is at least --max_sentence_length, not 500."),
        ({"max_document_frequency": 0.0}, "--max_document_frequency is a share above 0 and at most 1, not 0.0."),
        ({"max_document_frequency": 1.5}, "--max_document_frequency is a share above 0 and at most 1, not 1.5."),
        (
            {"max_document_frequency": 0.5, "strategy": "random"},
            "--max_document_frequency has no effect on --strategy random: leave it out.",
        ),
        (
            {"max_document_frequency": 0.5, "strategy": "title", "title_needs_span": False},
            "--max_document_frequency has no effect on --strategy title: leave it out.",
        ),
        (
            {"leftover_strategy": "self", "strategy": "crop"},
            "--leftover_strategy has no effect on --strategy crop: leave it out.",
        ),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_with_what_to_change(settings, message):
    with pytest.raises(InputError) as caught:
        mine("text", **settings)
    assert str(caught.value).startswith(message)


def test_the_heaviest_threshold_that_is_allowed_makes_no_pair_but_no_trouble_either():
    text = "字" * 2000
    settings = {"min_span_weight": 20_000, "max_sentence_length": 2000, "max_context_length": 2000}
    pairs, _ = mine(f"{text}\n{text[:-1]}天", min_span_weight_short=20_000, **settings)
    assert pairs == []
