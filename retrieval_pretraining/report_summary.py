"""What an evaluation says, in sentences: who is best, which differences can be told from chance, what to be wary of.

Input is the results dict of `results_file.py`, validated.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from retrieval_pretraining.results_file import LOWER_IS_BETTER, metric_name, metric_order

FEW_QUERIES = 50  # fewer: only very large differences are significant


@dataclass(frozen=True)
class Finding:
    """What was found on a dataset, by the metric that counts there."""

    dataset: str
    metric: str
    sentences: list[str]


@dataclass
class Summary:
    """`findings` are what was measured; `warnings` what a reader must know before believing or using it."""

    findings: list[Finding] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def number(value: float | None) -> str:
    """Three decimals, or a dash for what was not measured."""
    if value is None:
        return "–"
    text = f"{value:.3f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")


def signed(value: float | None) -> str:
    """A difference: "+0.130", "−0.042", "0.000"."""
    text = number(value)
    return f"+{text}" if value is not None and value > 0 and text != "0.000" else text


def p_value(value: float | None) -> str:
    """ "< 0.001" or three decimals."""
    return "< 0.001" if value is not None and value < 0.001 else number(value)


def joined(names: Iterable[str]) -> str:
    """ "A", "A and B", "A, B and C"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def significance_level(results: dict[str, Any]) -> float:
    """The p value below which a difference is called significant, 0.05 unless the results state another."""
    return results.get("statistics", {}).get("level", 0.05)


def is_significant(comparison: dict[str, Any], results: dict[str, Any]) -> bool:
    """Whether the difference can be told from chance, at the level of these results and by `shown_p_value`."""
    p = shown_p_value(comparison)
    return bool(comparison["difference"]) and p is not None and p < significance_level(results)


def shown_p_value(comparison: dict[str, Any]) -> float | None:
    """The p value that decides: corrected for the number of comparisons where the results have it so."""
    return comparison.get("p_value_holm", comparison["p_value"])


def main_metric(results: dict[str, Any], dataset: str) -> str | None:
    """The metric that counts on a dataset: the first in the order of `METRICS` that has a value there."""
    metrics = {s["metric"] for s in results["scores"] if s["dataset"] == dataset and s["value"] is not None}
    return min(metrics, key=metric_order, default=None)


def regressions(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Comparisons by the main metric in which a system is significantly worse than what it started from.

    That is its `started_from`, or, where it states none, any dense baseline.
    """
    systems = {system["name"]: system for system in results["systems"]}
    found = []
    for comparison in results["comparisons"]:
        system, baseline = systems[comparison["system"]], systems[comparison["baseline"]]
        started_from = system.get("started_from")
        if started_from is None:
            is_start = system["kind"] == baseline["kind"] == "dense" and not system.get("random_weights")
        else:
            is_start = started_from == baseline["name"]
        if (
            is_start
            and comparison["metric"] == main_metric(results, comparison["dataset"])
            and (comparison["difference"] or 0) < 0
            and is_significant(comparison, results)
        ):
            found.append(comparison)
    return found


def summarise(results: dict[str, Any]) -> Summary:
    """Findings dataset by dataset, then what to be wary of; `results["warnings"]` are among the warnings."""
    summary = Summary()
    for dataset in results["datasets"]:
        metric = main_metric(results, dataset["name"])
        if metric is not None:
            sentences = _sentences(results, dataset["name"], metric)
            summary.findings.append(Finding(dataset["name"], metric_name(metric), sentences))
    summary.warnings += [_regression(comparison, results) for comparison in regressions(results)]
    random = {system["name"] for system in results["systems"] if system.get("random_weights")}
    for health in results["health"]:
        if health.get("collapsed") and health["system"] not in random:
            summary.warnings.append(
                f"Collapsed vectors: to {health['system']}, texts of {health['dataset']} that have nothing to do with "
                f"each other have a cosine of {number(health.get('random_cosine_mean'))} ± "
                f"{number(health.get('random_cosine_std'))}; nearly every text gets the same vector, and its scores "
                "mean little."
            )
    lost = [score for score in results["scores"] if score["value"] is None]
    summary.warnings += [
        f"No {metric_name(score['metric'])} for {score['system']} on {score['dataset']}: it was not a finite number."
        for score in lost
    ]
    for dataset in results["datasets"]:
        if dataset.get("sampled"):
            summary.warnings.append(
                f"{dataset['name']} is a sample: its scores compare with each other only, not with those of the whole."
            )
        if 0 < (dataset.get("queries") or 0) < FEW_QUERIES:
            summary.warnings.append(
                f"{dataset['name']} has {dataset['queries']} queries only: intervals are wide, and a difference must "
                "be large to be significant."
            )
    summary.warnings += [warning for warning in results["warnings"] if warning not in summary.warnings]
    return summary


def _sentences(results: dict[str, Any], dataset: str, metric: str) -> list[str]:
    place = dataset, metric
    scores = [s for s in results["scores"] if (s["dataset"], s["metric"]) == place and s["value"] is not None]
    scores.sort(key=lambda score: score["value"], reverse=metric not in LOWER_IS_BETTER)
    best = f"{scores[0]['system']} {'is best with' if len(scores) > 1 else 'reaches'} {number(scores[0]['value'])}"
    if scores[0].get("low") is not None and scores[0].get("high") is not None:
        best += f" (95 % interval {number(scores[0]['low'])} to {number(scores[0]['high'])})"
    if len(scores) > 1:
        best += f"; {scores[1]['system']} follows with {number(scores[1]['value'])}"
        between = _between(results, place, {scores[0]["system"], scores[1]["system"]})
        if between is not None:
            best += f": {'a significant' if is_significant(between, results) else 'no significant'} difference"
    sentences = [best + "."]
    random = {system["name"] for system in results["systems"] if system.get("random_weights")}
    untrained = [f"{score['system']} {number(score['value'])}" for score in scores if score["system"] in random]
    if untrained and len(untrained) < len(scores):
        sentences.append(f"With random weights: {joined(untrained)}; what is above that was learned.")
    comparisons = [c for c in results["comparisons"] if (c["dataset"], c["metric"]) == place]
    for baseline in dict.fromkeys(comparison["baseline"] for comparison in comparisons):
        own = [c for c in comparisons if c["baseline"] == baseline and c["system"] not in random]
        groups = {kind: [] for kind in ("significantly better", "no significant difference", "significantly worse")}
        for comparison in sorted(own, key=lambda c: -(c["difference"] or 0)):
            kind = "no significant difference"
            if is_significant(comparison, results):
                kind = "significantly better" if comparison["difference"] > 0 else "significantly worse"
            named = f"{comparison['system']} ({signed(comparison['difference'])})"
            groups[kind].append(named)
        if own:
            said = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in groups.items() if names)
            sentences.append(f"Against {baseline}: {said}.")
    return sentences


def _between(results: dict[str, Any], place: tuple[str, str], pair: set[str]) -> dict[str, Any] | None:
    own = (c for c in results["comparisons"] if (c["dataset"], c["metric"]) == place)
    return next((c for c in own if {c["system"], c["baseline"]} == pair), None)


def _regression(comparison: dict[str, Any], results: dict[str, Any]) -> str:
    started_from = {system["name"]: system.get("started_from") for system in results["systems"]}
    what = ", which it started from," if started_from[comparison["system"]] == comparison["baseline"] else ""
    text = (
        f"Regression: {comparison['system']} is significantly worse than {comparison['baseline']}{what} on "
        f"{comparison['dataset']}: {metric_name(comparison['metric'])} {signed(comparison['difference'])}"
    )
    if comparison.get("low") is not None and comparison.get("high") is not None:
        text += f" (95 % interval {signed(comparison['low'])} to {signed(comparison['high'])})"
    return (
        text
        + ". A lower learning rate, fewer steps or general text mixed into the training text may keep what it had."
    )
