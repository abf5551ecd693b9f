"""Systems x datasets -> results: what `run_evaluation.py` does.

Models are loaded one after the other, each once for all it is measured on. All that a user can have mistyped is looked
at before the first text is encoded: the data are read, and each model is loaded and tried.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

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
from retrieval_pretraining.evaluation_retrieval import (
    BM25,
    TOP_K,
    MeasuredModel,
    SearchedDataset,
    measure_bm25,
    measure_lexical,
    measure_retrieval,
)
from retrieval_pretraining.generation_evaluation import load_writer, measure_generation
from retrieval_pretraining.lexical_search import LexicalEncoder, load_lexical_encoder
from retrieval_pretraining.reranking import load_candidates
from retrieval_pretraining.retrieval_data import load_retrieval_data, sample
from retrieval_pretraining.run_folder import RUN_ARGUMENTS
from retrieval_pretraining.similarity_evaluation import SimilarityData, load_similarity_data, similarity_scores
from retrieval_pretraining.systems import TextEncoder, load_encoder


def evaluate(args: EvaluationArguments, *, say: Callable[[str], None] = print) -> EvaluationResults:
    """Measures all systems on all datasets.

    Raises `InputError` for whatever cannot be measured; before anything was, as far as that can be known.
    """
    args.check()
    results = EvaluationResults(seed=args.seed)
    retrieval = _load_retrieval(args, results)
    classification = [load_classification_data(path) for path in args.eval_classification_dir or []]
    similarity = [load_similarity_data(path) for path in args.eval_similarity_file or []]
    _unique([entry["name"] for entry in results.datasets], "--eval_retrieval_dir")
    _describe_others(classification, similarity, args, results)
    models = _models(args, results, say)
    names = ([BM25] if args.bm25 else []) + [model.name for model in models]
    if args.baseline is not None and args.baseline not in names:
        raise InputError(f"--baseline {args.baseline} is none of the systems: {', '.join(names)}.")

    for one in retrieval:
        measure_bm25(one, args, results, say)
    for model in models:
        encoder = _load(model, args)
        for one in retrieval:
            say(f"{one.data.name}: {model.name}")
            measure_retrieval(encoder, model, one, args, results)
        if args.lexical and not model.random_weights:
            lexical = _load_lexical(encoder, args)
            for one in retrieval:
                say(f"{one.data.name}: {model.name}, lexical")
                measure_lexical(lexical, model, one, results)
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


def _load_retrieval(args: EvaluationArguments, results: EvaluationResults) -> list[SearchedDataset]:
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
        loaded.append(SearchedDataset(data, candidates, f"{data.name} (reranked {what} {args.rerank_top_k})"))
    return loaded


def _describe_others(
    classification: list[ClassificationData],
    similarity: list[SimilarityData],
    args: EvaluationArguments,
    results: EvaluationResults,
):
    known = [entry["name"] for entry in results.datasets]
    known += [data.name for data in classification]
    _unique(known, "--eval_classification_dir")
    _unique(known + [data.name for data in similarity], "--eval_similarity_file")
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
        raise InputError(
            f"{option} names a second dataset {twice[0]}: rename one of the folders or files, or leave one out."
        )


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


def _models(args: EvaluationArguments, results: EvaluationResults, say) -> list[MeasuredModel]:
    """Each model, tried; and, for each architecture among them, one with random weights."""
    paths = args.model_name_or_path or []
    models = [MeasuredModel(name, path, number) for number, (name, path) in enumerate(zip(model_names(paths), paths))]
    architectures: dict[tuple, MeasuredModel] = {}
    for model in models:
        encoder = _load(model, args)
        encoder.encode_queries(["a text"], progress=False)
        if args.chunk_size is not None:
            encoder.encode_document_chunks(["a text"], chunk_size=args.chunk_size)
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


def _load(model: MeasuredModel, args: EvaluationArguments) -> TextEncoder:
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


def _started_from(model: MeasuredModel, models: Sequence[MeasuredModel]) -> str | None:
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


def _training(model: MeasuredModel) -> list[dict]:
    """The losses of a model's training, where its folder or the one above has them."""
    folder = Path(model.path).expanduser()
    for candidate in (folder, folder.parent):
        file = candidate / "trainer_state.json"
        if folder.is_dir() and file.is_file():
            history = json.loads(file.read_text(encoding="utf-8")).get("log_history", [])
            return [{"system": model.name, "log_history": history}]
    return []


# --- Classification and similarity --------------------------------------------------------------------------------


def _measure_classification(
    encoder: TextEncoder,
    model: MeasuredModel,
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


def _measure_similarity(encoder: TextEncoder, model: MeasuredModel, data: SimilarityData, results: EvaluationResults):
    for metric, value in similarity_scores(encoder.encode, data).items():
        results.add_score(data.name, model.name, metric, value)


# --- Generation ---------------------------------------------------------------------------------------------------


def _measure_generation(
    encoder: TextEncoder,
    model: MeasuredModel,
    retrieval: Sequence[SearchedDataset],
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
