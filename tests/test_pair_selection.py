"""Which pairs are taken when each sentence and each document may be used a few times only."""

import itertools
import random

import numpy as np
import pytest
from documents_for_tests import chinese_documents, random_sentences
from reference.pair_mining_oracle import all_pairs

from retrieval_pretraining import pair_mining, pair_selection
from retrieval_pretraining.documents import Document
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.pair_mining import mine_documents, split_blocks
from retrieval_pretraining.pair_selection import UNLIMITED, PairLists, select_pairs

Lists = list[list[int]]  # members of each list, ascending


def pair_lists(lists: Lists, leader_S=None) -> PairLists:
    member = np.array(list(itertools.chain(*lists)), dtype=np.int64)
    return PairLists.from_members(member, np.repeat(np.arange(len(lists)), list(map(len, lists))), leader_S)


def possible_pairs(lists: Lists, leader_S=None) -> set[tuple[int, int]]:
    pairs = {pair for members in lists for pair in itertools.combinations(members, 2)}
    return {pair for pair in pairs if leader_S is None or leader_S[[*pair]].any()}


def select(lists: Lists, sizes: list[int], *, leader_S=None, uses=2, document_uses=UNLIMITED, seeds=None):
    """(selection, its pairs); sentences counted through documents of these sizes."""
    seeds = range(1, len(sizes) + 1) if seeds is None else seeds
    selection = select_pairs(
        pair_lists(lists, leader_S),
        document_S=np.repeat(np.arange(len(sizes)), sizes),
        seed_D=np.array([*seeds], dtype=np.uint64),
        uses_S=np.full(sum(sizes), uses),
        uses_D=np.full(len(sizes), document_uses),
    )
    return selection, list(zip(selection.one_P.tolist(), selection.other_P.tolist(), strict=True))


def random_lists(generator: random.Random) -> tuple[Lists, list[int]]:
    sizes = [generator.randint(1, 12) for _ in range(generator.randint(1, 5))]
    lists, first = [], 0
    for size in sizes:
        for _ in range(generator.randint(0, 5)):
            lists.append(sorted(generator.sample(range(first, first + size), generator.randint(1, size))))
        first += size
    return lists, sizes


@pytest.fixture(params=["enumerated", "proposed"])
def tries(request, monkeypatch) -> int:
    """How many to try. Small documents have their pairs enumerated; here they also are treated as large ones are."""
    if request.param == "enumerated":
        return 250
    monkeypatch.setattr(pair_selection, "_ENUMERATED_PER_SENTENCE", 1)
    monkeypatch.setattr(pair_selection, "_MAX_ROUNDS", 20)
    return 80


@pytest.mark.parametrize("uses", [1, 2, 3])
@pytest.mark.parametrize("document_uses", [UNLIMITED, 2])
def test_no_limit_is_exceeded_and_every_pair_left_out_has_something_that_is_used_up(tries, uses, document_uses):
    generator = random.Random(uses)
    for number in range(tries):
        lists, sizes = random_lists(generator)
        document = np.repeat(np.arange(len(sizes)), sizes)
        leader = np.array([generator.random() < 0.5 for _ in document]) if number % 2 else None
        selection, pairs = select(lists, sizes, leader_S=leader, uses=uses, document_uses=document_uses)
        possible = possible_pairs(lists, leader)
        assert len(pairs) == len(set(pairs)) and set(pairs) <= possible and pairs == sorted(pairs)
        used = np.bincount(np.array(pairs, dtype=int).ravel(), minlength=len(document))
        used_D = np.bincount(document[selection.one_P], minlength=len(sizes))
        assert used.max() <= uses and used_D.max() <= document_uses
        for one, other in possible - set(pairs):
            assert uses in (used[one], used[other]) or used_D[document[one]] == document_uses
        dropped = selection.over_sentence_cap + selection.over_document_cap
        assert len(pairs) + dropped == selection.candidates <= len(possible)


def test_without_limits_every_possible_pair_is_taken_once(tries):
    generator = random.Random(5)
    for _ in range(tries):
        lists, sizes = random_lists(generator)
        selection, pairs = select(lists, sizes, uses=UNLIMITED)
        assert pairs == sorted(possible_pairs(lists))
        assert selection.candidates == len(pairs)


def test_what_a_document_gives_does_not_depend_on_those_beside_it(tries):
    generator = random.Random(6)
    for _ in range(tries):
        lists, sizes = random_lists(generator)
        _, together = select(lists, sizes)
        alone, first = [], 0
        for number, size in enumerate(sizes):
            own = [[member - first for member in some] for some in lists if first <= some[0] < first + size]
            _, pairs = select(own, [size], seeds=[number + 1])
            alone += [(first + one, first + other) for one, other in pairs]
            first += size
        assert together == alone


@pytest.mark.usefixtures("tries")
def test_the_seed_of_a_document_decides_what_is_taken():
    lists, sizes = [list(range(30))], [30]
    taken = {seed: tuple(select(lists, sizes, seeds=[seed])[1]) for seed in range(20)}
    assert len(set(taken.values())) == 20
    assert all(tuple(select(lists, sizes, seeds=[seed])[1]) == pairs for seed, pairs in taken.items())


def test_every_pair_is_as_likely_as_any_other():
    counts = np.zeros((6, 6))
    for seed in range(1500):
        for one, other in select([list(range(6))], [6], uses=1, seeds=[seed * 2_654_435_761])[1]:
            counts[one, other] += 1
    # three pairs of fifteen each time
    assert np.abs(counts[np.triu_indices(6, 1)] - 300).max() < 90


@pytest.mark.parametrize("lists", [1, 40])
def test_a_document_whose_sentences_all_share_a_span_is_not_compared_pair_by_pair(lists):
    size = 3000
    selection, pairs = select([list(range(size))] * lists, [size])
    assert selection.candidates < 80 * size, "of 4,498,500 possible pairs"
    assert len(pairs) >= size - 2
    assert np.bincount(np.array(pairs).ravel()).max() <= 2


def test_a_leader_goes_with_every_other_one():
    leader = np.array([False, True, False, False])
    assert select([[0, 1, 2, 3]], [4], leader_S=leader, uses=UNLIMITED)[1] == [(0, 1), (1, 2), (1, 3)]
    assert select([[0, 2, 3]], [4], leader_S=leader, uses=UNLIMITED)[1] == []


def test_nothing_to_select_from():
    assert select([], [3])[1] == select([[0], [2]], [3])[1] == []


# --- on documents ---


def documents_of(texts) -> list[Document]:
    return [Document(text, None, f"d{index}") for index, text in enumerate(texts)]


@pytest.fixture(scope="module")
def random_documents() -> list[Document]:
    generator = random.Random(3)
    return documents_of("\n".join(random_sentences(generator)) or "x" for _ in range(1000))


@pytest.fixture(scope="module")
def sentences_of(random_documents) -> dict[str, list[str]]:
    blocks = split_blocks(random_documents, MiningSettings(), pair_mining.Counter(), seed=0)
    return {split.document.document_id: split.sentences for block in blocks for split in block}


def test_without_limits_the_pairs_are_those_of_the_textbook(random_documents, sentences_of):
    pairs, counts = mine_documents(random_documents, MiningSettings(max_pairs_per_sentence=0))
    expected = {
        (name, sentences[one], sentences[other])
        for name, sentences in sentences_of.items()
        for one, other in all_pairs(sentences)
    }
    found = [(pair.document_id, pair.text, pair.text_pair) for pair in pairs]
    assert set(found) == expected and len(found) == len(expected) == counts["candidates"] > 1500


@pytest.mark.parametrize("rule", [(30, 30, 0), (40, 10, 60), (20, 20, 150)])
def test_the_rule_can_be_set(random_documents, sentences_of, rule):
    full, short, short_sentence = rule
    settings = MiningSettings(
        max_pairs_per_sentence=0,
        min_span_weight=full,
        min_span_weight_short=short,
        max_short_sentence_weight=short_sentence,
    )
    found = {
        (pair.document_id, pair.text, pair.text_pair) for pair in mine_documents(random_documents[:300], settings)[0]
    }
    expected = {
        (document.document_id, sentences[one], sentences[other])
        for document in random_documents[:300]
        for sentences in [sentences_of.get(document.document_id, [])]
        for one, other in all_pairs(sentences, full=full, short=short, short_sentence=short_sentence)
    }
    assert found == expected


@pytest.mark.parametrize("strategy", ["lcs", "random"])
def test_the_pairs_of_a_document_do_not_depend_on_the_corpus_around_it(monkeypatch, strategy):
    documents = documents_of(row["text"] for row in chinese_documents(60, sentences=12))
    settings = MiningSettings(strategy=strategy)
    expected = list(mine_documents(documents, settings)[0])
    assert len(expected) > 60
    for characters in (1, 1000, 10**9):
        monkeypatch.setattr(pair_mining, "BLOCK_CHARACTERS", characters)
        assert list(mine_documents(documents, settings)[0]) == expected
        assert sorted(mine_documents(documents[::-1], settings)[0]) == sorted(expected)
        assert list(mine_documents(documents[7:9], settings)[0]) == [
            pair for pair in expected if pair.document_id in ("d7", "d8")
        ]


def test_the_same_seed_gives_the_same_pairs_and_another_one_others():
    documents = documents_of(row["text"] for row in chinese_documents(20, sentences=20))
    settings = MiningSettings(max_pairs_per_sentence=1)
    first, again, other = (list(mine_documents(documents, settings, seed=seed)[0]) for seed in (1, 1, 2))
    assert first == again != other
    assert abs(len(first) - len(other)) < len(first) / 2


def test_what_a_document_is_called_does_not_matter():
    texts = [row["text"] for row in chinese_documents(10, sentences=20)]
    settings = MiningSettings(max_pairs_per_sentence=1)
    called = [Document(text, None, "x") for text in texts]
    found, expected = (list(mine_documents(some, settings)[0]) for some in (called, documents_of(texts)))
    assert [pair[:3] for pair in found] == [pair[:3] for pair in expected]


def test_one_large_document_of_one_span_is_bounded():
    text = "\n".join(f"{chr(0x4E00 + number)}永磁同步电机控制{chr(0x6E00 + number)}" for number in range(3000))
    pairs, counts = mine_documents(documents_of([text]), MiningSettings())
    assert counts["sentences"] == 3000
    assert counts["candidates"] < 80 * 3000 and len(pairs) >= 2998
    assert {pair.shared_span for pair in pairs} == {"永磁同步电机控制"}
    assert mine_documents(documents_of([text]), MiningSettings(max_pairs_per_document=5))[1]["pairs"] == 5
