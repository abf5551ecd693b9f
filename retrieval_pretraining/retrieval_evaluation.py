"""Retrieval evaluation: BEIR folders, BM25, dense search, metrics and a table for the screen.

    data = load_retrieval_data("data/scifact")
    bm25 = retrieval_metrics(bm25_run(data), data.qrels)
    dense = evaluate_retrieval(model, tokenizer, data)
    print(format_table([{"system": "BM25", **bm25}, {"system": "model", **dense}], ["system", "ndcg@10"]))

Every system ends in a `Run`, so BM25 and all models are measured by the same code. BM25 and the metrics need the extra
`eval`; reading, encoding and searching do not.
"""

import importlib
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from retrieval_pretraining.encoding import encode_texts, progress_bar
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.retrieval_data import RetrievalData, load_retrieval_data, sample
from retrieval_pretraining.search import best_positions, search

__all__ = [
    "RetrievalData",
    "bm25_run",
    "dense_run",
    "detect_language",
    "encode_texts",
    "evaluate_retrieval",
    "format_table",
    "load_retrieval_data",
    "retrieval_metrics",
    "sample",
]

logger = logging.getLogger(__name__)

Run = dict[str, dict[str, float]]  # query id -> document id -> score, best first

DEFAULT_MEASURES = ("nDCG@10", "R@100", "RR@10")
MEASURE_KEYS = {"nDCG": "ndcg", "R": "recall", "RR": "mrr", "AP": "map", "P": "precision"}
HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
BM25_TOKENS = {"en": "English stems without stop words", "zh": "Chinese character bigrams and stemmed words"}


def detect_language(texts: Sequence[str]) -> str:
    """ "zh" if at least 5 % of the letters in a sample of the texts are Han characters, "en" otherwise."""
    # a low bar: the Chinese tokenisation of BM25 also handles English words, the English one no Chinese
    text = " ".join(texts[:: len(texts) // 2000 + 1])
    han = len(re.findall(f"[{HAN}]", text))
    return "zh" if han and han >= 0.05 * sum(map(str.isalpha, text)) else "en"


def bm25_run(
    data: RetrievalData, *, k1: float = 0.9, b: float = 0.4, language: str = "auto", top_k: int = 1000
) -> Run:
    """Rank the corpus by BM25 (bm25s, Lucene's variant); documents with a score above 0 only, ties in corpus order.

    `language`: "en" for stemmed words of two or more characters without stop words; "zh" for runs of Han characters as
    bigrams (a run of one as itself) and all other words lower-cased and stemmed; "auto" asks `detect_language`.
    A query may find nothing; if none finds anything, that is a warning. `InputError` without the extra `eval`.
    """
    bm25s = _import_extra("bm25s")
    stem = _import_extra("Stemmer").Stemmer("english").stemWord
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # on import it sets itself to DEBUG
    if language not in ("auto", *BM25_TOKENS):
        raise InputError(f'language is "{language}"; choose "auto", "en" or "zh".')
    language = detect_language(data.corpus_texts) if language == "auto" else language
    logger.info("BM25 (lucene, k1 %g, b %g) on %s: %s.", k1, b, data.name, BM25_TOKENS[language])
    pattern = re.compile(r"\w\w+" if language == "en" else f"[{HAN}]+|[^\\W{HAN}]+")
    is_han = re.compile(f"[{HAN}]").match

    def tokenize(text: str) -> Iterator[str]:
        for word in pattern.findall(text.lower()):
            if language == "zh" and is_han(word):
                yield from (word[i : i + 2] for i in range(max(1, len(word) - 1)))
            elif language == "zh" or word not in bm25s.stopwords.STOPWORDS_EN:
                yield stem(word)

    vocabulary: dict[str, int] = {}
    documents = [[vocabulary.setdefault(token, len(vocabulary)) for token in tokenize(t)] for t in data.corpus_texts]
    index = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
    if vocabulary:
        index.index((documents, vocabulary), show_progress=False)
    run: Run = {}
    with progress_bar(len(data.query_ids), "BM25", "query", None) as bar:
        for query, text in zip(data.query_ids, data.query_texts, strict=True):
            tokens = [vocabulary[token] for token in tokenize(text) if token in vocabulary]
            # not `index.retrieve`: its order among ties is arbitrary
            scores = index.get_scores_from_ids(tokens) if tokens else np.zeros(0)
            run[query] = {data.corpus_ids[i]: float(scores[i]) for i in best_positions(scores, top_k) if scores[i] > 0}
            bar.update()
    if not any(run.values()):
        logger.warning("BM25 on %s: no query shares a token with a document (%s).", data.name, BM25_TOKENS[language])
    return run


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
    `InputError` if a vector is not finite.
    """
    documents, scores = search(query_vectors, document_vectors, top_k, block_size=chunk_size)
    return {
        query: {document_ids[i]: score for i, score in zip(row, own.tolist(), strict=True)}
        for query, row, own in zip(query_ids, documents, scores, strict=True)
    }


def retrieval_metrics(
    run: Run, qrels: dict[str, dict[str, int]], *, measures: Sequence[str] = DEFAULT_MEASURES, per_query: bool = False
) -> dict[str, Any]:
    """Means over all queries of `qrels`, `{"ndcg@10": 0.676, "recall@100": 0.913, "mrr@10": 0.641}`, from 0 to 1.

    `measures` are names of ir-measures ("nDCG@10", "R@100", "RR@10", "AP", "P@5"). A query that `run` lacks scores 0.
    Documents with equal scores rank in the order of `run`. With `per_query` each value is a dict query id -> value.
    `InputError` if `run` and `qrels` share no query, if a measure is unknown, or without the extra `eval`.
    """
    ir_measures = _import_extra("ir_measures")
    keys = {}
    for measure in measures:
        name, at, cutoff = measure.partition("@")
        try:
            keys[ir_measures.parse_measure(measure)] = MEASURE_KEYS.get(name, name.lower()) + at + cutoff
        except (NameError, ValueError) as error:
            raise InputError(f'Unknown measure "{measure}"; write nDCG@10, R@100, RR@10, AP or P@5.') from error
    if not run.keys() & qrels.keys():
        raise InputError(f"The {len(run)} queries of the run and the {len(qrels)} of the qrels share no id; compare.")
    if not any(document in grades for query, grades in qrels.items() for document in run.get(query, ())):
        logger.warning("No query finds any of its judged documents; are the document ids of run and qrels the same?")
    # trec_eval rounds scores to float32 and breaks ties by document id; ranks leave it no tie
    ranked = {
        query: {document: float(-rank) for rank, document in enumerate(sorted(scores, key=scores.get, reverse=True))}
        for query, scores in run.items()
    }
    values: dict[str, dict[str, float]] = {key: {} for key in keys.values()}
    for metric in ir_measures.iter_calc(list(keys), qrels, ranked):
        values[keys[metric.measure]][metric.query_id] = float(metric.value)
    return values if per_query else {key: sum(v.values()) / len(v) for key, v in values.items()}


def evaluate_retrieval(model, tokenizer, data: RetrievalData, **encoding) -> dict[str, float]:
    """The default measures of a dense model; `encoding` (pooling, max_seq_length, ...) goes to `encode_texts`."""
    queries = encode_texts(model, tokenizer, data.query_texts, **encoding)
    documents = encode_texts(model, tokenizer, data.corpus_texts, **encoding)
    run = dense_run(queries, documents, data.query_ids, data.corpus_ids, top_k=100)  # no default measure looks deeper
    return retrieval_metrics(run, data.qrels)


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


def _import_extra(module: str):
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f'{module} is not installed; pip install "retromae-gur[eval]".') from error
