"""The tables of an experiment as Markdown, to paste into docs/experiments.md, and all that is written of it.

Input is what `experiment_results.py` makes.
"""

import re
from pathlib import Path
from typing import Any

from .evaluation import BM25
from .experiment_plots import write_experiment_plots
from .report_page import write_report
from .report_summary import is_significant, joined, number, p_value, shown_p_value, signed
from .report_tables import BETTER, WORSE, Cell, Table, command_lines, to_markdown
from .results_file import metric_name, metric_order, validate_results, write_whole

_LEFT_OUT = ("mrr@10",)  # of the differences: it says what nDCG@10 says


def write_experiment(results: dict[str, Any], folder: str | Path) -> Path:
    """Writes `results.json`, `report.html`, `results.md`, `plots/` and `table.md`, whose path is returned.

    The numbers are written first. `InputError` if a file cannot be written or the extra `eval` is not there.
    """
    folder = Path(folder)
    results = validate_results(results)
    write_report(results, folder)
    table = write_whole(folder / "table.md", experiment_markdown(results).encode("utf-8"))
    for old in (folder / "plots").glob("*.png"):
        old.unlink()  # of a metric or a curve that there is no more
    write_experiment_plots(folder / "plots", results)
    return table


def experiment_markdown(results: dict[str, Any]) -> str:
    """Title, question, what each arm cost, a table for each metric, the differences to the control, the command."""
    about = results["experiment"]
    parts = [f"## {(results.get('created') or '')[:10]}: {about['title']}", about["question"]]
    parts += [f"Missing: {'; '.join(about['missing'])}."] if about["missing"] else []
    cost = cost_table(results)
    parts += [to_markdown(cost)] if cost.rows else []
    for metric in sorted({score["metric"] for score in results["scores"]}, key=metric_order):
        parts += [f"{metric_name(metric)}:", to_markdown(metric_table(results, metric))]
    parts.append(_notes(results))
    differences = difference_table(results)
    parts += [to_markdown(differences)] if differences.rows else []
    parts.append(f"```bash\n{command_lines(results['command'])}\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


def cost_table(results: dict[str, Any]) -> Table:
    """Tokens, seconds and parameters of each arm: whether they are equal decides what a difference means."""
    table = Table(["arm", "runs", "tokens", "seconds of training", "parameters"], [False, True, True, True, True])
    for system in results["systems"]:
        if system["kind"] != "dense" or system.get("random_weights"):
            continue
        figures = [system.get(key) for key in ("runs", "tokens", "seconds", "parameters")]
        texts = ["–" if value is None else f"{value:,.0f}" for value in figures]
        table.rows.append([Cell(system["name"]), *map(Cell, texts)])
    return table


def metric_table(results: dict[str, Any], metric: str) -> Table:
    """Systems as rows, test sets and their averages as columns: the mean, its interval, and what is significant."""
    scores = {(s["dataset"], s["system"]): s for s in results["scores"] if s["metric"] == metric}
    datasets = [d["name"] for d in results["datasets"] if any(dataset == d["name"] for dataset, _ in scores)]
    marks: dict[tuple[str, str], str] = {}
    for c in results["comparisons"]:
        if c["metric"] == metric and c["baseline"] != BM25 and is_significant(c, results):
            marks[c["dataset"], c["system"]] = BETTER if c["difference"] > 0 else WORSE
    table = Table(["arm", *map(column_name, datasets)], [False] + [True] * len(datasets))
    best = {}
    for dataset in datasets:
        shown = [number(s["value"]) for (of, _), s in scores.items() if of == dataset and s["value"] is not None]
        best[dataset] = max(shown, default="")
    for system in results["systems"]:
        own = [scores.get((dataset, system["name"])) for dataset in datasets]
        if not any(own):
            continue
        row = [Cell(system["name"])]
        for dataset, score in zip(datasets, own, strict=True):
            text = "–" if score is None else _short(number(score["value"]))
            if score is not None and score.get("low") is not None:
                text += f" ({_short(number(score['low']))}–{_short(number(score['high']))})"
            is_best = score is not None and number(score["value"]) == best[dataset]
            row.append(Cell(text, is_best, marks.get((dataset, system["name"]), "")))
        table.rows.append(row)
    return table


def column_name(dataset: str) -> str:
    """ "scifact, reranked" for "scifact (reranked BM25 100)": of what stands in the command."""
    return re.sub(r" \(reranked .*\)$", ", reranked", dataset)


def difference_table(results: dict[str, Any]) -> Table:
    """Each arm minus its control: on the averages, or on each test set where there are none; not all metrics."""
    averages = [d["name"] for d in results["datasets"] if "of" in d]
    wanted = averages or [d["name"] for d in results["datasets"]]
    columns = ["arm", "minus", "on", "metric", "difference", "95 % interval", "p (Holm)", "better", "worse"]
    table = Table(columns, [False] * 4 + [True] * 5)
    for c in results["comparisons"]:
        if c["dataset"] not in wanted or c["metric"] in _LEFT_OUT:
            continue
        interval = f"{_short(signed(c['low']))} to {_short(signed(c['high']))}"
        texts = [
            c["system"],
            c["baseline"],
            column_name(c["dataset"]),
            metric_name(c["metric"]),
            _short(signed(c["difference"])),
        ]
        texts += [interval, _short(p_value(shown_p_value(c))), f"{c['wins']:,}", f"{c['losses']:,}"]
        cells = list(map(Cell, texts))
        if is_significant(c, results):
            cells[4] = Cell(texts[4], mark=BETTER if c["difference"] > 0 else WORSE)
        table.rows.append(cells)
    return table


def _notes(results: dict[str, Any]) -> str:
    about = results["experiment"]
    seeds = [str(seed) for seed in about["seeds"]]
    spread = [score["seed_std"] for score in results["scores"] if score.get("seed_std") is not None]
    notes = [
        f"Seed{'s' * (len(seeds) > 1)} {joined(seeds)}. In brackets the 95 % interval: "
        f"{results['statistics']['interval']}."
    ]
    if len(seeds) == 1:
        notes.append("One seed: the interval is over the queries only, and says nothing about the next training.")
    if spread:
        notes.append(f"Deviation over the seeds: at most {_short(number(max(spread)))}.")
    if results["comparisons"]:
        notes.append(
            f"{BETTER} {WORSE}: better or worse than the control at p < .05, corrected by Holm's method for the "
            f"number of arms; p is {results['statistics']['test']}. Bold: the highest value."
        )
    return " ".join(notes)


def _short(text: str) -> str:
    """ ".342" for "0.342", as docs/experiments.md has it."""
    return re.sub(r"(?<!\d)0\.(?=\d)", ".", text)
