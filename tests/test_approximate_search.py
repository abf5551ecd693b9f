"""Approximate search: it misses little, and what it finds is scored and ordered as by the exact one."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from retrieval_pretraining.approximate_search import ApproximateIndex, approximate_search
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.search import search

needs_faiss = pytest.mark.skipif(not find_spec("faiss"), reason="needs the extra faiss")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def clustered(count: int, seed: int) -> np.ndarray:
    """Unit vectors around 50 centres, the same for every seed."""
    centres = np.random.default_rng(0).standard_normal((50, 32))
    generator = np.random.default_rng(seed)
    vectors = centres[generator.integers(0, 50, count)] + 0.7 * generator.standard_normal((count, 32))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def vectors():
    return clustered(100, seed=1), clustered(5000, seed=2)


def recall(found: np.ndarray, expected: np.ndarray) -> float:
    shared = [len(set(own) & set(right)) for own, right in zip(found.tolist(), expected.tolist(), strict=True)]
    return sum(shared) / expected.size


@needs_faiss
@pytest.mark.parametrize("index", ["hnsw", "ivf"])
def test_most_of_what_exact_search_finds_is_found(vectors, index):
    expected, _ = search(*vectors, 10)
    found, scores = approximate_search(*vectors, 10, index=index)
    assert (found.shape, found.dtype, scores.dtype) == ((100, 10), np.int64, np.float32)
    assert recall(found, expected) > 0.97
    assert recall(found[:, :1], expected[:, :1]) > 0.98


@needs_faiss
@pytest.mark.parametrize("index", ["hnsw", "ivf"])
def test_what_is_found_has_its_exact_score_and_order(vectors, index):
    queries, documents = vectors
    documents = documents.copy()
    documents[100:200] = documents[300:400]  # ties
    found, scores = approximate_search(queries, documents, 20, index=index)
    products = queries.astype(np.float64) @ documents.T.astype(np.float64)
    for row, own in enumerate(found):
        exact = products[row, own].astype(np.float32)
        np.testing.assert_array_equal(scores[row], exact)
        assert own.tolist() == sorted(own, key=lambda i: (-np.float32(products[row, i]), i))
        assert len(set(own.tolist())) == 20


@needs_faiss
@pytest.mark.parametrize("index", ["hnsw", "ivf"])
def test_without_rescoring_the_scores_are_those_of_faiss(vectors, index):
    exact = approximate_search(*vectors, 10, index=index)
    found, scores = ApproximateIndex(vectors[1], index=index).search(vectors[0], 10, rescore=False)
    assert recall(found, exact[0]) > 0.95 and (np.diff(scores, axis=1) <= 0).all()
    np.testing.assert_allclose(scores[:, 0], exact[1][:, 0], atol=1e-5)


@needs_faiss
@pytest.mark.parametrize("chunk_score", ["max", "mean", "max+mean"])
def test_documents_are_scored_by_all_of_their_chunks(vectors, chunk_score):
    queries, chunks = vectors
    counts = np.random.default_rng(0).integers(1, 6, 3000)
    of_chunk = np.repeat(np.arange(3000), counts)[: len(chunks)]
    options = dict(document_of_chunk=of_chunk, chunk_score=chunk_score)
    expected, expected_scores = search(queries, chunks, of_chunk[-1] + 1, **options)
    found, scores = approximate_search(queries, chunks, 10, **options)
    for row in range(len(queries)):
        exact = dict(zip(expected[row].tolist(), expected_scores[row].tolist(), strict=True))
        np.testing.assert_allclose(scores[row], [exact[i] for i in found[row].tolist()], atol=1e-6)
        assert (np.diff(scores[row]) <= 0).all()
    if chunk_score == "max":  # an index knows nothing of means
        assert recall(found, expected[:, :10]) > 0.97


@needs_faiss
def test_a_query_for_which_the_index_finds_too_little_is_searched_exactly(vectors):
    index = ApproximateIndex(vectors[1], index="ivf")
    for rescore in (True, False):
        found, scores = index.search(vectors[0], 4000, rescore=rescore)
        expected = search(*vectors, 4000)
        np.testing.assert_array_equal(found, expected[0])
        np.testing.assert_array_equal(scores, expected[1])


@needs_faiss
def test_few_vectors_are_searched_exactly_without_an_index(vectors):
    queries, documents = vectors[0], vectors[1][:500]
    index = ApproximateIndex(documents)
    assert index.index is None
    for one, other in zip(index.search(queries, 600), search(queries, documents, 600), strict=True):
        np.testing.assert_array_equal(one, other)


@needs_faiss
def test_an_ivf_index_is_the_same_each_time_and_faiss_has_its_threads_back(vectors):
    import faiss

    faiss.omp_set_num_threads(2)
    first, again = (approximate_search(*vectors, 50, index="ivf") for _ in range(2))
    assert faiss.omp_get_max_threads() == 2
    np.testing.assert_array_equal(first[0], again[0])


@needs_faiss
def test_no_queries_find_nothing(vectors):
    assert approximate_search(vectors[0][:0], vectors[1], 3)[0].shape == (0, 3)


@needs_faiss
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"index": "flat"}, 'index is "flat"; choose'),
        ({"k": 0}, "k is 0"),
        ({"chunk_score": "sum"}, 'chunk_score is "sum"'),
        ({"document_vectors": np.zeros((0, 32), np.float32)}, "no document vectors"),
        ({"document_vectors": np.full((3, 32), np.nan)}, "diverged"),
        ({"query_vectors": np.ones((3, 5), np.float32)}, "sizes 5 and 32"),
        ({"document_of_chunk": [0, 1]}, "rise by 0 or 1"),
    ],
)
def test_what_cannot_be_searched_is_an_error_in_a_sentence(vectors, changes, said):
    arguments = dict(query_vectors=vectors[0], document_vectors=vectors[1], k=3)
    with pytest.raises(InputError, match=said):
        approximate_search(**{**arguments, **changes})


def test_without_faiss_the_error_says_how_to_install_it(vectors, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match=r'pip install "retromae-gur\[faiss\]"'):
        approximate_search(*vectors, 3)
