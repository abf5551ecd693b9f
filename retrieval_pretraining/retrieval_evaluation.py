"""Retrieval evaluation from a folder to a table: what the other rooms offer, a dense model measured, a Markdown table.

    data = load_retrieval_data("data/scifact")
    bm25 = retrieval_metrics(bm25_run(data), data.qrels)
    dense = evaluate_retrieval(model, tokenizer, data)
    print(format_table([{"system": "BM25", **bm25}, {"system": "model", **dense}], ["system", "ndcg@10"]))

Every system ends in a `Run`, so BM25 and all models are measured by the same code. BM25 and the metrics need the extra
`eval`; reading, encoding and searching do not.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from retrieval_pretraining.bm25 import bm25_run, detect_language
from retrieval_pretraining.encoding import encode_texts
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.retrieval_data import RetrievalData, Run, load_retrieval_data, sample
from retrieval_pretraining.retrieval_metrics import check_ids, retrieval_metrics
from retrieval_pretraining.search import search

__all__ = [
    "RetrievalData",
    "bm25_beside",
    "bm25_run",
    "dense_run",
    "detect_language",
    "encode_texts",
    "evaluate_retrieval",
    "format_table",
    "load_retrieval_data",
    "retrieval_metrics",
    "sample",
    "training_sample",
]

BM25_DOCUMENTS = 100_000  # of so many or fewer it takes seconds


def dense_run(
    query_vectors: np.ndarray,
    document_vectors: np.ndarray,
    query_ids: Sequence[str],
    document_ids: Sequence[str],
    *,
    top_k: int = 1000,
    chunk_size: int = 16384,
) -> Run:
    """Exact search by dot product (cosine for unit vectors) over all documents; ties in document order.

    `query_vectors` [Q, H], `document_vectors` [N, H]. At most 256 queries x `chunk_size` documents are scored at once.
    `InputError` if a vector is not finite, or ids come twice or are not one a vector.
    """
    check_ids(query_ids, len(query_vectors), "queries")
    check_ids(document_ids, len(document_vectors), "documents")
    documents, scores = search(query_vectors, document_vectors, top_k, block_size=chunk_size)
    return {
        query: {document_ids[i]: score for i, score in zip(row, own.tolist(), strict=True)}
        for query, row, own in zip(query_ids, documents, scores, strict=True)
    }


def evaluate_retrieval(model, tokenizer, data: RetrievalData, **encoding) -> dict[str, float]:
    """The default measures of a dense model; `encoding` (pooling, max_seq_length, ...) goes to `encode_texts`."""
    queries = encode_texts(model, tokenizer, data.query_texts, **encoding)
    documents = encode_texts(model, tokenizer, data.corpus_texts, **encoding)
    # No default measure looks deeper.
    run = dense_run(queries, documents, data.query_ids, data.corpus_ids, top_k=data.depth(100))
    return retrieval_metrics(data.without_own(run, 100), data.qrels)


def bm25_beside(data: RetrievalData, say: Callable[[str], None], *, progress: bool | None = None) -> Run | None:
    """What the scores of a run stand beside: 100 documents a query, where that is cheap and installed."""
    if len(data.corpus_ids) > BM25_DOCUMENTS:
        return None
    try:
        return bm25_run(data, top_k=100, progress=progress)
    except InputError as error:
        say(f"without BM25: {error}")
        return None


def training_sample(
    data: RetrievalData, *, max_queries: int, max_documents: int, seed: int, say: Callable[[str], None]
) -> RetrievalData:
    """What is searched at the evaluations during training, where time counts; 0 is all."""
    part = sample(data, max_queries=max_queries or None, max_documents=max_documents or None, seed=seed)
    if len(part.corpus_ids) < len(data.corpus_ids) or len(part.query_ids) < len(data.query_ids):
        say(
            f"retrieval during training: {len(part.query_ids):,} of {len(data.query_ids):,} queries in "
            f"{len(part.corpus_ids):,} of {len(data.corpus_ids):,} documents, which is easier than in all"
        )
    return part


def format_table(rows: list[dict[str, Any]], columns: Sequence[str]) -> str:
    """Rows as an aligned Markdown table; numbers to the right, floats with 3 decimals, a missing value as "-"."""

    def cell(value: Any) -> str:
        return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value).replace("|", "\\|")

    padded = []
    for column in columns:
        values = [row.get(column) for row in rows]
        cells = [cell(column), *map(cell, values)]
        width = max(3, *map(len, cells))
        right = any(isinstance(value, (int, float)) for value in values)
        cells = [text.rjust(width) if right else text.ljust(width) for text in cells]
        padded.append([cells[0], "-" * (width - 1) + (":" if right else "-"), *cells[1:]])
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*padded, strict=True))
