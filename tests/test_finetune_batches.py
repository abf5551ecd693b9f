"""Batches of fine-tuning: no answer of a query is a negative in its batch, and each pair comes once an epoch."""

import itertools

import numpy as np
import pytest

from retrieval_pretraining.finetune_batches import AnswerSafeBatches
from retrieval_pretraining.relevance import NEGATIVE, Relevance, example_keys, text_key


def examples_of(rows):
    from datasets import Dataset

    names = ["query", "positive", *(f"{NEGATIVE}{number}" for number in range(1, len(rows[0]) - 1))]
    return Dataset.from_dict(dict(zip(names, map(list, zip(*rows)), strict=True)))


def batches_of(rows, size: int, **options) -> AnswerSafeBatches:
    examples = examples_of(rows)
    return AnswerSafeBatches(*example_keys(examples), Relevance.of(examples).answers, size, **options)


def wrong_negatives(rows, batch) -> list[tuple[str, str]]:
    """(query, text) of a batch where the text of another row answers the query, in any row of all, or is it."""
    found = []
    for one, other in itertools.permutations(batch, 2):
        query = rows[one][0]
        answers = {query, *(row[1] for row in rows if row[0] == query)}
        found += [(query, text) for text in rows[other][1:] if text in answers]
    return found


def toy_rows(count: int, seed: int = 0):
    """Few queries and few texts, so that most pairs are in conflict with some other."""
    generator = np.random.default_rng(seed)
    rows = {(f"q{generator.integers(count // 3)}", f"d{generator.integers(count // 2)}") for _ in range(count)}
    answers = {query: {text for each, text in rows if each == query} for query, _ in rows}
    rows = sorted(rows)
    texts = [f"d{i}" for i in range(count // 2)]
    return [(q, d, next(t for t in generator.permutation(texts) if t not in answers[q])) for q, d in rows]


@pytest.mark.parametrize("seed", range(5))
def test_no_text_of_a_batch_answers_the_query_of_another_pair(seed):
    rows = toy_rows(60, seed)
    for epoch in range(3):
        batches = batches_of(rows, 8, seed=seed)
        batches.set_epoch(epoch)
        assert [wrong_negatives(rows, batch) for batch in batches] == [[]] * len(batches)


def test_the_second_answer_of_a_query_is_kept_apart_also_as_the_answer_of_another_query():
    """What sentence-transformers' NO_DUPLICATES lets through: no text comes twice in these two rows."""
    rows = [("q1", "d1"), ("q1", "d2"), ("q2", "d2")]
    together = [set(batch) for epoch in range(20) for batch in _epoch(batches_of(rows, 3), epoch)]
    assert all(batch == {0} or batch == {1} or batch == {2} for batch in together)


class Counted(dict):
    looked_at = 0

    def __getitem__(self, key):
        self.looked_at += 1
        return super().__getitem__(key)


def test_a_query_with_thousands_of_answers_is_not_tried_again_and_again():
    rows = [("hub", f"a{i}") for i in range(500)] + [(f"q{i}", f"d{i}") for i in range(1500)]
    examples = examples_of(rows)
    answers = Counted(Relevance.of(examples).answers)
    batches = list(AnswerSafeBatches(*example_keys(examples), answers, 8))
    # 250 batches, one of the query's rows in each; each row is looked at once, and once a batch the one that waits.
    assert answers.looked_at <= len(rows) + 2 * len(batches)
    hubs = [sum(row < 500 for row in batch) for batch in batches]
    assert set(hubs) == {1} and len(batches) == 250 and all(len(batch) == 8 for batch in batches[:200])


def test_a_query_is_no_negative_of_itself():
    rows = [("a text", "another"), ("a third", "a  text")]
    assert [len(batch) for batch in batches_of(rows, 2)] == [1]


def test_no_duplicates_of_sentence_transformers_takes_an_answer_for_a_negative():
    """Why there are batches of our own; when this fails they may have become needless."""
    pytest.importorskip("sentence_transformers")
    try:
        from sentence_transformers.base.sampler import NoDuplicatesBatchSampler
    except ImportError:
        from sentence_transformers.sampler import NoDuplicatesBatchSampler
    import torch

    rows = [("q1", "d1"), ("q1", "d2"), ("q2", "d2")]
    examples = examples_of(rows)
    sampler = NoDuplicatesBatchSampler(examples, batch_size=3, drop_last=False, generator=torch.Generator(), seed=0)
    found = []
    for epoch in range(10):
        sampler.set_epoch(epoch)
        found += [wrong for batch in sampler for wrong in wrong_negatives(rows, batch)]
    assert ("q1", "d2") in found


def _epoch(batches, epoch: int):
    batches.set_epoch(epoch)
    return list(batches)


def test_each_pair_comes_once_an_epoch_in_another_order_each_time():
    rows = [(f"q{i}", f"d{i}", f"d{(i + 40) % 80}") for i in range(50)]
    batches = batches_of(rows, 8)
    first, second = _epoch(batches, 0), _epoch(batches, 1)
    assert len(batches) == 7 and batches.left_out == 0
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second)) == list(range(50))
    assert first != second and first == _epoch(batches_of(rows, 8), 0)
    assert _epoch(batches_of(rows, 8, seed=1), 0) != first


def test_pairs_that_fit_into_no_batch_are_left_out_and_counted():
    rows = [("q", f"d{i}") for i in range(30)] + [(f"r{i}", f"e{i}") for i in range(30)]
    batches = batches_of(rows, 10)
    found = list(batches)
    assert len(found) == len(batches) == 6
    assert batches.left_out == 60 - sum(map(len, found)) > 0
    assert all(sum(row < 30 for row in batch) <= 1 for batch in found)


def test_the_batches_of_all_processes_are_safe_together_and_full():
    rows = toy_rows(90)
    batches = batches_of(rows, 4, num_processes=2)
    found = list(batches)
    assert len(found) == len(batches) and len(found) % 2 == 0 and {len(batch) for batch in found} == {4}
    for one, other in zip(found[::2], found[1::2], strict=True):
        assert not wrong_negatives(rows, one + other)


def test_only_full_batches_with_drop_last():
    rows = [(f"q{i}", f"d{i}") for i in range(50)]
    assert [len(batch) for batch in batches_of(rows, 8, drop_last=True)] == [8] * 6


def test_texts_are_the_same_but_for_white_space():
    assert text_key("a  text\n") == text_key(" a text") != text_key("atext")
