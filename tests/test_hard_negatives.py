"""Hard negatives against a brute force that knows nothing of keys, windows or searches but what a few loops say."""

import zlib

import numpy as np
import pytest

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.hard_negatives import (
    Corpus,
    Mining,
    add_negatives,
    bm25_ranker,
    default_count,
    describe,
    model_ranker,
    pair_scores,
)
from retrieval_pretraining.relevance import negative_columns

WORDS = "motor magnet sensor query vector moon cat garden table kitchen encoder decoder loss text word".split()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)


class ToyEncoder:
    """Vectors of length 1 of the words of a text, and of a little noise, so that no two texts are equally near."""

    def __init__(self, query_prompt: str = ""):
        self.query_prompt = query_prompt

    def encode_documents(self, texts, progress=None):
        noise = [np.random.default_rng(zlib.crc32(text.encode())).random(len(WORDS)) for text in texts]
        vectors = np.array([[text.split().count(word) for word in WORDS] for text in texts]) + 0.1 * np.array(noise)
        vectors = vectors.astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def encode_queries(self, texts, progress=None):
        return self.encode_documents([self.query_prompt + text for text in texts])


def documents(count: int, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, size=5)) + f" number{i}" for i in range(count)]


def pairs_of(rows):
    import datasets

    names = ("query", "positive", "negatives")
    text = datasets.Value("string")
    features = datasets.Features({"query": text, "positive": text, "negatives": datasets.Sequence(text)})
    return datasets.Dataset.from_dict(dict(zip(names, map(list, zip(*rows)), strict=True)), features=features)


def toy_pairs(corpus: list[str], count: int = 12, seed: int = 1):
    """Queries with one or two positives each, without negatives."""
    generator = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        query = " ".join(generator.choice(WORDS, size=3)) + f" query{number}"
        rows += [(query, corpus[at], []) for at in generator.permutation(len(corpus))[: 1 + number % 2]]
    return pairs_of(rows)


def same(one: str, other: str) -> bool:
    return one.split() == other.split()


def window_by_brute_force(query, pairs, corpus, score, ranks) -> list[str]:
    """The documents from one rank to another that answer the query in no pair, best first."""
    answers = [query, *(row["positive"] for row in pairs if same(row["query"], query))]
    others = [text for text in corpus if not any(same(text, answer) for answer in answers)]
    others.sort(key=lambda text: -score(query, text))
    return others[ranks[0] - 1 : ranks[1]]


def negatives_of(examples, row: int) -> list[str]:
    return [examples[row][name] for name in negative_columns(examples)]


def cosine(encoder):
    return lambda query, text: float(encoder.encode_queries([query])[0] @ encoder.encode_documents([text])[0])


def test_negatives_of_the_model_are_those_of_the_window_of_a_brute_force():
    corpus, encoder = documents(60), ToyEncoder("motor ")
    pairs = toy_pairs(corpus)
    mining = Mining(model_ranker(Corpus(corpus), encoder), ranks=(5, 14))
    examples, counts = add_negatives(pairs, count=3, corpus=Corpus(corpus), mining=mining)
    assert counts == {"given": 0, "mined": 3 * len(pairs), "random": 0, "answers": 0}
    for row in range(len(pairs)):
        window = window_by_brute_force(pairs[row]["query"], pairs, corpus, cosine(encoder), (5, 14))
        found = negatives_of(examples, row)
        assert len(set(found)) == 3 and set(found) <= set(window)


def test_all_of_a_window_is_drawn_where_it_is_as_small_as_what_is_wanted():
    corpus, encoder = documents(60), ToyEncoder()
    pairs = toy_pairs(corpus)
    mining = Mining(model_ranker(Corpus(corpus), encoder), ranks=(3, 6))
    examples, _ = add_negatives(pairs, count=4, corpus=Corpus(corpus), mining=mining)
    for row in range(len(pairs)):
        window = window_by_brute_force(pairs[row]["query"], pairs, corpus, cosine(encoder), (3, 6))
        assert set(negatives_of(examples, row)) == set(window)


def test_negatives_of_bm25_share_a_word_with_the_query_and_are_no_answers():
    pytest.importorskip("bm25s")
    corpus = documents(60)
    pairs = toy_pairs(corpus)
    mining = Mining(bm25_ranker(Corpus(corpus)), ranks=(1, 8))
    examples, counts = add_negatives(pairs, count=2, corpus=Corpus(corpus), mining=mining)
    assert counts["mined"] == 2 * len(pairs)
    for row in range(len(pairs)):
        answers = {each["positive"] for each in pairs if each["query"] == pairs[row]["query"]}
        for text in negatives_of(examples, row):
            assert text not in answers and set(text.split()) & set(pairs[row]["query"].split())


def test_only_a_query_with_many_answers_is_searched_for_deeply():
    corpus, asked = documents(200), {}
    rows = [("query motor", text, []) for text in corpus[:90]] + [(f"moon {i}", corpus[100 + i], []) for i in range(5)]
    search = model_ranker(Corpus(corpus), ToyEncoder())

    def rank(queries, count):
        asked.update(dict.fromkeys(queries, count))
        return search(queries, count)

    examples, counts = add_negatives(
        pairs_of(rows), count=1, corpus=Corpus(corpus), mining=Mining(rank, ranks=(1, 10))
    )
    assert asked["query motor"] >= 100 and max(asked[f"moon {i}"] for i in range(5)) <= 14
    assert counts["mined"] == len(rows)
    assert not set(examples["negative_1"][:90]) & set(corpus[:90])


def test_texts_that_equal_an_answer_or_the_query_are_no_negatives():
    query = "motor magnet sensor"
    corpus = ["motor magnet  sensor", " motor magnet sensor number1", "motor magnet sensor number2", "cat garden moon"]
    pairs = pairs_of([(query, "motor magnet sensor\nnumber1", []), (query, "motor magnet sensor number2 ", [])])
    mining = Mining(model_ranker(Corpus(corpus), ToyEncoder()), ranks=(1, 4))
    examples, _ = add_negatives(pairs, count=1, corpus=Corpus(corpus), mining=mining)
    assert [negatives_of(examples, row) for row in range(2)] == [["cat garden moon"]] * 2


def test_a_margin_leaves_out_what_scores_nearly_as_the_positive_does():
    corpus, encoder = documents(60), ToyEncoder()
    pairs = toy_pairs(corpus)
    score = cosine(encoder)
    mining = Mining(model_ranker(Corpus(corpus), encoder), (1, 60), 0.3, pair_scores(encoder))
    examples, counts = add_negatives(pairs, count=2, corpus=Corpus(corpus), mining=mining)
    assert counts["mined"] and counts["random"]  # some positives are far, and nothing is farther in the window
    drawn = 0
    for row in range(len(pairs)):
        query, limit = pairs[row]["query"], 0.7 * score(pairs[row]["query"], pairs[row]["positive"])
        below = [
            text
            for text in window_by_brute_force(query, pairs, corpus, score, (1, 60))
            if score(query, text) <= limit + 1e-6
        ]
        mined = negatives_of(examples, row)[: min(2, len(below))]
        assert set(mined) <= set(below)
        drawn += len(mined)
    assert drawn == counts["mined"]


def test_draws_depend_on_the_seed_and_the_row_alone():
    corpus, encoder = documents(60), ToyEncoder()
    pairs = toy_pairs(corpus)

    def drawn(rows, seed):
        mining = Mining(model_ranker(Corpus(corpus), encoder), ranks=(5, 30))
        examples, _ = add_negatives(rows, count=2, corpus=Corpus(corpus), mining=mining, seed=seed)
        return [negatives_of(examples, row) for row in range(len(rows))]

    assert drawn(pairs, 7) == drawn(pairs, 7) != drawn(pairs, 8)
    assert drawn(pairs.select(range(4)), 7) == drawn(pairs, 7)[:4]
    twice = [row for row in range(1, len(pairs)) if pairs[row]["query"] == pairs[row - 1]["query"]]
    assert len(twice) == 6 and any(drawn(pairs, 7)[row] != drawn(pairs, 7)[row - 1] for row in twice)


def test_negatives_that_pairs_came_with_are_kept_and_only_what_lacks_is_mined():
    corpus = documents(40)
    rows = [("motor query", corpus[0], [corpus[1], corpus[2]]), ("moon query", corpus[3], [corpus[4]])]
    mining = Mining(model_ranker(Corpus(corpus), ToyEncoder()), ranks=(2, 12))
    examples, counts = add_negatives(pairs_of(rows), count=2, corpus=Corpus(corpus), mining=mining)
    assert counts == {"given": 3, "mined": 1, "random": 0, "answers": 0}
    assert negatives_of(examples, 0) == [corpus[1], corpus[2]] and negatives_of(examples, 1)[0] == corpus[4]
    assert negatives_of(examples, 1)[1] not in (corpus[3], corpus[4])


def test_of_more_negatives_than_wanted_some_are_drawn():
    corpus = documents(40)
    examples, counts = add_negatives(pairs_of([("q", corpus[0], corpus[1:9])]), count=3, corpus=Corpus(corpus))
    assert counts["given"] == 3 and len(set(negatives_of(examples, 0)) & set(corpus[1:9])) == 3


def test_a_given_negative_that_answers_the_query_in_another_pair_is_left_out():
    corpus = documents(10)
    rows = [("a query", corpus[0], [corpus[1] + " "]), ("a query", corpus[1], [corpus[2]])]
    examples, counts = add_negatives(pairs_of(rows), count=1, corpus=Corpus(corpus), seed=3)
    assert counts == {"given": 1, "mined": 0, "random": 1, "answers": 1}
    assert negatives_of(examples, 0)[0] not in corpus[:2] and negatives_of(examples, 1) == [corpus[2]]
    assert "1 given ones left out, which answer the same query" in describe(counts, pairs=2, how="")


def test_where_no_document_is_left_that_is_said():
    with pytest.raises(InputError, match="has no further document that does not answer it, among 2: lower"):
        add_negatives(pairs_of([("q", "a", []), ("q", "b", [])]), count=1, corpus=Corpus(["a", "b"]))


def test_how_many_there_are_by_default():
    assert default_count(pairs_of([("q", "a", [])])) == 1
    assert default_count(pairs_of([("q", "a", ["b", "c", "d"])] * 2 + [("r", "a", [])])) == 3
    assert default_count(pairs_of([("q", "a", [f"{i}" for i in range(30)])])) == 7


def test_what_was_found_is_one_line():
    counts = {"given": 4, "mined": 1000, "random": 20, "answers": 0}
    assert describe(counts, pairs=512, how="mined by BM25") == (
        "negatives: 2 a pair: 4 given, 1,000 mined by BM25, 20 random, where there were too few"
    )
