"""The hash join against the textbook table of common substrings (tests/reference/pair_mining_oracle.py)."""

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
from documents_for_tests import random_sentences
from reference.pair_mining_oracle import character_weight, heaviest_common_substring, weight
from reference.pair_mining_oracle import normalise as slow_normalise

from retrieval_pretraining import span_join
from retrieval_pretraining.span_join import (
    SentenceBlock,
    frequency_slot,
    heaviest_spans,
    normalise,
    shared_grams,
    text_weight,
)

GOLDEN = json.loads((Path(__file__).parent / "golden/golden_gur.json").read_text(encoding="utf-8"))["mining"]


def block_of(documents: list[list[str]]) -> SentenceBlock:
    document_S = np.repeat(np.arange(len(documents)), list(map(len, documents)))
    return SentenceBlock(list(itertools.chain(*documents)), document_S)


def shared_spans(documents: list[list[str]], threshold: int, **options) -> dict[tuple[int, int], tuple[str, int]]:
    """(sentence, sentence) -> (heaviest span as it stands in the first, its weight); sentences counted through."""
    block = block_of(documents)
    grams = shared_grams(block, threshold, **options)
    members: dict[int, set[int]] = {}
    for gram, position in zip(grams.gram_E.tolist(), grams.position_E.tolist(), strict=True):
        members.setdefault(gram, set()).add(int(block.sentence_C[position]))
    pairs = sorted({pair for group in members.values() for pair in itertools.combinations(sorted(group), 2)})
    if not pairs:
        return {}
    one_P, other_P = np.array(pairs).T
    start_P, length_P, weight_P = heaviest_spans(block, grams, one_P, other_P)
    text = "".join(itertools.chain(*documents))
    spans = [text[begin : begin + length] for begin, length in zip(start_P, length_P, strict=True)]
    return {pair: (span, int(heavy)) for pair, span, heavy in zip(pairs, spans, weight_P, strict=True)}


@pytest.fixture(scope="module")
def documents() -> list[list[str]]:
    generator = random.Random(0)
    return [random_sentences(generator) for _ in range(3000)]


@pytest.fixture(scope="module")
def common(documents) -> dict[tuple[int, int], tuple[int, set[str]]]:
    """The heaviest common substrings of all sentences of a document with each other."""
    found, first = {}, 0
    for sentences in documents:
        for i, j in itertools.combinations(range(len(sentences)), 2):
            found[first + i, first + j] = heaviest_common_substring(sentences[i], sentences[j])
        first += len(sentences)
    return found


# --- weights ---


@pytest.mark.parametrize(
    "text, expected",
    [
        ("中", 10),
        ("𠀀", 10),
        ("〇", 1),  # a number to Unicode, no letter
        ("あ", 10),
        ("カ", 10),
        ("한", 10),
        ("ㄅ", 10),
        ("Ａ", 3),
        ("ａ", 3),
        ("ｶ", 3),
        ("a", 3),
        ("é", 3),
        ("İ", 3),
        ("Я", 3),
        ("ع", 3),
        ("𝐀", 3),
        ("7", 1),
        ("７", 1),
        ("，", 1),
        (" ", 1),
        ("🙂", 1),
        ("👨\u200d👩\u200d👧", 5),
        ("\x00", 1),
        ("\U0010ffff", 1),
        ("", 0),
        ("abcdefghij", 30),
    ],
)
def test_weight(text, expected):
    assert text_weight(text) == expected


def test_every_character_weighs_and_is_lowered_as_unicode_says():
    characters = [chr(code) for code in range(0x110000) if code < 0x3500 or code % 11 == 0]
    characters = [character for character in characters if not 0xD800 <= ord(character) < 0xE000]
    assert list(map(text_weight, characters)) == list(map(character_weight, characters))
    text = "".join(characters)
    assert normalise(text) == slow_normalise(text)


def test_lower_case_leaves_every_character_at_its_place():
    assert normalise("İSTANBUL ΣΑΣ ẞ ＡＢ") == "İstanbul σασ ß ａｂ"


def test_weights_of_the_published_code():
    assert list(map(text_weight, GOLDEN["sentences"])) == GOLDEN["sentence_weight_x10"]


# --- the join ---


def test_heaviest_common_substrings_of_the_published_code():
    expected = GOLDEN["heaviest_common_substring_x10"]
    found = {pair: heavy for pair, (_, heavy) in shared_spans([GOLDEN["sentences"]], 1).items()}
    for i, j in itertools.combinations(range(len(GOLDEN["sentences"])), 2):
        assert found.get((i, j), 0) == expected[i][j], (i, j)


@pytest.mark.parametrize("hash_bits", [64, 9, 3, 0])
@pytest.mark.parametrize("threshold", [20, 30])
def test_two_sentences_share_a_gram_if_and_only_if_they_share_a_heavy_span(documents, common, threshold, hash_bits):
    expected = {pair for pair, (heaviest, _) in common.items() if heaviest >= threshold}
    found, first = {}, 0
    size = 100 if hash_bits else 10
    for begin in range(0, len(documents), size):
        some = documents[begin : begin + size]
        spans = shared_spans(some, threshold, hash_bits=hash_bits)
        found.update({(first + one, first + other): span for (one, other), span in spans.items()})
        first += sum(map(len, some))
    assert len(expected) > 3000
    assert set(found) == expected
    sentences = list(itertools.chain(*documents))
    for pair, (span, heavy) in found.items():
        heaviest, substrings = common[pair]
        assert heavy == heaviest and slow_normalise(span) in substrings and span in sentences[pair[0]]


def test_spans_are_the_same_in_slices_of_any_size(documents, monkeypatch):
    some = documents[:150]
    expected = shared_spans(some, 20)
    for size in (1, 16):
        monkeypatch.setattr(span_join, "_EXPANSION_SLICE", size)
        assert shared_spans(some, 20) == expected


@pytest.mark.parametrize("threshold", [1, 7, 47])
def test_any_threshold_gives_exactly_the_pairs_that_reach_it(documents, common, threshold):
    some = documents[:300]
    number = sum(map(len, some))
    expected = {pair for pair, (heaviest, _) in common.items() if heaviest >= threshold and pair[1] < number}
    assert set(shared_spans(some, threshold)) == expected


def test_ten_latin_letters_are_enough_and_nine_are_not():
    assert shared_spans([["abcdefghij 甲", "zz abcdefghij"]], 30) == {(0, 1): ("abcdefghij", 30)}
    assert not shared_spans([["abcdefghi甲", "zzabcdefghi"]], 30)


def test_upper_case_is_no_difference_and_the_span_stands_as_in_the_first_sentence():
    assert shared_spans([["A Quick Brown FOX.", "the quick BROWN fox!"]], 30) == {(0, 1): (" Quick Brown FOX", 42)}


def test_the_first_of_equally_heavy_spans_is_taken():
    assert shared_spans([["甲乙丙一丁戊己", "丁戊己二甲乙丙"]], 30) == {(0, 1): ("甲乙丙", 30)}


def test_a_span_never_crosses_the_border_of_sentences():
    assert not shared_spans([["零一甲乙", "丙丁二三", "四五甲乙丙丁"]], 30)
    assert set(shared_spans([["零一甲乙丙", "丁二三", "四五甲乙丙丁"]], 30)) == {(0, 2)}


def test_equal_sentences_of_different_documents_are_no_pair():
    sentence = "今天天气真好啊"
    assert not shared_spans([[sentence], [sentence], [sentence]], 20)
    assert not shared_spans([[sentence], [sentence], [sentence]], 20, hash_bits=0)
    assert set(shared_spans([[sentence], [sentence, "甲" + sentence], [sentence]], 20)) == {(1, 2)}


def test_one_sentence_that_repeats_a_span_is_no_pair_with_itself():
    assert not shared_spans([["今天天气好，今天天气好", "别的话"]], 30)


@pytest.mark.parametrize("character", ["a", "中", " ", "🙂"])
def test_long_runs_of_one_character(character):
    sentences = [character * 700, character * 400 + "x", "y" + character * 550, "z"]
    spans = shared_spans([sentences], 30)
    assert {pair: span for pair, (span, _) in spans.items()} == {
        (0, 1): character * 400,
        (0, 2): character * 550,
        (1, 2): character * 400,
    }
    assert {heavy for _, heavy in spans.values()} == {weight(character) * 400, weight(character) * 550}


def test_a_block_without_a_heavy_sentence_has_no_grams():
    assert not shared_spans([["a", "b"], ["c"]], 30)


# --- what narrows the join ---


def test_only_eligible_sentences_take_part():
    sentences = ["甲今天天气", "乙今天天气", "丙今天天气"]
    eligible = np.array([True, False, True])
    assert set(shared_spans([sentences], 30, eligible_S=eligible)) == {(0, 2)}


def test_every_pair_of_a_leader_is_found(documents, common):
    some = documents[:600]
    block = block_of(some)
    leader = np.random.default_rng(0).random(len(block.start_S)) < 0.3
    expected = {
        pair
        for pair, (heaviest, _) in common.items()
        if pair[1] < len(leader) and heaviest >= 30 and leader[[*pair]].any()
    }
    found = {pair for pair in shared_spans(some, 30, leader_S=leader) if leader[[*pair]].any()}
    assert found == expected and len(expected) > 300


def test_frequent_grams_are_ignored():
    sentences = ["甲版权所有违者必究", "乙版权所有违者必究天气真好", "丙天气真好"]
    block = block_of([[sentences[0]]])
    fits, end = block.minimal_grams(30)
    frequent = np.zeros(2**16, dtype=bool)
    frequent[frequency_slot(block.gram_hashes(end), 30, len(frequent))[fits]] = True
    assert set(shared_spans([sentences], 30)) == {(0, 1), (1, 2)}
    assert set(shared_spans([sentences], 30, frequent=frequent)) == {(1, 2)}
    assert set(shared_spans([sentences], 20, frequent=frequent)) == {(0, 1), (1, 2)}, "is of another threshold"
