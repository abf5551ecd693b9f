"""The tables of a report: scores, differences, health of vectors, systems; as data for the page and as Markdown.

    print(markdown_report(read_results("report")))

Input is the results dict of `results_file.py`, validated.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from retrieval_pretraining.report_summary import (
    is_significant,
    joined,
    main_metric,
    number,
    p_value,
    shown_p_value,
    signed,
    significance_level,
    summarise,
)
from retrieval_pretraining.results_file import (
    LOWER_IS_BETTER,
    best_value,
    metric_name,
    metric_order,
    validate_results,
)

BETTER, WORSE = "▲", "▼"
_SUPERSCRIPTS = "¹²³⁴⁵⁶⁷⁸⁹"


@dataclass(frozen=True)
class Cell:
    """A value as it is shown. `mark`: significant differences; `interval`: "0.63–0.72"."""

    text: str
    best: bool = False
    mark: str = ""
    interval: str = ""


@dataclass
class Table:
    """Rows of cells under `columns`; the first cell of a row names it. `numeric` columns are set to the right."""

    columns: list[str]
    numeric: list[bool]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def scores_table(results: dict[str, Any], dataset: str) -> Table:
    """Systems as rows, metrics as columns; the best of a column is marked, and what is significant.

    A value that shows as the best one does, at three decimals, is marked as best too.
    """
    scores = {(s["system"], s["metric"]): s for s in results["scores"] if s["dataset"] == dataset}
    metrics = sorted({metric for _, metric in scores}, key=metric_order)
    systems = [s["name"] for s in results["systems"] if any((s["name"], metric) in scores for metric in metrics)]
    comparisons = [c for c in results["comparisons"] if c["dataset"] == dataset]
    baselines = list(dict.fromkeys(comparison["baseline"] for comparison in comparisons))
    marks: dict[tuple[str, str], str] = {}
    for comparison in comparisons:
        if is_significant(comparison, results):
            mark = BETTER if comparison["difference"] > 0 else WORSE
            place = comparison["system"], comparison["metric"]
            marks[place] = marks.get(place, "") + mark + _superscript(baselines, comparison["baseline"])
    table = Table(["system", *map(metric_name, metrics)], [False] + [True] * len(metrics))
    best = {
        metric: best_value(metric, (scores.get((name, metric), {}).get("value") for name in systems))
        for metric in metrics
    }
    for name in systems:
        row = [Cell(name)]
        for metric in metrics:
            score = scores.get((name, metric), {"value": None})
            text = number(score["value"])
            measured = score["value"] is not None and best[metric] is not None
            is_best = len(systems) > 1 and measured and text == number(best[metric])
            row.append(Cell(text, is_best, marks.get((name, metric), ""), _spread(score)))
        table.rows.append(row)
    if len(systems) > 1:
        lowest = [metric_name(metric) for metric in metrics if metric in LOWER_IS_BETTER]
        table.notes.append(f"Bold: the highest value{f', of {joined(lowest)} the lowest' if lowest else ''}.")
    if comparisons:
        table.notes.append(_note_of_marks(results, comparisons, baselines))
    if any(cell.interval for row in table.rows for cell in row):
        table.notes.append(_note_of_intervals(results, dataset, bool(comparisons)))
    return table


def differences_table(results: dict[str, Any], dataset: str, *, metrics: Sequence[str] | None = None) -> Table:
    """One row a comparison: the paired difference, its interval, p, and on how many queries who is better.

    `metrics`: which; by default the one that counts.
    """
    wanted = [main_metric(results, dataset)] if metrics is None else metrics
    comparisons = [c for c in results["comparisons"] if c["dataset"] == dataset and c["metric"] in wanted]
    p = "p (Holm)" if any("p_value_holm" in c for c in comparisons) else "p"
    columns = ["system", "minus", "metric", "difference", "95 % interval", p, "better", "worse", "equal"]
    table = Table(columns, [False] * 3 + [True] * 6)
    for c in comparisons:
        row = [
            c["system"],
            c["baseline"],
            metric_name(c["metric"]),
            signed(c["difference"]),
            _range(c, signed, " to "),
        ]
        row += [
            p_value(shown_p_value(c)),
            *("–" if c.get(k) is None else f"{c[k]:,}" for k in ("wins", "losses", "ties")),
        ]
        cells = [Cell(text) for text in row]
        if is_significant(c, results):
            cells[3] = Cell(row[3], mark=BETTER if c["difference"] > 0 else WORSE)
        table.rows.append(cells)
    return _without_empty_columns(table)


def health_table(results: dict[str, Any]) -> Table:
    """How far related texts are told from random ones, and how vectors use their space."""
    columns = ["dataset", "system", "related", "random", "AUC", "alignment", "uniformity", "isotropy", "collapsed"]
    table = Table(columns, [False, False] + [True] * 6 + [False])
    for h in results["health"]:
        cosines = [
            f"{number(h.get(f'{kind}_cosine_mean'))} ± {number(h.get(f'{kind}_cosine_std'))}"
            for kind in ("positive", "random")
        ]
        others = [number(h.get(key)) for key in ("auc", "alignment", "uniformity", "isotropy")]
        collapsed = {True: "yes", False: "no"}.get(h.get("collapsed"), "–")
        table.rows.append([Cell(text) for text in (h["dataset"], h["system"], *cosines, *others, collapsed)])
    if table.rows:
        table.notes += [
            "related, random: cosine of a query with a relevant and with a random document, mean ± deviation. Their "
            "order counts, not their height. AUC: how often the related pair has the higher one; 0.5 is chance.",
            "alignment: mean squared distance of related pairs, low is good. uniformity: log of the mean of "
            "exp(−2 × squared distance) of random pairs, low if the sphere is used evenly (Wang and Isola 2020).",
        ]
    return _without_empty_columns(table)


def systems_table(results: dict[str, Any]) -> Table:
    """What every system is, as far as it decides the numbers: pooling, prompts, lengths, weights."""
    keys = {
        "model": lambda s: s.get("model_name_or_path") or s.get("description") or _hybrid(s),
        "revision": lambda s: s.get("revision"),
        "type": lambda s: s.get("model_type") or s["kind"],
        "started from": lambda s: s.get("started_from"),
        "pooling": lambda s: s.get("pooling"),
        "query prompt": lambda s: _quoted(s.get("query_prompt")),
        "document prompt": lambda s: _quoted(s.get("document_prompt")),
        "max tokens": lambda s: s.get("max_seq_length"),
        "chunks": lambda s: s.get("chunk_size") and f"{s['chunk_size']} tokens, {s.get('chunk_score')}",
        "dtype": lambda s: s.get("dtype"),
        "vector size": lambda s: s.get("vector_size"),
        "parameters": lambda s: s.get("parameters"),
        "weights": lambda s: "random" if s.get("random_weights") else (s.get("weights_sha256") or "")[:12],
    }
    numeric = ("max tokens", "vector size", "parameters")
    table = Table(["system", *keys], [False, *(key in numeric for key in keys)])
    for system in results["systems"]:
        values = [get(system) for get in keys.values()]
        texts = ["–" if v in (None, "") else f"{v:,}" if isinstance(v, int) else str(v) for v in values]
        table.rows.append([Cell(system["name"]), *map(Cell, texts)])
    return _without_empty_columns(table)


def datasets_table(results: dict[str, Any]) -> Table:
    """What was evaluated on; the sum identifies the files."""
    keys = ("kind", "path", "split", "language", "documents", "queries", "judged", "sampled", "bm25", "sha256")
    table = Table(
        ["dataset", *("BM25" if key == "bm25" else key for key in keys)],
        [False, *(key in ("documents", "queries", "judged") for key in keys)],
    )
    for dataset in results["datasets"]:
        row = [Cell(dataset["name"])]
        for key in keys:
            value = dataset.get(key)
            if key == "sampled":
                value = "yes" if value else None
            text = "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
            row.append(Cell(text[:12] if key == "sha256" else text))
        table.rows.append(row)
    return _without_empty_columns(table)


def to_markdown(table: Table, *, interval_of: int | None = None) -> str:
    """An aligned Markdown table and its notes. `interval_of`: the column whose intervals get a column of their own."""
    rows = []
    for row in table.rows:
        cells = [_markdown(cell) for cell in row]
        if interval_of is not None:
            cells.insert(interval_of + 1, row[interval_of].interval or "–")
        rows.append(cells)
    header, numeric = [_escape(name) for name in table.columns], list(table.numeric)
    if interval_of is not None:
        header.insert(interval_of + 1, "95 % interval")
        numeric.insert(interval_of + 1, True)
    widths = [max(3, *(len(row[i]) for row in [header, *rows])) for i in range(len(header))]
    rule = ["-" * (width - 1) + (":" if right else "-") for width, right in zip(widths, numeric, strict=True)]
    lines = [
        "| " + " | ".join(t.rjust(w) if r else t.ljust(w) for t, w, r in zip(row, widths, numeric, strict=True)) + " |"
        for row in [header, rule, *rows]
    ]
    return "\n".join([*lines, *(f"\n{_escape(note)}" for note in table.notes)])


def format_results(results: dict[str, Any]) -> str:
    """For the screen: the scores of each dataset, what the marks in them mean, and what to be wary of."""
    results = validate_results(results)
    parts = []
    for dataset in results["datasets"]:
        table = scores_table(results, dataset["name"])
        if table.rows:
            notes = "\n".join(note for note in table.notes if note.startswith(BETTER))
            table.notes = []
            parts += [f"{dataset['name']} ({describe_dataset(dataset)})", to_markdown(table), notes]
    parts += [f"Warning: {text}" for text in summarise(results).warnings]
    return "\n\n".join(part for part in parts if part)


def markdown_report(results: dict[str, Any]) -> str:
    """The whole report without its plots, to read in a terminal, a pull request or a model card."""
    summary = summarise(results)
    parts = ["# Evaluation"]
    for finding in summary.findings:
        sentences = "".join(f"\n- {_escape(text)}" for text in finding.sentences)
        parts.append(f"**{_escape(finding.dataset)}**, {_escape(finding.metric)}:\n{sentences}")
    if summary.warnings:
        parts += ["## Warnings", "\n".join(f"- {_escape(text)}" for text in summary.warnings)]
    for dataset in results["datasets"]:
        table = scores_table(results, dataset["name"])
        if not table.rows:
            continue
        has_interval = any(len(row) > 1 and row[1].interval for row in table.rows)
        parts += [f"## {_escape(dataset['name'])}", _escape(describe_dataset(dataset))]
        parts.append(to_markdown(table, interval_of=1 if has_interval else None))
        differences = differences_table(results, dataset["name"])
        if differences.rows:
            parts.append(to_markdown(differences))
    for title, table in (
        ("Vectors", health_table(results)),
        ("Systems", systems_table(results)),
        ("Data", datasets_table(results)),
    ):
        if table.rows:
            parts += [f"## {title}", to_markdown(table)]
    parts.append("## To repeat it")
    if results.get("command"):
        parts.append(f"```bash\n{command_lines(results['command'])}\n```")
    facts = {"created": results.get("created"), "seed": results.get("seed"), **results["environment"]}
    parts.append(
        "; ".join(f"{_escape(name)} {_escape(str(value))}" for name, value in facts.items() if value is not None)
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def describe_dataset(dataset: dict[str, Any]) -> str:
    """ "Retrieval: 5,183 documents, 300 queries, 339 judged; language en; split test"."""
    counts = [f"{dataset[key]:,} {key}" for key in ("documents", "queries", "judged") if dataset.get(key) is not None]
    facts = [f"{dataset['kind']}: {', '.join(counts)}" if counts else dataset["kind"]]
    facts += [f"{key} {dataset[key]}" for key in ("language", "split") if dataset.get(key)]
    return "; ".join(facts) + ("; a sample" if dataset.get("sampled") else "")


def command_lines(command: str) -> str:
    """The command with an option a line, to read and to copy."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return " \\\n    ".join(shlex.join(line) for line in lines if line)


def _superscript(baselines: list[str], baseline: str) -> str:
    if len(baselines) == 1:
        return ""
    place = baselines.index(baseline)
    return _SUPERSCRIPTS[place] if place < len(_SUPERSCRIPTS) else f"({place + 1})"


def _note_of_marks(results: dict[str, Any], comparisons: list[dict], baselines: list[str]) -> str:
    names = ", ".join(f"{_superscript(baselines, name)}{' ' * (len(baselines) > 1)}{name}" for name in baselines)
    level = significance_level(results)
    test = results.get("statistics", {}).get("test") or "paired test over queries"
    text = f"{BETTER} {WORSE}: significantly better or worse than {names} (p < {level:g}, {test}"
    if any("p_value_holm" in comparison for comparison in comparisons):
        text += "; corrected by Holm's method for the number of comparisons)."
    else:
        text += f"; {len(comparisons)} comparisons, not corrected for their number)."
    return text + f" Tested: {joined(dict.fromkeys(metric_name(c['metric']) for c in comparisons))}."


def _note_of_intervals(results: dict[str, Any], dataset: str, compared: bool) -> str:
    if any(score.get("std") is not None for score in results["scores"] if score["dataset"] == dataset):
        return "±: deviation over seeds."
    how = results.get("statistics", {}).get("interval") or "bootstrap over queries"
    return f"Intervals: 95 %, {how}." + " Whether two systems differ is answered by the paired differences." * compared


def _spread(score: dict[str, Any]) -> str:
    if score.get("std") is not None:
        return f"± {number(score['std'])}"
    if score.get("low") is None:
        return ""
    return _range(score, number, "–" if score["low"] >= 0 else " to ")


def _range(record: dict[str, Any], write, to: str) -> str:
    if record.get("low") is None or record.get("high") is None:
        return "–"
    return f"{write(record['low'])}{to}{write(record['high'])}"


def _hybrid(system: dict[str, Any]) -> str | None:
    if not system.get("of"):
        return None
    if not system.get("method"):
        return " + ".join(system["of"])
    weights = system.get("weights") or []
    if len(set(weights)) > 1:
        return f"{system['method']} of " + " + ".join(
            f"{weight:g} × {name}" for weight, name in zip(weights, system["of"], strict=True)
        )
    return f"{system['method']} of {' + '.join(system['of'])}"


def _quoted(prompt: str | None) -> str | None:
    return f"“{prompt}”" if prompt else None


def _without_empty_columns(table: Table) -> Table:
    kept = [i for i in range(len(table.columns)) if i == 0 or any(row[i].text not in ("–", "") for row in table.rows)]
    rows = [[row[i] for i in kept] for row in table.rows]
    return Table([table.columns[i] for i in kept], [table.numeric[i] for i in kept], rows, table.notes)


def _markdown(cell: Cell) -> str:
    text = _escape(cell.text)
    return (f"{cell.mark} " if cell.mark else "") + (f"**{text}**" if cell.best else text)


def _escape(text: str) -> str:
    """Names and texts must not become Markdown or HTML, nor break a table."""
    for mark in "\\|*`[":
        text = text.replace(mark, "\\" + mark)
    text = re.sub(r"&(?=#?\w+;)", "&amp;", text)
    return " ".join(re.sub(r"<(?=[\w/!?])", "&lt;", text).split())
