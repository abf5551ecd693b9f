"""The same text again, and nearly the same text again, against slow oracles."""

import random

import numpy as np
import pytest

from retrieval_pretraining import duplicates
from retrieval_pretraining.duplicates import SHINGLE, ExactDuplicates, NearDuplicates, choose_bands

CHINESE = "".join(chr(code) for code in range(0x4E00, 0x4E00 + 900))
ENGLISH = "abcdefghijklmnopqrstuvwxyz    "


def jaccard(one: str, other: str) -> float:
    """The share of common pieces of `SHINGLE` characters among all of both."""
    sets = []
    for text in (one, other):
        bare = "".join(text.split()).lower()
        sets.append({bare[begin : begin + SHINGLE] for begin in range(max(1, len(bare) - SHINGLE + 1))})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def changed(text: str, edits: int, generator: random.Random) -> str:
    letters = list(text)
    for _ in range(edits):
        letters[generator.randrange(len(letters))] = generator.choice(CHINESE)
    return "".join(letters)


# --- the same ---


def test_the_first_of_equal_texts_is_new():
    seen = ExactDuplicates()
    assert [seen.add(text) for text in ("a", "b", "a", "", "", "A")] == [True, True, False, True, False, True]


@pytest.mark.parametrize("other", ["一 二", " 一二\n", "一\u200b二", "\ufeff一二\u3000"])
def test_white_space_and_invisible_characters_make_no_difference(other):
    seen = ExactDuplicates()
    assert seen.add("一二") and not seen.add(other)


def test_stored_keys_are_found_again(monkeypatch):
    monkeypatch.setattr(duplicates, "_RECENT_KEYS", 7)
    generator, seen, oracle = random.Random(0), ExactDuplicates(), set()
    for _ in range(2000):
        text = str(generator.randrange(700))
        assert seen.add(text) == (text not in oracle)
        oracle.add(text)
    sizes = [len(run) for run in seen.runs]
    assert sum(sizes) + len(seen.recent) == len(oracle)
    # Runs are merged, so that few have to be looked at, and hold 8 bytes a text.
    assert sizes == sorted(sizes, reverse=True) and len(sizes) < 10
    assert {run.dtype for run in seen.runs} == {np.dtype(np.uint64)}


# --- nearly the same ---


@pytest.mark.parametrize("alphabet, length", [(CHINESE, 300), (ENGLISH, 800)])
@pytest.mark.parametrize("threshold", [0.6, 0.8])
def test_near_duplicates_are_those_whose_shingles_overlap(alphabet, length, threshold):
    generator = random.Random(1)
    near, apart = 0, 0
    for _ in range(100):
        text = "".join(generator.choices(alphabet, k=length))
        other = changed(text, round(length / 7 * generator.random() ** 2), generator)
        seen, similarity = NearDuplicates(threshold), jaccard(text, other)
        assert seen.add(text)
        is_near = not seen.add(other)
        # The estimate has a standard error of 0.04 near the threshold.
        if similarity > threshold + 0.13:
            assert is_near
            near += 1
        elif similarity < threshold - 0.13:
            assert not is_near
            apart += 1
    assert near >= 10 and apart >= 10


@pytest.mark.parametrize("other", ["今天 天气很好，我们去公园散步。", "今天天气很好，我们去公园散步。\u200b"])
def test_near_includes_the_same_text_written_otherwise(other):
    seen = NearDuplicates(1.0)
    assert seen.add("今天天气很好，我们去公园散步。") and not seen.add(other)
    assert seen.add("The CAT sat.") and not seen.add("the cat SAT.")


def test_short_and_empty_texts_are_compared_too():
    seen = NearDuplicates(0.8)
    assert [seen.add(text) for text in ("", "  ", "一", "二", "一", "一二三四", "一二三四五")] == [
        *(True, False),
        *(True, True, False),
        *(True, True),
    ]


def test_every_text_is_found_again_when_the_table_has_grown(monkeypatch):
    monkeypatch.setattr(duplicates, "_TEXTS_AT_ONCE", 100)
    generator, seen = random.Random(2), NearDuplicates(0.8)
    texts = ["".join(generator.choices(CHINESE, k=40)) for _ in range(1500)]
    slots = seen.table.shape[1]
    assert all(seen.add(text) for text in texts)
    assert seen.table.shape[1] > 2 * slots
    assert not any(seen.add(text) for text in texts)
    assert seen.size == len(texts)


def test_a_text_costs_four_to_eight_hundred_bytes():
    generator, seen, costs = random.Random(3), NearDuplicates(0.8), []
    while seen.size < 1025:
        seen.add("".join(generator.choices(CHINESE, k=12)))
        costs.append((seen.table.nbytes + seen.signatures.nbytes) / seen.size)
    # Tables are full, and then doubled.
    assert min(costs[512:]) < 410 and max(costs[512:]) < 810


def test_the_same_texts_give_the_same_duplicates_in_another_process():
    # Golden: neither the hash seed of Python nor the order of a set has a part in it.
    signature = NearDuplicates(0.8)._signature("今天天气很好，我们去公园散步。")
    assert signature[:6].tolist() == [50088, 39929, 5476, 19644, 54562, 33587]


def test_bands_find_what_is_at_the_threshold():
    for threshold in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        bands, rows = choose_bands(threshold)
        assert bands * rows <= duplicates.PERMUTATIONS
        assert 1 - (1 - threshold**rows) ** bands >= 0.95
