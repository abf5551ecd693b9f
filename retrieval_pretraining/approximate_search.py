"""Approximate nearest neighbours by faiss (extra `faiss`), for corpora that are too large for `search`.

    index = ApproximateIndex(document_vectors)
    documents, scores = index.search(query_vectors, k=100)

faiss proposes candidates and their scores are then computed exactly, so that a document that is found has the score
and the place among the others that it has in an exact search. What can be missing is a document.

Shapes: Q queries, N documents, C vectors of documents (N of them, or one a chunk of a document), H size of a vector.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.extras import import_extra
from retrieval_pretraining.search import (
    best_positions,
    check_chunk_score,
    check_vectors,
    chunk_bounds,
    score_documents,
    search,
)

INDEXES = ("hnsw", "ivf")

_WORTH_AN_INDEX = 2000  # vectors; fewer are searched exactly, which is faster than building one

# IVF: 4 * sqrt(C) lists, of which a query looks into one of 8, and into 8 at least.
_LISTS = 4
_SHARE_OF_LISTS = 8
_FEWEST_LISTS = 8

# HNSW (arXiv 1603.09320): neighbours of a node, and candidates when building and when searching, at least.
_NEIGHBOURS = 32
_CANDIDATES_BUILDING = 100
_CANDIDATES_SEARCHING = 128


def approximate_search(
    query_vectors: np.ndarray,
    document_vectors: np.ndarray,
    k: int,
    *,
    document_of_chunk: np.ndarray | None = None,
    chunk_score: str = "max",
    index: str = "hnsw",
    rescore: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """As `search`, of an index that is built for these queries alone; for the options see `ApproximateIndex`."""
    options = dict(document_of_chunk=document_of_chunk, chunk_score=chunk_score, index=index)
    return ApproximateIndex(document_vectors, **options).search(query_vectors, k, rescore=rescore)


class ApproximateIndex:
    """Document vectors in an index of faiss, by dot product.

    Args:
        document_vectors: [C, H]; kept as they are, beside the index. Fewer than 2000 get none, and exact search.
        document_of_chunk, chunk_score: as in `search`.
        index: "hnsw" follows a graph of neighbours, which several threads build a little differently each time. "ivf"
            looks into the lists around the nearest centres: built sooner, the same in each run, and it misses more.

    Raises:
        InputError: an unknown index, faiss is not installed, or as `search`.
    """

    def __init__(
        self,
        document_vectors: np.ndarray,
        *,
        document_of_chunk: np.ndarray | None = None,
        chunk_score: str = "max",
        index: str = "hnsw",
    ):
        if index not in INDEXES:
            raise InputError(f'index is "{index}"; choose "hnsw" or "ivf".')
        self.faiss = import_extra("faiss", "faiss")
        check_vectors(document_vectors[:0], document_vectors, 1)
        check_chunk_score(chunk_score)
        self.document_vectors = document_vectors
        self.document_of_chunk, self.chunk_score = document_of_chunk, chunk_score
        self.bounds = None if document_of_chunk is None else chunk_bounds(document_of_chunk, document_vectors)
        self.index = None
        if len(document_vectors) >= _WORTH_AN_INDEX:
            with self._torch_threads():
                self.index = self._build_ivf() if index == "ivf" else self._build_hnsw()

    def search(self, query_vectors: np.ndarray, k: int, *, rescore: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """The `k` documents with about the highest scores for each query, as `search` returns them.

        Without `rescore`, faiss decides on scores and order, with equal ones in document order; chunks are always
        scored exactly. A query for which the index finds fewer than `k` documents is searched exactly.
        """
        check_vectors(query_vectors, self.document_vectors, k)
        options = dict(document_of_chunk=self.document_of_chunk, chunk_score=self.chunk_score)
        if self.index is None:
            return search(query_vectors, self.document_vectors, k, **options)
        chunks = len(self.document_vectors)
        documents = chunks if self.bounds is None else len(self.bounds) - 1
        k = min(k, documents)
        rescore = rescore or self.bounds is not None
        wanted = min(chunks, math.ceil(2 * k * chunks / documents) if rescore else k)
        scores_QM, vectors_QM = self._candidates(query_vectors, wanted)
        found_QK = np.empty((len(query_vectors), k), dtype=np.int64)
        scores_QK = np.empty((len(query_vectors), k), dtype=np.float32)
        short = []
        for row, (scores, vectors) in enumerate(zip(scores_QM, vectors_QM, strict=True)):
            order = np.argsort(vectors, kind="stable")[np.count_nonzero(vectors < 0) :]  # -1: there are no more
            scores, found = scores[order], vectors[order]
            if rescore:
                scores, found = self._exact(query_vectors[row], found)
            if len(found) < k:
                short.append(row)
                continue
            best = best_positions(scores, k)
            found_QK[row], scores_QK[row] = found[best], scores[best]
        if short:
            found_QK[short], scores_QK[short] = search(query_vectors[short], self.document_vectors, k, **options)
        return found_QK, scores_QK

    def _candidates(self, query_vectors: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
        if hasattr(self.index, "hnsw"):
            options = self.faiss.SearchParametersHNSW(efSearch=max(_CANDIDATES_SEARCHING, wanted))
        else:
            lists = max(_FEWEST_LISTS, self.index.nlist // _SHARE_OF_LISTS)
            options = self.faiss.SearchParametersIVF(nprobe=lists)
        with self._torch_threads():
            return self.index.search(_float32(query_vectors), wanted, params=options)

    def _exact(self, query_H: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores and numbers of the documents that these vectors are of, in document order."""
        bounds = None
        documents = rows = vectors
        if self.bounds is not None:
            documents = np.unique(np.searchsorted(self.bounds, vectors, side="right") - 1)
            rows = np.concatenate([np.arange(self.bounds[n], self.bounds[n + 1]) for n in documents] or [vectors])
            bounds = np.append(0, np.cumsum(np.diff(self.bounds)[documents]))
        similarity_C = self.document_vectors[rows].astype(np.float64) @ query_H.astype(np.float64)
        if bounds is not None and len(documents):
            similarity_C = score_documents(similarity_C[None], bounds, self.chunk_score)[0]
        return similarity_C.astype(np.float32), documents

    def _build_ivf(self):
        count, size = self.document_vectors.shape
        lists = int(_LISTS * math.sqrt(count))
        index = self.faiss.IndexIVFFlat(self.faiss.IndexFlatIP(size), size, lists, self.faiss.METRIC_INNER_PRODUCT)
        index.cp.min_points_per_centroid = 1  # else it warns on the screen that there are few
        vectors = _float32(self.document_vectors)
        index.train(vectors)
        index.add(vectors)
        return index

    def _build_hnsw(self):
        index = self.faiss.IndexHNSWFlat(self.document_vectors.shape[1], _NEIGHBOURS, self.faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = _CANDIDATES_BUILDING
        index.add(_float32(self.document_vectors))
        return index

    @contextmanager
    def _torch_threads(self) -> Iterator[None]:
        """faiss brings an OpenMP of its own, which knows nothing of the threads that torch was given."""
        before = self.faiss.omp_get_max_threads()
        self.faiss.omp_set_num_threads(torch.get_num_threads())
        try:
            yield
        finally:
            self.faiss.omp_set_num_threads(before)


def _float32(vectors: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(vectors, dtype=np.float32)
