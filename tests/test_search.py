"""Exact search over documents and chunks of documents: the slow way gives the same."""

import numpy as np
import pytest
import torch

from retrieval_pretraining import search as room
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.search import search


def few_values(rows: int, seed: int = 0) -> np.ndarray:
    """Vectors whose products often tie."""
    return np.random.default_rng(seed).integers(-1, 2, (rows, 4)).astype(np.float32)


@pytest.mark.parametrize("block_size", [1, 7, 100])
def test_the_best_documents_come_first_and_ties_in_document_order(block_size):
    queries, documents = few_values(300), few_values(40, seed=1)
    found, scores = search(queries, documents, 9, block_size=block_size)
    assert (found.shape, found.dtype, scores.dtype) == ((300, 9), np.int64, np.float32)
    for row, query in enumerate(queries):
        products = documents @ query
        assert found[row].tolist() == sorted(range(40), key=lambda i: (-products[i], i))[:9]
        assert scores[row].tolist() == products[found[row]].tolist()


@pytest.mark.parametrize("block_size", [1, 5, 100])
@pytest.mark.parametrize("chunk_score", ["max", "mean", "max+mean"])
def test_a_document_is_scored_by_its_chunks(chunk_score, block_size):
    queries, chunks = few_values(6), few_values(30, seed=1)
    counts = [1, 7, 2, 1, 9, 3, 1, 6]
    of_chunk = np.repeat(np.arange(8), counts)
    options = dict(document_of_chunk=of_chunk, chunk_score=chunk_score, block_size=block_size)
    found, scores = search(queries, chunks, 5, **options)
    for row, query in enumerate(queries):
        products = [(chunks[of_chunk == number] @ query).tolist() for number in range(8)]
        rules = {"max": max, "mean": np.mean, "max+mean": lambda own: max(own) + np.mean(own)}
        expected = np.array([rules[chunk_score](own) for own in products], dtype=np.float32)
        assert found[row].tolist() == np.argsort(-expected, kind="stable")[:5].tolist()
        np.testing.assert_allclose(scores[row], expected[found[row]], atol=1e-6)


def test_never_are_all_queries_and_documents_compared_at_once(monkeypatch):
    sizes = []

    class Watched(np.ndarray):
        def __matmul__(self, other):
            product = np.asarray(self) @ np.asarray(other)
            sizes.append(product.shape)
            return product

    search(few_values(600).view(Watched), few_values(50).view(Watched), 3, block_size=20)
    assert max(rows for rows, _ in sizes) == 256 and max(columns for _, columns in sizes) == 20
    assert sum(rows * columns for rows, columns in sizes) == 600 * 50


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def on_device(request, monkeypatch):
    """`search` by torch, which a CPU would otherwise not do."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    monkeypatch.setattr(room, "_QUERIES_AT_ONCE_ON_DEVICE", 100)

    def searched(queries, documents, k, *, document_of_chunk=None, chunk_score=None, block_size=16384):
        whole = document_of_chunk is None
        bounds = np.arange(len(documents) + 1) if whole else room.chunk_bounds(document_of_chunk, documents)
        k = min(k, len(bounds) - 1)
        device = torch.device(request.param)
        return room._search_on(device, queries, documents, bounds, k, None if whole else chunk_score, block_size)

    return searched


@pytest.mark.parametrize("block_size", [1, 7, 100])
def test_a_device_finds_the_same_with_the_same_ties(on_device, block_size):
    for queries, documents in (
        (few_values(250), few_values(40, seed=1)),
        (few_values(3), np.zeros((9, 4), np.float32)),
        (few_values(0), few_values(3)),
        np.random.default_rng(0).standard_normal((2, 60, 16)).astype(np.float32),
    ):
        expected = search(queries, documents, 9)
        found, scores = on_device(queries, documents, 9, block_size=block_size)
        assert (found.dtype, scores.dtype) == (np.int64, np.float32)
        np.testing.assert_array_equal(found, expected[0])
        np.testing.assert_allclose(scores, expected[1], rtol=1e-6)


@pytest.mark.parametrize("block_size", [1, 5, 100])
@pytest.mark.parametrize("chunk_score", ["max", "mean", "max+mean"])
def test_a_device_scores_documents_by_their_chunks(on_device, chunk_score, block_size):
    queries, chunks = np.random.default_rng(0).standard_normal((2, 30, 8)).astype(np.float32)
    of_chunk = np.repeat(np.arange(8), [1, 7, 2, 1, 9, 3, 1, 6])
    options = dict(document_of_chunk=of_chunk, chunk_score=chunk_score)
    expected = search(queries, chunks, 5, **options)
    found, scores = on_device(queries, chunks, 5, **options, block_size=block_size)
    np.testing.assert_array_equal(found, expected[0])
    np.testing.assert_allclose(scores, expected[1], rtol=1e-6)


def test_keys_are_in_the_order_of_scores_and_give_them_back():
    scores = torch.tensor([[0.5, -0.0, 0.0, -1e-30, 1e-30, -3.5, 3.5, 0.5]])
    keys = room._keys(scores, 10)
    order = keys.argsort(dim=1, descending=True)
    assert order.tolist() == [[6, 0, 7, 4, 1, 2, 3, 5]]
    assert torch.equal(room._scores(keys), scores + 0.0)


def test_more_than_there_are_gives_all():
    found, _ = search(few_values(2), few_values(3), 10)
    assert [sorted(row) for row in found.tolist()] == [[0, 1, 2]] * 2


def test_no_queries_find_nothing():
    assert search(few_values(0), few_values(3), 2)[0].shape == (0, 2)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"k": 0}, "k is 0; ask for 1"),
        ({"document_vectors": few_values(0)}, "no document vectors"),
        ({"document_vectors": np.ones((3, 5), np.float32)}, "sizes 4 and 5"),
        ({"document_vectors": np.full((3, 4), np.nan)}, "diverged"),
        ({"chunk_score": "sum"}, 'chunk_score is "sum"'),
        ({"document_of_chunk": [0, 0, 2]}, "rise by 0 or 1"),
        ({"document_of_chunk": [1, 1, 2]}, "rise by 0 or 1"),
        ({"document_of_chunk": [-1, 0, 1]}, "rise by 0 or 1"),
        ({"document_of_chunk": [0, 1]}, "rise by 0 or 1"),
        ({"device": "cuda:77"}, 'device "cuda:77" cannot be used here'),
        ({"device": "gpu"}, 'device "gpu" cannot be used here'),
    ],
)
def test_what_cannot_be_searched_is_an_error_in_a_sentence(changes, said):
    arguments = dict(query_vectors=few_values(2), document_vectors=few_values(3), k=1)
    with pytest.raises(InputError, match=said):
        search(**{**arguments, **changes})
