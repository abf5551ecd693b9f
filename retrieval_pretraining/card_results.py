"""Results as the Hub reads them: the `model-index` of a model card, and the files in `.eval_results/`.

    update_model_card("outputs/mine", results, "mine")  # both, into README.md and beside it
    data = ModelCardData(model_name="mine", eval_results=model_index_results(results, "mine"), ...)

`model-index` takes any dataset. A file in `.eval_results/` is for a dataset that the Hub lists as a benchmark, and
names one of the tasks in its `eval.yaml`; its score then stands on that benchmark's leaderboard. So there are files
only for datasets whose `hub_dataset` and `hub_task` the results state (https://huggingface.co/docs/hub/eval-results).
"""

import os
import re
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCard, eval_result_entries_to_yaml

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.report_summary import main_metric
from retrieval_pretraining.report_tables import describe_dataset, scores_table, to_markdown
from retrieval_pretraining.results_file import metric_name, validate_results, write_whole

FOLDER = ".eval_results"
DECIMALS = 5

_BEGIN, _END = "<!-- evaluation: begin -->", "<!-- evaluation: end -->"
_EARLIER = "*Measured before the training went on: with these weights it may be otherwise.*"

_TASKS = {  # the names that sentence-transformers writes into its cards
    "retrieval": "Information Retrieval",
    "reranking": "Reranking",
    "classification": "Text Classification",
    "similarity": "Semantic Similarity",
    "generation": "Text Generation",
}


def model_index_results(results: dict[str, Any], system: str) -> list[EvalResult]:
    """Every score of `system`, for `ModelCardData(model_name=..., eval_results=...)`; values from 0 to 1.

    `InputError` if the results have no such system.
    """
    results = _with_system(results, system)
    datasets = {dataset["name"]: dataset for dataset in results["datasets"]}
    found = []
    for score in results["scores"]:
        if score["system"] != system or score["value"] is None:
            continue
        found.append(eval_result(datasets[score["dataset"]], score["metric"], score["value"]))
    return found


def eval_result(dataset: dict[str, Any], metric: str, value: float) -> EvalResult:
    """One score on a dataset, which has a `kind` and a `name`, as the `model-index` names it."""
    task = _TASKS.get(dataset["kind"], dataset["kind"])
    return EvalResult(
        task_type=task.lower().replace(" ", "-"),
        task_name=task,
        # scores are grouped by this: it must differ between datasets
        dataset_type=dataset.get("hub_dataset") or _slug(dataset["name"]),
        dataset_name=dataset["name"] + (" (sample)" if dataset.get("sampled") else ""),
        dataset_config=dataset.get("hub_task"),
        dataset_split=dataset.get("split"),
        dataset_revision=dataset.get("hub_revision"),
        metric_type=metric,
        metric_name=metric_name(metric),
        metric_value=round(value, DECIMALS),
    )


def eval_result_files(results: dict[str, Any], system: str) -> dict[str, str]:
    """Name -> content of the YAML files for `.eval_results/`, one a benchmark, with the metric that counts.

    Samples are left out: a leaderboard compares scores of the whole. `InputError` if the results have no such system.
    """
    results = _with_system(results, system)
    of_system = next(s for s in results["systems"] if s["name"] == system)
    entries: dict[str, list[EvalResultEntry]] = {}
    for dataset in results["datasets"]:
        hub_dataset, hub_task = dataset.get("hub_dataset"), dataset.get("hub_task")
        if not (hub_dataset and hub_task) or dataset.get("sampled"):
            continue
        metric = main_metric(results, dataset["name"])
        for score in results["scores"]:
            place = score["dataset"], score["system"], score["metric"]
            if place == (dataset["name"], system, metric) and score["value"] is not None:
                entries.setdefault(hub_dataset, []).append(
                    EvalResultEntry(
                        dataset_id=hub_dataset,
                        task_id=hub_task,
                        dataset_revision=dataset.get("hub_revision"),
                        value=round(score["value"], DECIMALS),
                        date=results.get("created"),
                        notes=_notes(of_system, metric),
                    )
                )
    return {
        f"{_slug(name)}.yaml": yaml.safe_dump(eval_result_entries_to_yaml(own), sort_keys=False, allow_unicode=True)
        for name, own in entries.items()
    }


def write_eval_results(results: dict[str, Any], system: str, folder: str | os.PathLike) -> list[Path]:
    """Write `eval_result_files` into `folder/.eval_results`, which is pushed with the model; returns their paths."""
    paths = []
    for name, text in eval_result_files(results, system).items():
        paths.append(write_whole(Path(folder) / FOLDER / name, text.encode("utf-8")))
    return paths


def update_model_card(folder: str | os.PathLike, results: dict[str, Any], system: str) -> Path:
    """Write the scores into the model's folder: its README.md and `.eval_results`. Returns the path of the README.md.

    Scores on the same dataset, split and metric are replaced in the `model-index`, others stay. The section
    "Evaluation" is written anew, beside all systems that were measured; the rest of the text stays as it is. A folder
    without a card gets one. `InputError` for an unknown system, or a card that cannot be read or written.
    """
    folder = Path(folder)
    path = folder / "README.md"
    evaluated = model_index_results(results, system)
    try:
        card = ModelCard.load(path) if path.is_file() else ModelCard(f"# {folder.resolve().name}\n")
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path} is not a readable model card ({error}); mend its first lines.") from error
    kept = [old for old in card.data.eval_results or [] if not any(_same_score(old, new) for new in evaluated)]
    card.data.eval_results = kept + evaluated
    card.data.model_name = card.data.model_name or folder.resolve().name
    card.text = _with_section(card.text, evaluation_section(results, system))
    write_whole(path, (str(card).rstrip() + "\n").encode("utf-8", errors="replace"))
    write_eval_results(results, system, folder)
    return path


def kept_evaluation(text: str, *, steps: int | None) -> tuple[str, list[EvalResult]]:
    """What of a card outlives its being written anew, for a model of `steps` steps: the section "Evaluation", with its
    marks, and the scores of the `model-index`. Where the weights have changed the scores are no longer theirs: the
    section says so, and there are none."""
    begin, end = text.find(_BEGIN), text.find(_END)
    section = text[begin : end + len(_END)] if 0 <= begin < end else ""
    try:
        scores = (ModelCard(text).data.eval_results or []) if text else []
    except (ValueError, yaml.YAMLError):  # somebody has edited it
        scores = []
    if f"| steps | {steps} |" in text:
        return section, scores
    if section and _EARLIER not in section:
        section = section.replace(_END, f"\n{_EARLIER}\n{_END}")
    return section, []


def evaluation_section(results: dict[str, Any], system: str) -> str:
    """The section of a model card: the scores on every dataset that `system` was measured on, beside the others."""
    results = _with_system(results, system)
    parts = ["## Evaluation", f"`{system}` is this model."]
    for dataset in results["datasets"]:
        table = scores_table(results, dataset["name"])
        if any(row[0].text == system for row in table.rows):
            parts += [f"**{dataset['name']}** ({describe_dataset(dataset)})", to_markdown(table)]
    return "\n\n".join(parts)


def _with_section(text: str, section: str) -> str:
    """The text with the section between its two marks, which are put at its end if it has none."""
    section = f"{_BEGIN}\n{section}\n{_END}"
    begin, end = text.find(_BEGIN), text.find(_END)
    if 0 <= begin < end:
        return text[:begin] + section + text[end + len(_END) :]
    return f"{text.rstrip()}\n\n{section}\n"


def _same_score(one: EvalResult, other: EvalResult) -> bool:
    return (one.unique_identifier, one.metric_type) == (other.unique_identifier, other.metric_type)


def _with_system(results: dict[str, Any], system: str) -> dict[str, Any]:
    results = validate_results(results)
    names = [s["name"] for s in results["systems"]]
    if system not in names:
        raise InputError(f'The results have no system "{system}"; choose one of {", ".join(names)}.')
    return results


def _notes(system: dict[str, Any], metric: str) -> str:
    """What a reader needs to get the same number."""
    facts = {
        "metric": metric_name(metric),
        "pooling": system.get("pooling"),
        "max_seq_length": system.get("max_seq_length"),
        "query prompt": repr(system["query_prompt"]) if system.get("query_prompt") else None,
        "document prompt": repr(system["document_prompt"]) if system.get("document_prompt") else None,
    }
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


def _slug(name: str) -> str:
    """A name for a file or a dataset without a place on the Hub; letters of any script stay."""
    return re.sub(r"[^\w.]+", "-", name.lower()).strip("-.") or "dataset"
