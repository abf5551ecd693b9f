"""Batches of like lengths: little padding, each example once, another order each epoch, the same one for all."""

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from retrieval_pretraining.length_batches import (
    EpochSampler,
    length_grouped_order,
    padding_report,
    padding_share,
    passage_length,
    random_order,
    text_lengths,
)

SCIFACT = Path(__file__).parents[1] / "examples/data/scifact/corpus.jsonl.xz"
LENGTHS = np.random.default_rng(0).integers(5, 200, 5000)


def batches_of(order: np.ndarray, size: int) -> list[frozenset]:
    return [frozenset(order[begin : begin + size].tolist()) for begin in range(0, len(order), size)]


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 23, 24, 25, 100, 1000])
@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("pool_batches", [1, 3, 100])
def test_each_example_comes_once(count, batch_size, pool_batches):
    order = length_grouped_order(LENGTHS[:count], batch_size, seed=1, epoch=2, pool_batches=pool_batches)
    assert sorted(order.tolist()) == list(range(count))


def test_the_order_depends_on_seed_and_epoch_alone():
    first = length_grouped_order(LENGTHS, 16, seed=3, epoch=5)
    np.random.seed(9)
    assert np.array_equal(first, length_grouped_order(LENGTHS, 16, seed=3, epoch=5))
    for seed, epoch in ((3, 6), (4, 5), (5, 3)):
        assert not np.array_equal(first, length_grouped_order(LENGTHS, 16, seed=seed, epoch=epoch))


@pytest.mark.parametrize("most", [128, 512])
@pytest.mark.parametrize("batch_size", [8, 32, 64])
def test_padding_of_real_lengths_is_under_three_per_cent(most, batch_size):
    with lzma.open(SCIFACT, "rt", encoding="utf-8") as file:
        words = [len(json.loads(line)["text"].split()) for line in file]
    # Cut into passages, as `encode_documents` cuts.
    lengths = np.array([min(most, count - begin) for count in words for begin in range(0, count, most)])
    random_order = np.random.default_rng(0).permutation(len(lengths))
    assert padding_share(lengths[random_order], batch_size) > 0.1
    for epoch in range(3):
        order = length_grouped_order(lengths, batch_size, seed=0, epoch=epoch)
        assert padding_share(lengths[order], batch_size) < 0.03


def test_padding_share_counts_what_is_not_text():
    # Batches [3, 5], [2, 2] and [4]: 2 of 18 tokens are padding.
    assert padding_share(np.array([3, 5, 2, 2, 4]), 2) == pytest.approx(2 / 18)
    assert padding_share(np.array([7, 7, 7]), 2) == 0.0
    # Two texts to an example: in [[1, 2], [4, 1]] all four take 4 tokens.
    assert padding_share(np.array([[1, 2], [4, 1], [3, 3]]), 2) == pytest.approx(8 / 22)


def test_the_report_names_the_order_of_the_run_first():
    options = {"batch_size": 8, "step_batch_size": 16, "seed": 3}
    order = length_grouped_order(LENGTHS, 16, seed=3, epoch=0)
    grouped = f"{padding_share(LENGTHS[order], 8):.1%}"
    first, second = (padding_report(LENGTHS, **options, group_by_length=group) for group in (True, False))
    assert first.startswith(f"batches of like lengths: {grouped} of their tokens") and "in random order 4" in first
    assert second.startswith("4") and second.endswith(f"with group_by_length {grouped}")


def test_the_batches_of_an_epoch_are_not_in_the_order_of_their_lengths():
    order = length_grouped_order(LENGTHS, 10, seed=0, epoch=0, pool_batches=50)
    means = LENGTHS[order].reshape(-1, 10).mean(axis=1)
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.2
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.2


def test_other_examples_meet_in_each_epoch():
    mates = []
    for epoch in (0, 1):
        batches = batches_of(length_grouped_order(LENGTHS, 10, seed=0, epoch=epoch), 10)
        mates.append({(a, b) for batch in batches for a in batch for b in batch if a < b})
    # Of the 25 examples of one length, and their neighbours, some meet twice.
    assert len(mates[0] & mates[1]) < 0.2 * len(mates[0])


@pytest.mark.parametrize("count", [1003, 303])
def test_the_short_batch_comes_last_and_is_of_any_length(count):
    lengths, means = LENGTHS[:count], []
    for epoch in range(200):
        order = length_grouped_order(lengths, 10, seed=0, epoch=epoch, pool_batches=30)
        whole = lengths[order[:-3]].reshape(-1, 10)
        assert np.median(np.ptp(whole, axis=1)) < 15 and np.ptp(lengths[order[-3:]]) < 30
        means.append(lengths[order[-3:]].mean())
    assert np.mean(means) == pytest.approx(lengths.mean(), abs=15) and np.std(means) > 40


def test_the_parts_of_a_batch_are_as_alike_as_can_be():
    order = length_grouped_order(LENGTHS, 32, seed=0, epoch=0)
    assert (np.diff(LENGTHS[order][:4992].reshape(-1, 32)) >= 0).all()


def test_lengths_come_from_the_columns_without_a_look_at_the_rows(monkeypatch):
    ids = [[1] * length for length in (3, 0, 7, 2)]
    dataset = Dataset.from_dict({"input_ids": ids, "word_ids": ids, "other": ["x"] * 4})
    pairs = dataset.add_column("input_ids_pair", [[1] * length for length in (1, 4, 9, 2)])
    known = dataset.add_column("length", [30, 1, 70, 20]).add_column("size", [1, 2, 3, 4])
    lists = [{"input_ids": [1] * a, "input_ids_pair": [1] * b} for a, b in ((2, 1), (1, 3))]
    monkeypatch.setattr(Dataset, "__getitem__", None)
    monkeypatch.setattr(Dataset, "__iter__", None)
    assert text_lengths(dataset).tolist() == [[3], [0], [7], [2]]
    assert text_lengths(dataset.with_format("numpy")).tolist() == [[3], [0], [7], [2]]
    assert text_lengths(pairs).tolist() == [[3, 1], [0, 4], [7, 9], [2, 2]]
    assert text_lengths(known).tolist() == [[30], [1], [70], [20]]
    assert text_lengths(known, length_column_name="size").tolist() == [[1], [2], [3], [4]]
    assert text_lengths(dataset.select([2, 0, 0])).tolist() == [[7], [3], [3]]
    assert text_lengths(known.select([3, 1])).tolist() == [[20], [1]]
    assert text_lengths(pairs.select(range(1, 3))).tolist() == [[0, 4], [7, 9]]
    assert text_lengths(lists).tolist() == [[2, 1], [1, 3]]
    assert [passage_length(row) for row in lists] == [2, 3]


def test_the_sampler_has_the_order_of_its_epoch():
    sampler = EpochSampler(150_001, lambda epoch: random_order(150_001, seed=4, epoch=epoch))
    assert len(sampler) == 150_001
    assert list(sampler) == random_order(150_001, seed=4, epoch=0).tolist() == list(sampler)
    sampler.set_epoch(3)
    assert list(sampler) == random_order(150_001, seed=4, epoch=3).tolist()
    assert sorted(sampler) == list(range(150_001))
