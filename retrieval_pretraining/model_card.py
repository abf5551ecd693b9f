"""The README.md of a trained model: what it is, how it was made, what it measured, how to load it.

    write_model_card("outputs/mine", model, objective, results)

The text is `model_card.md`, the same for all objectives. What is unknown, or not yet measured, is left out.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from modeling_retromae import backbone_of

from .card_facts import citation, fact_tables, hardware, is_random, method_of
from .card_metadata import check_card, hub_id, license_fields, without_nothing
from .card_plots import write_plots
from .card_results import eval_result, kept_evaluation
from .results_file import metric_name, write_whole

if TYPE_CHECKING:
    from .objectives import GURObjective, RetroMAEObjective

TEMPLATE = Path(__file__).with_name("model_card.md")
_ROWS = {"bm25": "BM25", "before": "before this training", "after": "**this model**"}


def write_model_card(
    folder: str | Path, model, objective: RetroMAEObjective | GURObjective, results: dict[str, Any]
) -> Path:
    """Writes `README.md` of a run and the images in it. `results` is what `run_pretrain.run` has measured until now.

    A section that `run_evaluation.py --update_model_card` wrote stays; where the training has gone on since, it says
    so, and its scores, which are those of other weights, leave the `model-index`.
    """
    folder = Path(folder)
    path = folder / "README.md"
    old = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    plots = write_plots(folder, results)
    return write_whole(path, model_card(folder, model, objective, results, plots=plots, old=old).encode("utf-8"))


def model_card(
    folder: str | Path,
    model,
    objective,
    results: dict[str, Any],
    *,
    plots: dict[str, str] | None = None,
    old: str = "",
) -> str:
    """The text of the card. `InputError` for metadata that the Hub would refuse."""
    run, config = objective.run, model.config
    is_gur = run.model.objective == "gur"
    encoder = getattr(config, "encoder_config", config)
    # A decoder that no loss has trained writes nothing; that of a model which says so of itself is none either.
    weight = getattr(config, "lm_loss_weight", 0)
    untaught_before = weight == 0 and is_gur and run.gur.lm_loss_weight is None
    taught_before = run.model.model_name_or_path is not None and not untaught_before
    writes = is_gur and (taught_before or (run.args.trains and weight > 0))
    tags = ["pretraining", run.model.objective, *(["text2text-generation"] if writes else [])]
    facts = fact_tables(model, run, results, units=objective.examples, tokens=objective.token_count)
    revision = run.args.hub_revision or "main"
    return render_card(
        folder,
        old,
        results,
        data=run.data,
        args=run.args,
        card=run.card,
        base_model=run.model.model_name_or_path,
        tags=[model.config.model_type, *tags],
        training_type="pre-training",
        family="gur" if is_gur else "retromae",
        writes=writes,
        random=is_random(run),
        method=method_of(model, run),
        where=where_it_is(folder, run.args),
        revision=json.dumps(revision),
        pinned="" if revision == "main" else f"revision={json.dumps(revision)}, ",
        kind=config.backbone_type if is_gur else encoder.model_type,
        # BERT's class has a pooler, which the encoder was trained without.
        plain_options=", add_pooling_layer=False" if not is_gur and backbone_of(encoder).has_pooler else "",
        whole="The weights beside it are the encoder and its MLM head."
        if run.model.objective == "mlm"
        else "The weights beside it are whole, the decoder too, to go on with pre-training.",
        pooling=f"{config.pooling}, then a projection" if is_gur else "the state of the first token, `[CLS]`",
        dimensions=config.projection_dim if is_gur else encoder.hidden_size,
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
        max_seq_length=results["max_seq_length"],
        prompts="none",
        tables=facts,
        results=results_text(results, plots or {}, how="with no fine-tuning", opening="As it is, it"),
        limitations=_limitations(run, results, writes=writes),
        citation=citation(run.model.objective),
    )


def render_card(
    folder: str | Path,
    old: str,
    measured: dict[str, Any],
    *,
    data,
    args,
    card,
    base_model: str | None,
    tags: list[str],
    training_type: str,
    tables: dict[str, dict],
    **fields,
) -> str:
    """The text of a card from the template, with what outlives of the `old` one. `data`, `args` and `card` are groups
    of arguments of a run, `tables` heading -> name -> value, `fields` what else the template names."""
    name = " ".join(Path(folder).absolute().name.split())
    evaluation, measured_before = kept_evaluation(old, steps=measured.get("steps"))
    evaluated = _model_index(data, measured)
    of_ours = {(score.unique_identifier, score.metric_type) for score in evaluated}
    evaluated += [score for score in measured_before if (score.unique_identifier, score.metric_type) not in of_ours]
    made = ModelCard.from_template(
        _metadata(name, data, args, card, base_model, tags, training_type, measured, evaluated),
        template_str=TEMPLATE.read_text(encoding="utf-8"),
        title=re.sub(r"([\\`*_<>\[\]])", r"\\\1", name),
        tables={heading: _rows(facts) for heading, facts in tables.items()},
        evaluation=evaluation,
        **fields,
    )
    text = re.sub(r"\n{3,}", "\n\n", made.content).rstrip() + "\n"
    check_card(text)
    return text


def where_it_is(folder: str | Path, args) -> str:
    """What the snippets load, in double quotes, which is the same in JSON and in Python."""
    return json.dumps(args.hub_model_id or Path(folder).absolute().name, ensure_ascii=False)


# --- Metadata -----------------------------------------------------------------------------------------------------


def _metadata(
    name: str, data, args, card, base_model, tags, training_type, results: dict[str, Any], evaluated: list[EvalResult]
):
    texts = [data.dataset_name, *(data.train_file or []), *(getattr(data, "mix_file", None) or [])]
    datasets = [hub_id(text) for text in texts if text and (text == data.dataset_name or text.startswith("hf://"))]
    fields = {
        "language": card.language,
        **license_fields(card.license),
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": list(dict.fromkeys(["sentence-transformers", "feature-extraction", *tags])),
        "base_model": hub_id(base_model),
        "datasets": list(dict.fromkeys(datasets)),
    }
    if results.get("co2_grams") is not None:
        fields["co2_eq_emissions"] = {
            "emissions": results["co2_grams"],
            "source": "codecarbon",
            "training_type": training_type,
            "hardware_used": hardware(args),
        }
    if evaluated:
        fields |= {"model_name": name or "model", "eval_results": evaluated}
    return ModelCardData(**without_nothing(fields))


def _model_index(data, results: dict[str, Any]) -> list[EvalResult]:
    """What the finished model reached, named as `run_evaluation.py` does, whose scores take the place of these."""
    after = (results.get("retrieval") or {}).get("after") or {}
    dataset = {"kind": "retrieval", "name": results.get("retrieval_name"), "split": data.eval_retrieval_split}
    return [eval_result(dataset, metric, value) for metric, value in after.items() if _is_number(value)]


# --- Text ---------------------------------------------------------------------------------------------------------


def _rows(facts: dict[str, Any]) -> str:
    return "\n".join(f"| {name} | {_cell(value)} |" for name, value in facts.items() if value not in (None, ""))


def _cell(value: Any) -> str:
    """On one line, and no end of the cell."""
    return " ".join(str(value).split()).replace("|", "\\|")


def results_text(results: dict[str, Any], plots: dict[str, str], *, how: str, opening: str) -> str:
    """Search before and after beside BM25, and the losses; `how` it was searched, `opening` of what is said of it."""
    parts = [*_retrieval(results, plots, how, opening), *_losses(results, plots)]
    return "\n\n".join(parts) or "Nothing was measured yet."


def _retrieval(results: dict[str, Any], plots: dict[str, str], how: str, opening: str) -> list[str]:
    rows = {"bm25": results.get("bm25"), **(results.get("retrieval") or {})}
    rows = {when: row for when, row in rows.items() if row}
    if not rows:
        return []
    metrics = list(dict.fromkeys(metric for row in rows.values() for metric in row))
    lines = [f"| | {' | '.join(map(metric_name, metrics))} |", "|---|" + "--:|" * len(metrics)]
    for when, row in rows.items():
        lines.append(f"| {_ROWS.get(when, when)} | {' | '.join(_number(row.get(name), 3) for name in metrics)} |")
    named = f" in {_cell(results['retrieval_name'])}" if results.get("retrieval_name") else ""
    parts = [f"Search{named}, all documents, by the cosine of the vectors, {how}:", "\n".join(lines)]
    bm25, after = (rows.get(when, {}).get(metrics[0]) for when in ("bm25", "after"))
    if _is_number(bm25) and _is_number(after):
        relation = "behind" if after < bm25 else "level with" if after == bm25 else "ahead of"
        parts.append(f"{opening} is {relation} BM25 here.")
    parts += results.get("comparisons") or []
    return parts + ([f"![{plots['retrieval']}](images/retrieval.png)"] if "retrieval" in plots else [])


def _losses(results: dict[str, Any], plots: dict[str, str]) -> list[str]:
    train, held_out = results.get("train") or {}, results.get("eval") or {}
    # Of a run that goes on, these are the rows of its log; of one that is done, the means of all steps.
    finished = any(name.startswith("train_") for name in train)
    values: dict[str, list] = {}
    for name, value in {**train, **held_out}.items():
        if not name.endswith(("_loss", "_accuracy")) or not _is_number(value):
            continue
        column = int(name.startswith("eval_"))
        name = name.removeprefix("eval_" if column else "train_")
        if name != "loss":
            values.setdefault(name, [None, None])[column] = value
    if not values:
        return []
    when = "mean of all steps" if finished else "last steps"
    lines = [f"| | training text, {when} | held-out text |", "|---|--:|--:|"]
    if all(row[1] is None for row in values.values()):
        lines = [f"| | training text, {when} |", "|---|--:|"]
        values = {name: row[:1] for name, row in values.items()}
    elif all(row[0] is None for row in values.values()):  # nothing was trained
        lines = ["| | held-out text |", "|---|--:|"]
        values = {name: row[1:] for name, row in values.items()}
    lines += [f"| {name} | {' | '.join(_number(value, 4) for value in row)} |" for name, row in values.items()]
    image = [f"![{plots['losses']}](images/losses.png)"] if "losses" in plots else []
    return ["\n".join(lines), *image]


def _limitations(run, results: dict[str, Any], *, writes: bool) -> str:
    where = f" ({', '.join(run.card.language)})" if run.card.language else ""
    items = [
        f"It knows the language{where} and the subjects of the text it was trained on, and repeats its mistakes and "
        "its prejudices. Nobody has checked what it says about people.",
        f"What is behind token {results['max_seq_length']} of a text has no effect on its vector: cut long texts up.",
        "Whether it is good enough for a task is seen on data of that task, beside BM25.",
    ]
    if run.model.objective == "gur":
        items.insert(
            0, "With no fine-tuning it finds texts that share words or subjects with a query better than answers."
        )
        if writes:
            items.append("The text that it writes fills in gaps; it is no source of facts.")
    else:
        items.insert(
            0, "It was never trained to tell relevant from irrelevant: before fine-tuning expect less than BM25."
        )
    return "\n".join(f"- {item}" for item in items)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _number(value: Any, decimals: int) -> str:
    return f"{value:.{decimals}f}" if _is_number(value) else "–"
