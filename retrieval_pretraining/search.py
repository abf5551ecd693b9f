"""Exact nearest neighbours by dot product, which for vectors of length 1 is the cosine, in chunks.

Shapes: Q queries, N documents, C vectors of documents (N of them, or one a chunk of a document), H size of a vector.
"""

from collections.abc import Iterator

import numpy as np

from retrieval_pretraining.errors import InputError

CHUNK_SCORES = ("max", "mean", "max+mean")

_QUERIES_AT_ONCE = 256


def search(
    query_vectors: np.ndarray,
    document_vectors: np.ndarray,
    k: int,
    *,
    document_of_chunk: np.ndarray | None = None,
    chunk_score: str = "max",
    block_size: int = 16384,
) -> tuple[np.ndarray, np.ndarray]:
    """The `k` documents with the highest dot products for each query; equal ones in document order.

    Args:
        query_vectors, document_vectors: [Q, H] and [C, H]. At most 256 queries x `block_size` vectors are compared at
            once (more only where one document has more chunks).
        document_of_chunk: [C], ascending, with every document from 0 to N - 1, if the vectors are of chunks of
            documents (`zero_shot.encode_chunks`); without it each vector is a document.
        chunk_score: how the chunks of a document make its score: their "max", "mean", or the sum of both, "max+mean".

    Returns:
        documents: int64 [Q, min(k, N)], numbers of documents, best first.
        scores: float32, of the same shape.

    Raises:
        InputError: `k` below 1, no vectors, sizes that differ, vectors that are not finite, an unknown `chunk_score`,
            or a `document_of_chunk` of another form.
    """
    _check_vectors(query_vectors, document_vectors, k)
    check_chunk_score(chunk_score)
    whole = document_of_chunk is None
    bounds = np.arange(len(document_vectors) + 1) if whole else _chunk_bounds(document_of_chunk, document_vectors)
    k = min(k, len(bounds) - 1)
    found_QK = np.empty((len(query_vectors), k), dtype=np.int64)
    scores_QK = np.empty((len(query_vectors), k), dtype=np.float32)
    for first in range(0, len(query_vectors), _QUERIES_AT_ONCE):
        # in float64, so that the rounding of a block cannot reorder equal documents
        queries_QH = query_vectors[first : first + _QUERIES_AT_ONCE].astype(np.float64)
        kept = [(np.empty(0, np.float32), np.empty(0, np.int64))] * len(queries_QH)  # scores and documents a query
        for start, stop in _blocks(bounds, block_size):
            block_CH = document_vectors[bounds[start] : bounds[stop]].astype(np.float64)
            similarity_QC = queries_QH @ block_CH.T
            if not whole:
                similarity_QC = _of_documents(similarity_QC, bounds[start : stop + 1] - bounds[start], chunk_score)
            documents_N = np.arange(start, stop)
            for row, scores_N in enumerate(similarity_QC.astype(np.float32)):
                # the kept ones are earlier documents and stand first: ties stay in document order
                scores, documents = np.append(kept[row][0], scores_N), np.append(kept[row][1], documents_N)
                best = best_positions(scores, k)
                kept[row] = scores[best], documents[best]
        for row, (scores, documents) in enumerate(kept, start=first):
            found_QK[row], scores_QK[row] = documents, scores
    return found_QK, scores_QK


def check_chunk_score(chunk_score: str) -> None:
    """`InputError` for a name that `search` does not know."""
    if chunk_score not in CHUNK_SCORES:
        raise InputError(f'chunk_score is "{chunk_score}"; choose "max", "mean" or "max+mean".')


def best_positions(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the `k` highest of `scores` [N], highest first, equal ones by position."""
    candidates = np.arange(len(scores))
    if k < len(scores):
        # all that tie with the k-th stay in: which of them a partition keeps is arbitrary
        candidates = np.flatnonzero(scores >= np.partition(scores, -k)[-k])
    return candidates[np.argsort(-scores[candidates], kind="stable")[:k]]


def _check_vectors(query_vectors, document_vectors, k):
    if k < 1:
        raise InputError(f"k is {k}; ask for 1 document or more.")
    if not len(document_vectors):
        raise InputError("There are no document vectors to search; give at least one document.")
    if len(query_vectors) and query_vectors.shape[1] != document_vectors.shape[1]:
        sizes = f"{query_vectors.shape[1]} and {document_vectors.shape[1]}"
        raise InputError(f"Vectors of queries and documents have sizes {sizes}; encode both with the same model.")
    if not (np.isfinite(query_vectors).all() and np.isfinite(document_vectors).all()):
        raise InputError("Some vectors are not finite: the model has diverged; train it with a lower learning rate.")


def _chunk_bounds(document_of_chunk, document_vectors) -> np.ndarray:
    """Document n has the vectors from bounds[n] to bounds[n + 1], [N + 1]."""
    document_of_chunk = np.asarray(document_of_chunk)
    steps = np.diff(document_of_chunk, prepend=-1)
    if len(document_of_chunk) != len(document_vectors) or not np.isin(steps, (0, 1)).all() or steps[0] != 1:
        raise InputError(
            "document_of_chunk must give each vector its document, 0 for the first, and rise by 0 or 1; take it from "
            "encode_chunks as it is."
        )
    return np.append(np.flatnonzero(steps), len(steps))


def _blocks(bounds: np.ndarray, block_size: int) -> Iterator[tuple[int, int]]:
    """Ranges of whole documents with at most `block_size` vectors, or of one document."""
    start, documents = 0, len(bounds) - 1
    while start < documents:
        stop = int(np.searchsorted(bounds, bounds[start] + block_size, side="right")) - 1
        stop = max(stop, start + 1)
        yield start, stop
        start = stop


def _of_documents(similarity_QC: np.ndarray, bounds: np.ndarray, chunk_score: str) -> np.ndarray:
    """Similarities of chunks -> scores of documents, [Q, C] -> [Q, N]."""
    scores_QN = 0.0
    if "max" in chunk_score:
        scores_QN = np.maximum.reduceat(similarity_QC, bounds[:-1], axis=1)
    if "mean" in chunk_score:
        scores_QN = scores_QN + np.add.reduceat(similarity_QC, bounds[:-1], axis=1) / np.diff(bounds)
    return scores_QN
