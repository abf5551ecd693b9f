"""Systems x datasets -> results: what `run_evaluation.py` does.

Models are loaded one after the other, each once for all it is measured on. All that a user can have mistyped is looked
at before the first text is encoded: the data are read, and each model is loaded and tried.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from retrieval_pretraining.approximate_search import approximate_search
from retrieval_pretraining.bm25 import bm25_run, describe_bm25
from retrieval_pretraining.classification_evaluation import (
    ClassificationData,
    few_shot_classification,
    load_classification_data,
    zero_shot_classification,
)
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.evaluation_arguments import EvaluationArguments
from retrieval_pretraining.evaluation_results import EvaluationResults, content_hash, describe_retrieval
from retrieval_pretraining.generation_evaluation import load_writer, measure_generation
from retrieval_pretraining.hybrid import fuse
from retrieval_pretraining.lexical_search import LexicalEncoder, lexical_search, load_lexical_encoder
from retrieval_pretraining.report_plots import project_2d
from retrieval_pretraining.reranking import candidates_of_run, load_candidates, rerank
from retrieval_pretraining.retrieval_data import RetrievalData, Run, load_retrieval_data, sample
from retrieval_pretraining.run_folder import RUN_ARGUMENTS
from retrieval_pretraining.search import search
from retrieval_pretraining.similarity_evaluation import SimilarityData, load_similarity_data, similarity_scores
from retrieval_pretraining.systems import TextEncoder, load_encoder
from retrieval_pretraining.vector_health import sample_of_cosines, vector_health

BM25 = "BM25"
TOP_K = 1000
MAP_POINTS = 300  # documents, and at most as many queries


@dataclass(frozen=True)
class _Model:
    """One row of the tables: a checkpoint, or its architecture with random weights."""

    name: str
    path: str
    number: int  # of the model in the arguments
    random_weights: bool = False


@dataclass
class _Retrieval:
    """A dataset, with what is made once for all systems."""

    data: RetrievalData
    candidates: dict[str, Sequence[str]] | None
    rerank_name: str


def evaluate(args: EvaluationArguments, *, say: Callable[[str], None] = print) -> EvaluationResults:
    """Measures all systems on all datasets.

    Raises `InputError` for whatever cannot be measured; before anything was, as far as that can be known.
    """
    args.check()
    results = EvaluationResults(seed=args.seed)
    retrieval = _load_retrieval(args, results)
    classification = [load_classification_data(path) for path in args.eval_classification_dir or []]
    similarity = [load_similarity_data(path) for path in args.eval_similarity_file or []]
    _unique([one.data.name for one in retrieval], "--eval_retrieval_dir")
    _describe_others(classification, similarity, args, results)
    models = _models(args, results, say)
    names = ([BM25] if args.bm25 else []) + [model.name for model in models]
    if args.baseline is not None and args.baseline not in names:
        raise InputError(f"--baseline {args.baseline} is none of the systems: {', '.join(names)}.")

    for one in retrieval:
        _measure_bm25(one, args, results, say)
    for model in models:
        encoder = _load(model, args)
        for one in retrieval:
            say(f"{one.data.name}: {model.name}")
            _measure_retrieval(encoder, model, one, args, results)
        if args.lexical and not model.random_weights:
            lexical = _load_lexical(encoder, args)
            for one in retrieval:
                say(f"{one.data.name}: {model.name}, lexical")
                _measure_lexical(lexical, model, one, results)
            del lexical
        for data in classification:
            say(f"{data.name}: {model.name}")
            _measure_classification(encoder, model, data, args, results)
        for data in similarity:
            say(f"{data.name}: {model.name}")
            _measure_similarity(encoder, model, data, results)
        if args.generation and not model.random_weights:
            _measure_generation(encoder, model, retrieval, args, results, say)
        del encoder

    trained = [model.name for model in models if not model.random_weights]
    baselines = [args.baseline] if args.baseline else ([BM25] if args.bm25 else []) + trained[:1]
    for one in retrieval:
        results.compare(one.data.name, baselines, one.data)
        if one.candidates is not None:
            results.compare(one.rerank_name, baselines, one.data)
    return results


# --- What is there ------------------------------------------------------------------------------------------------


def _load_retrieval(args: EvaluationArguments, results: EvaluationResults) -> list[_Retrieval]:
    loaded = []
    for number, path in enumerate(args.eval_retrieval_dir or []):
        data = load_retrieval_data(path, split=args.eval_retrieval_split)
        sizes = len(data.query_ids), len(data.corpus_ids)
        data = sample(
            data,
            max_queries=args.eval_retrieval_max_queries,
            max_documents=args.eval_retrieval_max_documents,
            seed=args.seed,
        )
        sampled = sizes != (len(data.query_ids), len(data.corpus_ids))
        language = describe_bm25(data, language=args.bm25_language)["language"]
        results.datasets.append(
            describe_retrieval(
                data, path=str(path), split=args.eval_retrieval_split, language=language, sampled=sampled
            )
        )
        candidates, what = None, "BM25"
        if args.rerank_candidates and args.rerank_candidates != ["bm25"]:
            what = Path(args.rerank_candidates[number]).name
            candidates = load_candidates(args.rerank_candidates[number], data, top_k=args.rerank_top_k)
        loaded.append(_Retrieval(data, candidates, f"{data.name} (reranked {what} {args.rerank_top_k})"))
    return loaded


def _describe_others(
    classification: list[ClassificationData],
    similarity: list[SimilarityData],
    args: EvaluationArguments,
    results: EvaluationResults,
):
    _unique([data.name for data in classification], "--eval_classification_dir")
    _unique([data.name for data in similarity], "--eval_similarity_file")
    for path, data in zip(args.eval_classification_dir or [], classification, strict=True):
        content = [data.train_texts, data.train_labels, data.test_texts, data.test_labels]
        results.datasets.append(
            {
                "name": data.name,
                "kind": "classification",
                "path": str(path),
                "train": len(data.train_texts),
                "test": len(data.test_texts),
                "classes": len(data.label_names),
                "templates": args.label_template,
                "sha256": content_hash(content),
            }
        )
    for path, data in zip(args.eval_similarity_file or [], similarity, strict=True):
        content = [data.sentences1, data.sentences2, data.scores]
        entry = {"name": data.name, "kind": "similarity", "path": str(path), "pairs": len(data.scores)}
        results.datasets.append({**entry, "sha256": content_hash(content)})


def _unique(names: list[str], option: str):
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise InputError(f"{option} names two datasets {twice[0]}: rename one of the folders, or leave one out.")


def model_names(paths: Sequence[str]) -> list[str]:
    """A short name for each path: its last part, or as many as tell it from the others; more than just `encoder`."""
    parts = [Path(path).expanduser().resolve().parts if Path(path).exists() else Path(path).parts for path in paths]
    names = []
    for own in parts:
        size = 2 if own[-1] in ("encoder", "backbone", "best") and len(own) > 1 else 1
        while size < len(own) and sum(other[-size:] == own[-size:] for other in parts) > 1:
            size += 1
        names.append("/".join(own[-size:]))
    if len(set(names)) < len(names):
        raise InputError("--model_name_or_path names the same model twice: leave one out.")
    return names


def _models(args: EvaluationArguments, results: EvaluationResults, say) -> list[_Model]:
    """Each model, tried; and, for each architecture among them, one with random weights."""
    paths = args.model_name_or_path or []
    models = [_Model(name, path, number) for number, (name, path) in enumerate(zip(model_names(paths), paths))]
    architectures: dict[tuple, _Model] = {}
    for model in models:
        encoder = _load(model, args)
        encoder.encode_queries(["a text"], progress=False)
        if args.lexical:
            _load_lexical(encoder, args).encode_queries(["a text"], progress=False)
        described = encoder.describe()
        results.add_system(**{**described, "name": model.name, "kind": "dense"})
        if args.generation:
            load_writer(encoder, model.name)
        results.training += _training(model)
        origin = _started_from(model, models)
        if origin is not None:
            results.systems[-1]["started_from"] = origin
        architectures.setdefault(
            tuple(described.get(key) for key in ("model_type", "parameters", "vector_size", "pooling")), model
        )
        say(f"{model.name}: {described['parameters']:,} parameters, {described['pooling']} vectors")
    if args.random_weights:
        several = len(architectures) > 1
        for model in architectures.values():
            name = f"random weights ({model.name})" if several else "random weights"
            twin = replace(model, name=name, random_weights=True)
            results.add_system(**{**_load(twin, args).describe(), "name": name, "kind": "dense"})
            models.append(twin)
    return models


def _load(model: _Model, args: EvaluationArguments) -> TextEncoder:
    pooling = args.of_model("pooling", model.number, "auto")
    return load_encoder(
        model.path,
        revision=args.model_revision,
        trust_remote_code=args.trust_remote_code,
        pooling=None if pooling == "auto" else pooling,
        query_prompt=args.of_model("query_prompt", model.number, None),
        document_prompt=args.of_model("document_prompt", model.number, None),
        max_seq_length=args.max_seq_length,
        dtype=args.dtype,
        device=args.device,
        batch_size=args.batch_size,
        random_weights=model.random_weights,
        seed=args.seed,
    )


def _load_lexical(encoder: TextEncoder, args: EvaluationArguments) -> LexicalEncoder:
    return load_lexical_encoder(encoder, top_n=args.lexical_top_n, trust_remote_code=args.trust_remote_code)


def _started_from(model: _Model, models: Sequence[_Model]) -> str | None:
    """The name of the model whose weights this one was trained from, if it is among those that are measured."""
    folder = Path(model.path).expanduser()
    for candidate in (folder, folder.parent):
        file = candidate / RUN_ARGUMENTS
        if folder.is_dir() and file.is_file():
            origin = json.loads(file.read_text(encoding="utf-8")).get("model_name_or_path")
            same = (other.name for other in models if origin is not None and _same_place(other.path, origin))
            return next((name for name in same if name != model.name), None)
    return None


def _same_place(one: str, other: str) -> bool:
    return one == other or Path(one).expanduser().resolve() == Path(other).expanduser().resolve()


def _training(model: _Model) -> list[dict]:
    """The losses of a model's training, where its folder or the one above has them."""
    folder = Path(model.path).expanduser()
    for candidate in (folder, folder.parent):
        file = candidate / "trainer_state.json"
        if folder.is_dir() and file.is_file():
            history = json.loads(file.read_text(encoding="utf-8")).get("log_history", [])
            return [{"system": model.name, "log_history": history}]
    return []


# --- Retrieval ----------------------------------------------------------------------------------------------------


def _measure_bm25(one: _Retrieval, args: EvaluationArguments, results: EvaluationResults, say):
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
        scored = {
            query: {each: run.get(query, {}).get(each, 0.0) for each in found}
            for query, found in one.candidates.items()
        }
        results.add_run(one.rerank_name, BM25, scored, one.data.qrels)


def _place(results: EvaluationResults, dataset: str) -> int:
    return [entry["name"] for entry in results.datasets].index(dataset)


def _measure_retrieval(
    encoder: TextEncoder, model: _Model, one: _Retrieval, args: EvaluationArguments, results: EvaluationResults
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
        found, scores = approximate_search(queries, documents, TOP_K, **chunks)
    else:
        device = args.device or ("cuda" if torch.cuda.is_available() else None)
        found, scores = search(queries, documents, TOP_K, device=device, **chunks)
    return {
        query: {data.corpus_ids[i]: score for i, score in zip(row, own.tolist(), strict=True) if i >= 0}
        for query, row, own in zip(data.query_ids, found, scores, strict=True)
    }


def _measure_hybrids(name: str, run: Run, one: _Retrieval, args: EvaluationArguments, results: EvaluationResults):
    for method in (method for method in args.hybrid if method != "none"):
        both = f"{name} + BM25" if len(args.hybrid) == 1 else f"{name} + BM25 ({method})"
        weights = [1.0, args.bm25_weight]
        results.add_system(both, kind="hybrid", of=[name, BM25], method=method, weights=weights)
        fused = fuse([run, results.run(one.data.name, BM25)], method=method, weights=weights)
        results.add_run(one.data.name, both, fused, one.data.qrels)


def _measure_lexical(lexical: LexicalEncoder, model: _Model, one: _Retrieval, results: EvaluationResults):
    """What the model's MLM head finds, and with its vectors; those are measured before."""
    data, name, joint = one.data, f"{model.name}, lexical", f"{model.name}, joint"
    found = lexical_search(
        lexical.encode_queries(data.query_texts), lexical.encode_documents(data.corpus_texts), TOP_K
    )
    run = {
        query: {data.corpus_ids[i]: score for i, score in zip(positions, scores.tolist(), strict=True)}
        for query, (positions, scores) in zip(data.query_ids, found, strict=True)
    }
    results.add_system(name, kind="lexical", of=[model.name], top_n=lexical.top_n, description=lexical.description)
    results.add_run(data.name, name, run, data.qrels)
    results.add_system(joint, kind="hybrid", of=[model.name, name], method="z_score", weights=[1.0, 1.0])
    results.add_run(data.name, joint, fuse([results.run(data.name, model.name), run]), data.qrels)


def _add_reranked(model: _Model, one: _Retrieval, queries, documents, results: EvaluationResults):
    data = one.data
    run = rerank(one.candidates, queries, documents, data.query_ids, data.corpus_ids)
    if all(entry["name"] != one.rerank_name for entry in results.datasets):
        entry = dict(results.datasets[_place(results, data.name)])
        results.datasets.append({**entry, "name": one.rerank_name, "kind": "reranking"})
    results.add_run(one.rerank_name, model.name, run, data.qrels)


def _measure_health(model: _Model, one: _Retrieval, queries, documents, args, results: EvaluationResults):
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


# --- Classification and similarity --------------------------------------------------------------------------------


def _measure_classification(
    encoder: TextEncoder,
    model: _Model,
    data: ClassificationData,
    args: EvaluationArguments,
    results: EvaluationResults,
):
    test = encoder.encode(data.test_texts)
    zero_shot = zero_shot_classification(
        encoder.encode, data, template=args.label_template, test_vectors=test, per_text=True
    )
    results.add_right(data.name, model.name, "zero_shot_accuracy", zero_shot.pop("right"))
    for metric, value in zero_shot.items():
        results.add_score(data.name, model.name, metric, value)
    if not data.train_texts:
        return
    few_shot = few_shot_classification(
        (encoder.encode(data.train_texts), test),
        data,
        shots=[shots if shots == "all" else int(shots) for shots in map(str, args.shots)],
        seeds=args.few_shot_seeds,
        seed=args.seed,
        per_text=True,
    )
    for metric, found in few_shot.items():
        if "right" in found:
            results.add_right(data.name, model.name, metric, found["right"])
        more = {"std": found["std"], "seeds": len(found["values"]), "short_classes": found["short_classes"]}
        results.add_score(data.name, model.name, metric, found["mean"], **more)


def _measure_similarity(encoder: TextEncoder, model: _Model, data: SimilarityData, results: EvaluationResults):
    for metric, value in similarity_scores(encoder.encode, data).items():
        results.add_score(data.name, model.name, metric, value)


# --- Generation ---------------------------------------------------------------------------------------------------


def _measure_generation(
    encoder: TextEncoder,
    model: _Model,
    retrieval: Sequence[_Retrieval],
    args: EvaluationArguments,
    results: EvaluationResults,
    say,
):
    writer = load_writer(encoder, model.name)
    options = {"max_documents": args.generation_max_documents, "batch_size": args.batch_size, "seed": args.seed}
    for data in (one.data for one in retrieval):
        say(f"{data.name}: what {model.name} writes")
        expanded = measure_generation(writer, encoder, model.name, data, results, **options)
        if args.bm25:
            name = f"{model.name}, queries expanded for BM25"
            results.add_system(name, kind="expansion", of=[model.name, BM25])
            run = bm25_run(replace(data, query_texts=expanded), top_k=TOP_K, **args.bm25_options())
            results.add_run(data.name, name, run, data.qrels)
