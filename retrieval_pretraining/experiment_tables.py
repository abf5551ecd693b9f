"""The tables of an experiment as Markdown, to paste into docs/experiments.md, and all that is written of it.

Input is what `experiment_results.py` makes.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .evaluation_retrieval import BM25
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
    """Title, question, what each arm cost, the scores, the differences to the control, the command.

    Of retrieval and reranking there is a table for each metric, of everything else one for each test set.
    """
    about = results["experiment"]
    parts = [f"## {(results.get('created') or '')[:10]}: {about['title']}", about["question"]]
    parts += [f"Missing: {'; '.join(about['missing'])}."] if about["missing"] else []
    cost = cost_table(results)
    parts += [to_markdown(cost)] if cost.rows else []
    for title, columns in _tables(results):
        parts += [f"{title}:", to_markdown(scores_table(results, columns))]
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


def _tables(results: dict[str, Any]) -> Iterator[tuple[str, dict[str, tuple[str, str]]]]:
    """The title of each table of scores, and its columns, for `scores_table`."""
    measured = {(score["dataset"], score["metric"]) for score in results["scores"]}
    kinds = {dataset["name"]: dataset["kind"] for dataset in results["datasets"]}
    searched = [name for name, kind in kinds.items() if kind in ("retrieval", "reranking")]
    for metric in sorted({metric for dataset, metric in measured if dataset in searched}, key=metric_order):
        own = [name for name in searched if (name, metric) in measured]
        yield metric_name(metric), {column_name(name): (name, metric) for name in own}
    for name in (name for name in kinds if name not in searched):
        metrics = [metric for dataset, metric in measured if dataset == name and "macro_f1" not in metric]
        if metrics:
            yield name, {metric_name(metric): (name, metric) for metric in sorted(metrics, key=_label_order)}


def _label_order(metric: str) -> tuple:
    """By the number of labels that were learned from: none, some, all."""
    _, at, count = metric.partition("@")
    return (0 if metric.startswith("zero_shot") else 1 if at else 2, int(count or 0), metric)


def scores_table(results: dict[str, Any], columns: Mapping[str, tuple[str, str]]) -> Table:
    """Systems as rows: the mean over seeds and queries, its interval, and what is significant.

    `columns`: title -> (test set or average, metric).
    """
    scores = {((s["dataset"], s["metric"]), s["system"]): s for s in results["scores"] if s["value"] is not None}
    marks = {
        ((c["dataset"], c["metric"]), c["system"]): BETTER if c["difference"] > 0 else WORSE
        for c in results["comparisons"]
        if c["baseline"] != BM25 and is_significant(c, results)
    }
    best = {
        place: max((number(score["value"]) for (of, _), score in scores.items() if of == place), default="")
        for place in columns.values()
    }
    table = Table(["arm", *columns], [False] + [True] * len(columns))
    for system in results["systems"]:
        row = [Cell(system["name"])]
        for place in columns.values():
            score = scores.get((place, system["name"]))
            if score is None:
                row.append(Cell("–"))
                continue
            text = _short(number(score["value"]))
            if score.get("low") is not None:
                text += f" ({_short(number(score['low']))}–{_short(number(score['high']))})"
            is_best = number(score["value"]) == best[place]
            row.append(Cell(text, is_best, marks.get((place, system["name"]), "")))
        if any(cell.text != "–" for cell in row[1:]):
            table.rows.append(row)
    return table


def column_name(dataset: str) -> str:
    """ "scifact, reranked" for "scifact (reranked BM25 100)": of what stands in the command."""
    return re.sub(r" \(reranked .*\)$", ", reranked", dataset)


def difference_table(results: dict[str, Any]) -> Table:
    """Each arm minus its control: on the averages, and on the test sets that are in none; not all metrics."""
    averaged = {name for d in results["datasets"] for parts in d.get("of", []) for name in parts.split("; ")}
    wanted = [d["name"] for d in results["datasets"] if d["name"] not in averaged]
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
