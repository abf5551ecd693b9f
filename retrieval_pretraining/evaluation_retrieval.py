"""One dataset, searched: BM25, a model's vectors, chunks and words, the sums of these, and how the vectors lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from retrieval_pretraining.approximate_search import approximate_search
from retrieval_pretraining.bm25 import bm25_run, bm25_scores, describe_bm25
from retrieval_pretraining.evaluation_arguments import EvaluationArguments
from retrieval_pretraining.evaluation_results import EvaluationResults
from retrieval_pretraining.hybrid import fuse
from retrieval_pretraining.lexical_search import LexicalEncoder, lexical_search
from retrieval_pretraining.report_plots import project_2d
from retrieval_pretraining.reranking import candidates_of_run, rerank
from retrieval_pretraining.retrieval_data import RetrievalData, Run
from retrieval_pretraining.search import search
from retrieval_pretraining.systems import TextEncoder
from retrieval_pretraining.vector_health import sample_of_cosines, vector_health

BM25 = "BM25"
TOP_K = 1000
MAP_POINTS = 300  # documents, and at most as many queries


@dataclass(frozen=True)
class MeasuredModel:
    """One row of the tables: a checkpoint, or its architecture with random weights."""

    name: str
    path: str
    number: int  # of the model in the arguments
    random_weights: bool = False


@dataclass
class SearchedDataset:
    """A dataset, with what is made once for all systems."""

    data: RetrievalData
    candidates: dict[str, Sequence[str]] | None
    rerank_name: str


def measure_bm25(one: SearchedDataset, args: EvaluationArguments, results: EvaluationResults, say):
    """BM25's row, and its candidates for reranking; before the models, whose hybrids need it."""
    wants_candidates = args.rerank_candidates == ["bm25"]
    if not (args.bm25 or wants_candidates):
        return
    say(f"{one.data.name}: {BM25}")
    options = args.bm25_options()
    run = bm25_run(one.data, top_k=TOP_K, **options)
    described = describe_bm25(one.data, **options)
    if args.bm25:
        results.add_system(BM25, kind="bm25", description=described["description"])
        results.add_run(one.data.name, BM25, run, one.data.qrels)
    results.datasets[_place(results, one.data.name)]["bm25"] = described["description"]
    if wants_candidates:
        one.candidates = candidates_of_run(run, top_k=args.rerank_top_k)
    if one.candidates is not None and args.bm25:
        # The order that BM25 gives the candidates is what the models have to beat.
        if wants_candidates:  # found by the search above, no second index is needed
            scored = {query: {each: run[query][each] for each in found} for query, found in one.candidates.items()}
        else:
            scored = bm25_scores(one.data, one.candidates, **options)
        results.add_run(one.rerank_name, BM25, scored, one.data.qrels)


def _place(results: EvaluationResults, dataset: str) -> int:
    return [entry["name"] for entry in results.datasets].index(dataset)


def measure_retrieval(
    encoder: TextEncoder,
    model: MeasuredModel,
    one: SearchedDataset,
    args: EvaluationArguments,
    results: EvaluationResults,
):
    data = one.data
    queries = encoder.encode_queries(data.query_texts)
    documents = encoder.encode_documents(data.corpus_texts)
    runs = {model.name: _search(queries, documents, data, args)}
    if args.chunk_size is not None and not model.random_weights:
        vectors, document_of_chunk = encoder.encode_document_chunks(data.corpus_texts, chunk_size=args.chunk_size)
        for chunk_score in args.chunk_score:
            name = f"{model.name}, chunks of {args.chunk_size} ({chunk_score})"
            chunks = {"document_of_chunk": document_of_chunk, "chunk_score": chunk_score}
            runs[name] = _search(queries, vectors, data, args, **chunks)
            results.add_system(
                name, kind="chunks", of=[model.name], chunk_size=args.chunk_size, chunk_score=chunk_score
            )
    for name, run in runs.items():
        results.add_run(data.name, name, run, data.qrels)
        if args.bm25 and not model.random_weights:
            _measure_hybrids(name, run, one, args, results)
    if one.candidates is not None:
        _add_reranked(model, one, queries, documents, results)
    _measure_health(model, one, queries, documents, args, results)


def _search(queries, documents, data: RetrievalData, args: EvaluationArguments, **chunks) -> Run:
    if args.approximate_search:
        found, scores = approximate_search(queries, documents, data.depth(TOP_K), **chunks)
    else:
        device = args.device or ("cuda" if torch.cuda.is_available() else None)
        found, scores = search(queries, documents, data.depth(TOP_K), device=device, **chunks)
    run = {
        query: {data.corpus_ids[i]: score for i, score in zip(row, own.tolist(), strict=True) if i >= 0}
        for query, row, own in zip(data.query_ids, found, scores, strict=True)
    }
    return data.without_own(run, TOP_K)


def _measure_hybrids(name: str, run: Run, one: SearchedDataset, args: EvaluationArguments, results: EvaluationResults):
    for method in (method for method in args.hybrid if method != "none"):
        both = f"{name} + BM25" if len(args.hybrid) == 1 else f"{name} + BM25 ({method})"
        weights = [1.0, args.bm25_weight]
        results.add_system(both, kind="hybrid", of=[name, BM25], method=method, weights=weights)
        fused = fuse([run, results.run(one.data.name, BM25)], method=method, weights=weights)
        results.add_run(one.data.name, both, fused, one.data.qrels)


def measure_lexical(lexical: LexicalEncoder, model: MeasuredModel, one: SearchedDataset, results: EvaluationResults):
    """What the model's MLM head finds, and with its vectors; those are measured before."""
    data, name, joint = one.data, f"{model.name}, lexical", f"{model.name}, joint"
    found = lexical_search(
        lexical.encode_queries(data.query_texts), lexical.encode_documents(data.corpus_texts), data.depth(TOP_K)
    )
    run = {
        query: {data.corpus_ids[i]: score for i, score in zip(positions, scores.tolist(), strict=True)}
        for query, (positions, scores) in zip(data.query_ids, found, strict=True)
    }
    run = data.without_own(run, TOP_K)
    results.add_system(name, kind="lexical", of=[model.name], top_n=lexical.top_n, description=lexical.description)
    results.add_run(data.name, name, run, data.qrels)
    results.add_system(joint, kind="hybrid", of=[model.name, name], method="z_score", weights=[1.0, 1.0])
    results.add_run(data.name, joint, fuse([results.run(data.name, model.name), run]), data.qrels)


def _add_reranked(model: MeasuredModel, one: SearchedDataset, queries, documents, results: EvaluationResults):
    data = one.data
    run = rerank(one.candidates, queries, documents, data.query_ids, data.corpus_ids)
    if all(entry["name"] != one.rerank_name for entry in results.datasets):
        entry = dict(results.datasets[_place(results, data.name)])
        results.datasets.append({**entry, "name": one.rerank_name, "kind": "reranking"})
    results.add_run(one.rerank_name, model.name, run, data.qrels)


def _measure_health(model: MeasuredModel, one: SearchedDataset, queries, documents, args, results: EvaluationResults):
    """How near related texts lie, and how near any two; and where they all lie, for the page."""
    data = one.data
    place = {document: number for number, document in enumerate(data.corpus_ids)}
    related = [
        (row, place[document])
        for row, query in enumerate(data.query_ids)
        for document, grade in data.qrels[query].items()
        if grade > 0 and document in place
    ]
    if len({row for row, _ in related}) < 2 or len({column for _, column in related}) < 2:
        return  # no two unrelated pairs
    rows, columns = (list(side) for side in zip(*related, strict=True))
    pairs = {"ids_a": rows, "ids_b": columns, "seed": args.seed}
    health = vector_health(queries[rows], documents[columns], **pairs)
    results.health.append({"dataset": data.name, "system": model.name, **health})
    near, far = sample_of_cosines(queries[rows], documents[columns], **pairs)
    same = {"dataset": data.name, "system": model.name}
    shown = {"related": np.round(near, 4).tolist(), "random": np.round(far, 4).tolist()}
    results.details["similarities"].append({**same, **shown})
    if model.random_weights:
        return
    generator = np.random.default_rng(args.seed)
    kinds = ((documents, data.corpus_texts, "documents"), (queries, data.query_texts, "queries"))
    drawn = [
        (vectors[chosen], [texts[i][:80] for i in chosen], kind)
        for vectors, texts, kind in kinds
        for chosen in [generator.permutation(len(texts))[:MAP_POINTS]]
    ]
    points = project_2d(np.concatenate([vectors for vectors, _, _ in drawn]), seed=args.seed)
    results.details["map"].append(
        {
            **same,
            "points": np.round(points, 4).tolist(),
            "groups": [number for number, (_, texts, _) in enumerate(drawn) for _ in texts],
            "group_names": [kind for _, _, kind in drawn],
            "texts": [text for _, texts, _ in drawn for text in texts],
        }
    )
