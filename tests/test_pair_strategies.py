"""The ways to make pairs besides the shared span, and what becomes of the sentences that are left over."""

import itertools
from collections import Counter

import pytest
from documents_for_tests import chinese_documents

from retrieval_pretraining.documents import Document
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.pair_mining import mine_documents

MOTOR = "永磁同步电机控制"
TITLE = f"论{MOTOR}"
BODY = [f"{MOTOR}很好。", "天气也好。", f"本文说明{MOTOR}。", "围网用塑料。", "The end of it."]
TEXT = "".join(BODY)


def mine(*texts, title=None, seed=42, **settings):
    documents = [Document(text, title, f"d{number}") for number, text in enumerate(texts)]
    pairs, counts = mine_documents(documents, MiningSettings(**settings), seed=seed)
    return list(pairs), counts


def texts_of(pairs) -> list[tuple[str, str]]:
    return [(pair.text, pair.text_pair) for pair in pairs]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [row["text"] for row in chinese_documents(40, seed=4, sentences=12)]


# --- title ---


def test_title_pairs_the_title_with_each_sentence_that_shares_a_span_with_it():
    pairs, counts = mine(TEXT, title=TITLE, strategy="title")
    assert texts_of(pairs) == [(TITLE, BODY[0]), (TITLE, BODY[2])]
    assert {(pair.shared_span, pair.strategy) for pair in pairs} == {(MOTOR, "title")}
    assert counts["sentences left over"] == 3


def test_title_without_the_span_pairs_it_with_every_sentence():
    pairs, _ = mine(TEXT, title=TITLE, strategy="title", title_needs_span=False)
    assert texts_of(pairs) == [(TITLE, sentence) for sentence in BODY]
    assert {pair.shared_span for pair in pairs} == {""}


def test_title_pairs_many_sentences_but_not_more_than_the_document_may_have():
    body = "\n".join(f"{MOTOR}{chr(0x4E00 + number)}" for number in range(50))
    assert len(mine(body, title=TITLE, strategy="title")[0]) == 50
    assert len(mine(body, title=TITLE, strategy="title", max_pairs_per_document=7)[0]) == 7


@pytest.mark.parametrize("needs_span", [True, False])
def test_title_makes_no_pair_without_a_title(needs_span):
    assert mine(TEXT, strategy="title", title_needs_span=needs_span)[0] == []


def test_a_long_title_goes_with_a_short_sentence_that_shares_less():
    title = "天气" + "，而这里还有很多别的字与此完全无关"
    long = "看天气" + "完全相反的另一句话，彼处毫不相干可言"
    assert texts_of(mine(f"看天气\n{long}", title=title, strategy="title")[0]) == [(title, "看天气")]


# --- inverse cloze ---


def test_inverse_cloze_pairs_each_sentence_with_what_stands_around_it(texts):
    pairs, counts = mine(*texts, strategy="inverse_cloze")
    assert len(pairs) == counts["sentences"] == counts["candidates"] == 40 * 12
    for pair in pairs:
        text = texts[int(pair.document_id[1:])]
        assert pair.text not in pair.text_pair
        assert pair.text_pair in (text.replace(pair.text, ""), text.replace(pair.text, "", 1))
        assert pair.shared_span == "" and pair.strategy == "inverse_cloze"


def test_inverse_cloze_leaves_the_title_out_and_keeps_to_the_length(texts):
    pairs, _ = mine(*texts, title="论文", strategy="inverse_cloze", max_sentence_length=60, max_context_length=60)
    assert not any("论文" in text for pair in texts_of(pairs) for text in pair)
    assert max(len(pair.text_pair) for pair in pairs) <= 60


def test_inverse_cloze_takes_a_sample_where_a_document_may_have_so_many_pairs(texts):
    pairs, counts = mine(*texts, strategy="inverse_cloze", max_pairs_per_document=4)
    assert set(Counter(pair.document_id for pair in pairs).values()) == {4}
    assert counts["candidates over the document limit"] == 40 * 8
    taken = {texts[int(pair.document_id[1:])].index(pair.text) > 100 for pair in pairs}
    assert taken == {True, False}, "not the first ones"


def test_inverse_cloze_of_a_document_of_one_sentence_is_left_over():
    pairs, counts = mine("Only one.", strategy="inverse_cloze")
    assert pairs == [] and counts["sentences left over"] == 1


# --- crop ---


def test_crops_are_two_pieces_of_the_text(texts):
    pairs, counts = mine(*texts, strategy="crop")
    assert counts["candidates"] == 40 * 12 == len(pairs) + counts["candidates too short"]
    for pair in pairs:
        text = texts[int(pair.document_id[1:])]
        assert pair.text in text and pair.text_pair in text and pair.text != pair.text_pair
        assert pair.shared_span == "" and pair.strategy == "crop"


def test_crops_hold_whole_words_and_do_not_exceed_their_length():
    words = [f"word{number}x" for number in range(400)]
    text = ". ".join(" ".join(words[begin : begin + 20]) for begin in range(0, 400, 20))
    pairs, _ = mine(text, strategy="crop", max_sentence_length=200, max_context_length=200)
    pieces = list(itertools.chain(*texts_of(pairs)))
    assert {word.strip(".") for piece in pieces for word in piece.split()} <= set(words) | {""}
    assert len(pieces) == 40 and max(map(len, pieces)) <= 200


def test_crops_are_as_many_as_the_sentences_might_make_or_the_document_may_have():
    assert mine(TEXT * 3, strategy="crop", max_pairs_per_sentence=4)[1]["candidates"] == 10
    assert mine(TEXT * 3, strategy="crop", max_pairs_per_document=2)[1]["candidates"] == 2
    assert mine("Hi", strategy="crop")[1]["candidates too short"] == 1


# --- random ---


def test_random_pairs_any_two_sentences_within_the_limits(texts):
    pairs, counts = mine(*texts, strategy="random", max_pairs_per_sentence=2)
    uses = Counter((pair.document_id, text) for pair in pairs for text in pair[:2])
    assert max(uses.values()) == 2 and len(uses) >= 40 * 12 - 40
    assert counts["candidates"] == 40 * 66
    assert {(pair.shared_span, pair.strategy) for pair in pairs} == {("", "random")}
    assert len(mine(*texts, strategy="random", max_pairs_per_sentence=0)[0]) == 40 * 66
    limited = mine(*texts, strategy="random", max_pairs_per_document=3)[0]
    assert set(Counter(pair.document_id for pair in limited).values()) == {3}


# --- left-over sentences ---


def test_self_pairs_each_left_over_sentence_with_itself():
    pairs, counts = mine(TEXT, leftover_strategy="self")
    assert texts_of(pairs) == [(BODY[0], BODY[2]), *((sentence, sentence) for sentence in (BODY[1], *BODY[3:]))]
    assert [pair.strategy for pair in pairs] == ["lcs", "self", "self", "self"]
    assert pairs[1].shared_span == BODY[1]
    assert counts["pairs from left-over sentences"] == counts["sentences left over"] == 3


def test_inverse_cloze_pairs_each_left_over_sentence_with_what_stands_around_it():
    pairs, counts = mine(TEXT, leftover_strategy="inverse_cloze")
    assert [pair.strategy for pair in pairs] == ["lcs", *["inverse_cloze"] * 3]
    assert texts_of(pairs)[1:] == [(BODY[place], TEXT.replace(BODY[place], "").strip()) for place in (1, 3, 4)]
    assert counts["pairs from left-over sentences"] == 3


def test_a_left_over_title_is_paired_with_the_beginning_of_the_text():
    pairs, _ = mine(TEXT, title="别的题目", leftover_strategy="inverse_cloze")
    assert texts_of(pairs)[1] == ("别的题目", TEXT)


def test_join_puts_left_over_sentences_to_those_that_are_in_a_pair():
    pairs, counts = mine(TEXT, title="别的题目", leftover_strategy="join")
    assert texts_of(pairs) == [(BODY[0] + BODY[1], "".join(BODY[2:]))]
    assert pairs[0].shared_span == MOTOR and pairs[0].strategy == "lcs"
    assert counts["left-over sentences joined"] == 3 and counts["sentences left over"] == 4


def test_joined_texts_stand_in_the_document_and_hold_every_left_over_sentence_once(texts):
    plain, _ = mine(*texts)
    pairs, counts = mine(*texts, leftover_strategy="join")
    assert len(pairs) == len(plain) and [pair.shared_span for pair in pairs] == [pair.shared_span for pair in plain]
    held = {(pair.document_id, text) for pair in pairs for text in pair[:2]}
    for pair, before in zip(pairs, plain, strict=True):
        text = texts[int(pair.document_id[1:])]
        assert pair.text in text and pair.text_pair in text
        assert before.text in pair.text and before.text_pair in pair.text_pair
        assert pair.shared_span in pair.text
    for number, text in enumerate(texts):
        if any(name == f"d{number}" for name, _ in held):
            assert sum(len(piece) for name, piece in held if name == f"d{number}") == len(text)
    assert counts["left-over sentences joined"] > 100


def test_join_keeps_to_the_length(texts):
    pairs, _ = mine(*texts, leftover_strategy="join", max_sentence_length=50, max_context_length=50)
    assert 30 < max(len(text) for pair in texts_of(pairs) for text in pair) <= 50


def test_join_does_not_reach_over_to_the_sentences_of_another_document():
    pairs, _ = mine(TEXT, "别的话。", TEXT + "尾。", leftover_strategy="join")
    assert [pair.document_id for pair in pairs] == ["d0", "d2"]
    assert not any("别的话" in text for pair in texts_of(pairs) for text in pair)


@pytest.mark.parametrize("leftover", ["self", "inverse_cloze"])
def test_pairs_of_left_over_sentences_count_for_the_limit_of_the_document(texts, leftover):
    settings = {"max_pairs_per_document": 5, "leftover_strategy": leftover}
    pairs, _ = mine(*texts, **settings)
    assert set(Counter(pair.document_id for pair in pairs).values()) == {5}
    assert sum(pair.strategy == "lcs" for pair in pairs) == len(mine(*texts, max_pairs_per_document=5)[0])


def test_inverse_cloze_of_a_repeated_sentence_does_not_hold_it():
    document = Document("Alpha is one.\nBravo is two.\nAlpha is one.\nCharlie is three.", None, "d")
    pairs, _ = mine_documents([document], MiningSettings(strategy="inverse_cloze"))
    assert all(pair.text not in pair.text_pair for pair in pairs) and len(pairs) == 3
