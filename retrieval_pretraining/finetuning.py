"""Fine-tuning from a model and pairs to a sentence-transformers folder: the run behind `run_finetune.py`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from retrieval_pretraining.card_arguments import CardArguments
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.finetune_arguments import (
    ContrastiveArguments,
    FinetuneDataArguments,
    FinetuneModelArguments,
)
from retrieval_pretraining.finetune_card import FinetuneRun, finetune_card, write_finetune_card
from retrieval_pretraining.finetune_data import TrainingData, load_documents_to_mine, load_training_data
from retrieval_pretraining.finetune_model import load_trainable, needs_remote_code
from retrieval_pretraining.finetune_trainer import (
    FinetuningArguments,
    FinetuningTrainer,
    RetrievalEvaluator,
    column_prompts,
    contrastive_loss,
    retrieval_run,
)
from retrieval_pretraining.hard_negatives import (
    Corpus,
    Mining,
    add_negatives,
    bm25_ranker,
    default_count,
    describe,
    model_ranker,
    pair_scores,
)
from retrieval_pretraining.relevance import Relevance, text_key
from retrieval_pretraining.report_summary import p_value, signed
from retrieval_pretraining.results_file import metric_name
from retrieval_pretraining.retrieval_data import RetrievalData, Run
from retrieval_pretraining.retrieval_evaluation import (
    bm25_beside,
    format_table,
    load_retrieval_data,
    retrieval_metrics,
    training_sample,
)
from retrieval_pretraining.significance import paired_comparison
from retrieval_pretraining.systems import resolve_prompt
from retrieval_pretraining.text_encoder import SentenceTransformersEncoder
from retrieval_pretraining.training_run import bars, open_run, push, speaker, train

STAGING = "_start"  # `_`: is not pushed
_METRICS = ("ndcg@10", "recall@100", "mrr@10")  # what `retrieval_metrics` measures by default


def finetune(
    model_args: FinetuneModelArguments,
    data_args: FinetuneDataArguments,
    args: FinetuningArguments,
    contrastive: ContrastiveArguments | None = None,
    card: CardArguments | None = None,
) -> dict[str, Any]:
    """One run; returns what it measured."""
    run = FinetuneRun(model_args, data_args, args, contrastive or ContrastiveArguments(), card or CardArguments())
    for group in (run.model, run.data, run.contrastive, run.card):
        group.check()
    _check_evaluation(run)
    with _bars_of_datasets(shown=bars(args) is None):
        return _finetune(run)


def _finetune(run: FinetuneRun) -> dict[str, Any]:
    args, say = run.args, speaker(run.args)
    checkpoint, repository = open_run(run.model, run.data, args, [run.contrastive], say=say)
    retrieval = None
    if run.data.eval_retrieval_dir is not None:
        retrieval = load_retrieval_data(run.data.eval_retrieval_dir, split=run.data.eval_retrieval_split)
    # No model is loaded for data that have nothing.
    with args.main_process_first(desc="reading"):
        data = load_training_data(run.data.source(), layout=run.data.layout(), say=say)
    set_seed(args.seed)
    encoder = _load(run)
    _check_sizes(encoder, run)
    encoder.model.to(args.device)
    say(f"{run.model.model_name_or_path}: {encoder.parameters:,} parameters, {_modules(encoder)}")

    results: dict[str, Any] = {"pairs": len(data.pairs)}
    rankings: dict[str, Run] = {}
    if retrieval is not None:
        results["retrieval_name"] = retrieval.name
        bm25 = bm25_beside(retrieval, say, progress=bars(args)) if args.process_index == 0 else None
        rankings |= {"BM25": bm25} if bm25 is not None else {}
        # With the prompts that it has: an instruction that it never saw would make it look worse.
        rankings["before"] = retrieval_run(encoder, retrieval, progress=bars(args))
    _set_prompts(encoder, run)
    examples = _with_negatives(data, encoder, run, results, say)
    relevance = Relevance.of(data.pairs)
    trainer = _trainer(encoder, examples, relevance, retrieval, repository, run, say)
    if retrieval is not None:
        results["seen_queries"] = sum(text_key(text) in relevance.answers for text in retrieval.query_texts)
    _measure(rankings, retrieval, results)
    if args.should_save:
        finetune_card(args.output_dir, encoder, run, results)  # now, not after hours: what is wrong with it

    def complete(folder: Path, now: dict[str, Any]):
        """What a checkpoint lacks to be published."""
        write_finetune_card(folder, encoder, run, {**results, **now})

    results |= train(trainer, args, checkpoint, complete, card=run.card, say=say)
    encoder.encode(["a"])  # raises where the last step has spoilt it
    trainer.save_model(args.output_dir, _internal_call=True)  # is pushed below, when all of it is there
    if retrieval is not None:
        rankings["after"] = retrieval_run(encoder, retrieval, progress=bars(args))
        _measure(rankings, retrieval, results)
        trainer.save_metrics("eval", _flat(results))
    if args.should_save:
        write_finetune_card(args.output_dir, encoder, run, results)
    if retrieval is not None:
        say(f"\n{retrieval.name}, cosine of the sentence vectors:\n{_table(results)}")
        for sentence in results["comparisons"]:
            say(sentence)
    say(how_to_load(args.output_dir, encoder))
    if args.push_to_hub:
        push(trainer, say)
    return results


def how_to_load(folder: str, encoder: SentenceTransformersEncoder) -> str:
    flag = ", trust_remote_code=True" if needs_remote_code(encoder.model) else ""
    return (
        f"\nThe model is in {folder}. To use it:\n\n"
        "  from sentence_transformers import SentenceTransformer\n"
        f'  model = SentenceTransformer("{folder}"{flag})\n'
        '  queries, documents = model.encode_query(["a query"]), model.encode_document(["a document"])\n'
    )


# --- Parts of a run -----------------------------------------------------------------------------------------------


def _check_evaluation(run: FinetuneRun):
    args, wanted = run.args, run.args.metric_for_best_model
    if args.eval_strategy != "no" and run.data.eval_retrieval_dir is None:
        raise InputError("--eval_strategy needs data to search in: give --eval_retrieval_dir.")
    if wanted is not None and args.eval_strategy != "no":
        names = [f"eval_retrieval_{name}" for name in _METRICS]
        if f"eval_{wanted.removeprefix('eval_')}" not in names:
            raise InputError(f"--metric_for_best_model {wanted} is not measured; there are {', '.join(names)}.")


def _load(run: FinetuneRun) -> SentenceTransformersEncoder:
    args, staging = run.args, Path(run.args.output_dir) / STAGING
    if args.process_index == 0:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
    try:
        with args.main_process_first(desc="loading"):
            return load_trainable(
                run.model.model_name_or_path,
                revision=run.model.model_revision,
                trust_remote_code=run.model.trust_remote_code,
                pooling=run.model.pooling,
                max_seq_length=run.model.max_seq_length,
                batch_size=args.per_device_eval_batch_size,
                staging=staging,
            )
    finally:
        if args.world_size > 1:
            torch.distributed.barrier()
        if args.process_index == 0:
            shutil.rmtree(staging, ignore_errors=True)


def _sizes(encoder: SentenceTransformersEncoder, run: FinetuneRun) -> list[int] | None:
    """Those that the loss is computed at, the whole vector among them."""
    sizes = run.contrastive.matryoshka_dims
    return sorted({*sizes, encoder.vector_size}, reverse=True) if sizes else None


def _check_sizes(encoder: SentenceTransformersEncoder, run: FinetuneRun):
    for size in run.contrastive.matryoshka_dims or []:
        if size > encoder.vector_size:
            raise InputError(f"--matryoshka_dims {size} is more than the {encoder.vector_size} that a vector has.")


@contextmanager
def _bars_of_datasets(*, shown: bool) -> Iterator[None]:
    import datasets

    change = not shown and not datasets.are_progress_bars_disabled()
    if change:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if change:
            datasets.enable_progress_bars()


def _modules(encoder: SentenceTransformersEncoder) -> str:
    return " -> ".join(type(module).__name__ for module in encoder.model)


def _set_prompts(encoder: SentenceTransformersEncoder, run: FinetuneRun):
    """Those that it is trained with, and keeps."""
    encoder.query_prompt = resolve_prompt(run.model.query_prompt, encoder.query_prompt)
    encoder.document_prompt = resolve_prompt(run.model.document_prompt, encoder.document_prompt)
    encoder.model.prompts = {"query": encoder.query_prompt, "document": encoder.document_prompt}
    encoder.model.default_prompt_name = None


def _with_negatives(data: TrainingData, encoder, run: FinetuneRun, results: dict[str, Any], say):
    """The training examples, each with as many negatives; without any where the pairs have none and none are mined."""
    wanted, args = run.contrastive, run.args
    if not data.has_negatives and wanted.hard_negatives == "none":
        if wanted.num_hard_negatives is not None:
            raise InputError("--num_hard_negatives: the pairs have no negatives; give --hard_negatives bm25 or model.")
        return data.pairs.remove_columns("negatives")
    texts = [*data.documents, *(text for batch in data.pairs.iter(1000) for text in batch["positive"])]
    if wanted.corpus_file is not None:
        texts = load_documents_to_mine(wanted.corpus_file, run.data.reading_options())
    elif data.has_negatives:
        texts += [text for batch in data.pairs.iter(1000) for row in batch["negatives"] for text in row]
    count = wanted.num_hard_negatives or default_count(data.pairs)
    corpus, first, last = Corpus(texts), *wanted.hard_negative_ranks
    fewer = min(len(row) for batch in data.pairs.iter(1000) for row in batch["negatives"]) < count
    mining, how = None, ""
    if wanted.hard_negatives != "none" and not fewer:
        say("no pair lacks negatives: nothing is mined")
    elif wanted.hard_negatives == "bm25":
        mining, how = Mining(bm25_ranker(corpus, progress=bars(args)), (first, last)), "mined by BM25"
    elif wanted.hard_negatives == "model":
        scores = pair_scores(encoder, progress=bars(args)) if wanted.hard_negative_margin is not None else None
        ranker = model_ranker(corpus, encoder, progress=bars(args))
        mining, how = Mining(ranker, (first, last), wanted.hard_negative_margin, scores), "mined by the model"
    if mining is not None:
        how += f" from ranks {first} to {last} of {len(corpus):,} documents"
    examples, counts = add_negatives(data.pairs, count=count, corpus=corpus, mining=mining, seed=args.seed)
    line = describe(counts, pairs=len(data.pairs), how=how)
    results |= {"negatives": line.removeprefix("negatives: "), "negative_counts": counts}
    say(line)
    if mining is not None and not counts["mined"]:
        say("warning: no negative was mined: lower the first of --hard_negative_ranks, or give more documents.")
    return examples


def _trainer(encoder, examples, relevance, retrieval: RetrievalData | None, repository, run: FinetuneRun, say):
    args = run.args
    args.prompts = column_prompts(examples.column_names, encoder.query_prompt, encoder.document_prompt) or None
    evaluator = None
    if args.eval_strategy != "no":
        limits = {
            "max_queries": run.data.eval_retrieval_max_queries,
            "max_documents": run.data.eval_retrieval_max_documents,
        }
        evaluator = RetrievalEvaluator(encoder, training_sample(retrieval, **limits, seed=args.seed, say=say))
    loss = contrastive_loss(
        encoder.model,
        temperature=run.contrastive.temperature,
        mini_batch_size=run.contrastive.contrastive_mini_batch_size,
        matryoshka_dims=_sizes(encoder, run),
        world_size=args.world_size,
    )
    trainer = FinetuningTrainer(
        model=encoder.model,
        args=args,
        train_dataset=examples,
        relevance=relevance,
        loss=loss,
        evaluator=evaluator,
        hub_repository=repository,
    )
    if not len(trainer.batches):
        raise InputError(
            f"{len(examples):,} pairs make no whole batch of {args.per_device_train_batch_size} x {args.world_size}: "
            "lower --per_device_train_batch_size."
        )
    line = f"an epoch: {len(trainer.batches):,} batches of at most {args.per_device_train_batch_size} pairs"
    if trainer.batches.left_out:
        line += f"; {trainer.batches.left_out:,} pairs are left out, others each time: they fit into none of them"
    say(line)
    return trainer


# --- What was measured --------------------------------------------------------------------------------------------


def _measure(rankings: dict[str, Run], retrieval: RetrievalData | None, results: dict[str, Any]):
    """Scores of all rankings; once there is one of after, how it differs from the others."""
    if retrieval is None:
        return
    scores = {name: retrieval_metrics(run, retrieval.qrels, per_query=True) for name, run in rankings.items()}
    means = {name: {m: sum(v.values()) / len(v) for m, v in row.items()} for name, row in scores.items()}
    results["bm25"] = means.pop("BM25", None)
    results["retrieval"] = means
    results["comparisons"], results["differences"] = [], {}
    for other in [name for name in ("before", "BM25") if "after" in scores and name in scores]:
        metric = _METRICS[0]
        found = paired_comparison(scores["after"][metric], scores[other][metric])
        results["differences"][other] = asdict(found)
        p, interval = p_value(found.p_value), f"{signed(found.low)} to {signed(found.high)}"
        results["comparisons"].append(
            f"after minus {other}: {metric_name(metric)} {signed(found.difference)}, 95 % interval {interval}, "
            f"p {p if p.startswith('<') else f'= {p}'}; better on {found.wins:,} queries, worse on {found.losses:,}, "
            f"equal on {found.ties:,}."
        )
    if results["seen_queries"]:
        number = f"{results['seen_queries']:,} of the {len(retrieval.query_texts):,}"
        results["comparisons"].append(f"Not a fair test: {number} queries are among those that it was trained on.")


def _flat(results: dict[str, Any]) -> dict[str, Any]:
    """As `all_results.json` has it."""
    rows = {**results["retrieval"], "bm25": results["bm25"] or {}}
    flat = {f"retrieval_{when}_{name}": value for when, row in rows.items() for name, value in row.items()}
    for other, found in results["differences"].items():
        of = f"retrieval_after_minus_{other.lower()}_{_METRICS[0]}"
        flat |= {of: found["difference"], f"{of}_low": found["low"], f"{of}_high": found["high"]}
        flat[f"{of}_p_value"] = found["p_value"]
    return flat


def _table(results: dict[str, Any]) -> str:
    rows = {"BM25": results["bm25"], **results["retrieval"]}
    rows = [{"": when, **row} for when, row in rows.items() if row]
    return format_table(rows, list(rows[-1]))
