"""Reranking: only the given candidates of each query are scored, such as the best 100 of BM25.

    candidates = candidates_of_run(bm25_run(data), top_k=100)  # or load_candidates("top100.tsv", data)
    texts = dict(zip(data.corpus_ids, data.corpus_texts))
    documents = candidate_documents(candidates)
    vectors = encode(data.query_texts), encode([texts[document] for document in documents])
    run = rerank(candidates, *vectors, data.query_ids, documents)

What the candidates lack cannot be found, as in every evaluation of reranking: their recall is the upper bound.

Shapes: Q queries, N documents, H size of a vector.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.evaluation_inputs import check_vectors, read_rows
from retrieval_pretraining.readers import OPENERS
from retrieval_pretraining.retrieval_data import RetrievalData, Run, read_lines

logger = logging.getLogger(__name__)

Candidates = dict[str, list[str]]  # query id -> document ids

_ROW_FORMATS = (".jsonl", ".ndjson", ".json", ".parquet")
_ROW_NEEDS = 'rows {"query_id": ..., "candidates": [document ids]}'
_LINE_NEEDS = "a query id, a document id and perhaps a score, split by tabs, or the six columns of a TREC run"


def load_candidates(path: str | Path, data: RetrievalData, *, top_k: int | None = None) -> Candidates:
    """The candidates of the queries of `data`, best first, from a file of one of these forms:

    - jsonl (also json, parquet): `{"query_id": ..., "candidates": [document ids]}`, the ids of queries also as "_id"
      or "id";
    - a TREC run: query id, Q0, document id, rank, score, name of the run; the score decides, as in trec_eval;
    - split by tabs, header line optional: query id, document id and, in all lines or in none, a score.

    Lines of one query may stand anywhere; equal scores, or none, leave the order of the file. `top_k` keeps the best.
    Ids that are not in `data` are left out and counted in one warning, with the queries that have no candidates.

    Raises:
        InputError: a line of another form, a document twice for a query, a score that is no finite number (each with
            its line), or a file whose queries or documents share no id with `data`.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; give a TREC run, a tsv or jsonl.")
    if top_k is not None and top_k < 1:
        raise InputError(f"top_k is {top_k}; keep 1 candidate or more.")
    suffix = path.with_suffix("").suffix if path.suffix.lower() in OPENERS else path.suffix
    rows = _of_rows(path) if suffix.lower() in _ROW_FORMATS else _of_lines(path, data)
    queries, corpus = set(data.query_ids), set(data.corpus_ids)
    scored: Run = {}
    for place, query, document, score in rows:
        own = scored.setdefault(query, {})
        if document in own:
            raise InputError(f'{place}: the document "{document}" came before for the query "{query}"; give it once.')
        own[document] = score
    if not queries & scored.keys():
        raise InputError(f"{path}: no query with candidates is among the queries of {data.name}; compare the ids.")
    given = {document for query in queries & scored.keys() for document in scored[query]}
    if not given & corpus:
        raise InputError(f"{path}: no candidate is in the corpus of {data.name}; compare the ids.")
    kept = {query: {d: s for d, s in scored.get(query, {}).items() if d in corpus} for query in data.query_ids}
    counts = [
        (len(scored.keys() - queries), f"of {len(scored)} queries are not in {data.name} and are left out"),
        (len(given - corpus), f"of {len(given)} candidates are not in the corpus and are left out"),
        (sum(not own for own in kept.values()), f"of {len(queries)} queries have no candidates and find nothing"),
    ]
    if any(count for count, _ in counts):
        logger.warning("%s: %s.", path, "; ".join(f"{count} {what}" for count, what in counts if count))
    return candidates_of_run({query: own for query, own in kept.items() if own}, top_k=top_k)


def candidates_of_run(run: Run, *, top_k: int | None = 100) -> Candidates:
    """The `top_k` documents with the highest scores of each query, equal ones in the order of the run."""
    if top_k is not None and top_k < 1:
        raise InputError(f"top_k is {top_k}; keep 1 candidate or more.")
    # `sorted` is stable, also in reverse
    return {query: sorted(scores, key=scores.__getitem__, reverse=True)[:top_k] for query, scores in run.items()}


def candidate_documents(candidates: Mapping[str, Sequence[str]]) -> list[str]:
    """The ids of all candidates, each once: what has to be encoded."""
    return list(dict.fromkeys(document for documents in candidates.values() for document in documents))


def rerank(
    candidates: Mapping[str, Sequence[str]],
    query_vectors: np.ndarray,
    document_vectors: np.ndarray,
    query_ids: Sequence[str],
    document_ids: Sequence[str],
) -> Run:
    """Scores the candidates of each query by dot product (cosine for vectors of length 1), and nothing else.

    Args:
        candidates: query id -> document ids.
        query_vectors, document_vectors: [Q, H] and [N, H], of `query_ids` and `document_ids`, where the latter may be
            `candidate_documents(candidates)` or a whole corpus.

    Returns a run with every query of `query_ids`, best first; equal scores are in the order of the candidates.

    Raises:
        InputError: a query or candidate without a vector, ids or candidates that come twice, vectors that are not one
            an id, of different sizes or not finite.
    """
    query_vectors = check_vectors(query_vectors, len(query_ids), "queries")
    document_vectors = check_vectors(document_vectors, len(document_ids), "documents")
    if query_vectors.shape[1] != document_vectors.shape[1]:
        sizes = f"{query_vectors.shape[1]} and {document_vectors.shape[1]}"
        raise InputError(f"Vectors of queries and documents have sizes {sizes}; encode both with the same model.")
    rows, places = _rows_of(query_ids, "query"), _rows_of(document_ids, "document")
    for query in candidates:
        if query not in rows:
            raise InputError(f"The query {query!r} has candidates but no vector; encode it, or leave it out.")
    run: Run = {}
    for query, row in rows.items():
        own = list(candidates.get(query, ()))
        missing = next((document for document in own if document not in places), None)
        if missing is not None:
            raise InputError(
                f"The candidate {missing!r} of the query {query!r} has no vector; encode all of "
                "candidate_documents(candidates)."
            )
        if len(set(own)) < len(own):
            raise InputError(f"The query {query!r} has a candidate twice; give each once.")
        # in float64 and back, as in `search`: the same scores as those of a search through all documents
        vectors_CH = document_vectors[[places[document] for document in own]].astype(np.float64)
        scores_C = (vectors_CH @ query_vectors[row].astype(np.float64)).astype(np.float32)
        best = np.argsort(-scores_C, kind="stable")
        run[query] = {own[i]: float(scores_C[i]) for i in best}
    return run


def _rows_of(ids: Sequence[str], what: str) -> dict[str, int]:
    rows = {identifier: row for row, identifier in enumerate(ids)}
    if len(rows) < len(ids):
        raise InputError(f"The {what} ids name {len(rows)} of {len(ids)}; give each {what} an id of its own.")
    return rows


_Scored = Iterator[tuple[str, str, str, float]]  # place, query id, document id, score


def _of_rows(path: Path) -> _Scored:
    seen = set()
    names = ["query_id", "_id", "id"]
    for place, (candidates, *ids) in read_rows(path, ["candidates", *names], needs=_ROW_NEEDS, optional=names):
        query = next((_identifier(place, value) for value in ids if value is not None), None)
        if query is None or not isinstance(candidates, list):
            raise InputError(f"{place}: needs {_ROW_NEEDS}.")
        if query in seen:
            raise InputError(f'{place}: the query "{query}" came before; give its candidates in one row.')
        seen.add(query)
        for rank, document in enumerate(candidates):
            yield place, query, _identifier(place, document), float(-rank)


def _identifier(place: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InputError(f"{place}: {value!r} is no id; ids are strings or whole numbers.")
    return str(value)


def _of_lines(path: Path, data: RetrievalData) -> _Scored:
    width = None
    for number, (place, line) in enumerate(read_lines(path)):
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) not in (2, 3):
            fields = line.split()  # a TREC run: any white space
        if len(fields) not in (2, 3, 6) or (len(fields) < 6 and "\t" not in line):
            raise InputError(f"{place}: needs {_LINE_NEEDS}.")
        if number == 0 and _is_header(fields, data):
            continue
        width = width or len(fields)
        if len(fields) != width:
            raise InputError(f"{place}: has {len(fields)} columns and the lines before {width}; give all the same.")
        document = fields[2] if width == 6 else fields[1]
        score = 0.0 if width == 2 else _score(place, fields[4] if width == 6 else fields[2])
        yield place, fields[0], document, score


def _is_header(fields: list[str], data: RetrievalData) -> bool:
    known = fields[0] in data.query_ids or fields[1] in data.corpus_ids
    return (len(fields) == 2 and not known) or (len(fields) == 3 and not _is_number(fields[2]))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _score(place: str, text: str) -> float:
    if not _is_number(text):
        raise InputError(f'{place}: the score "{text}" is no finite number.')
    return float(text)
