"""The plots of an experiment as PNG: all systems with their intervals, and curves over what the arms differ in.

Input is what `experiment_results.py` makes, validated. Needs matplotlib (extra `eval`).
"""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .evaluation_retrieval import BM25
from .experiments import MEASURED
from .extras import import_extra
from .report_summary import is_significant
from .report_svg import PALETTE, SERIES, clean, round_numbers
from .results_file import metric_name, metric_order

_ROW, _PANEL = 0.34, 3.1  # inches: height of a system, width of a panel
_COLUMNS = 3  # panels side by side
_UNITS = {  # of what was measured: how it is written, and what it is divided by
    "seconds": ("seconds of training", 1),
    "tokens": ("million tokens of training", 1e6),
    "parameters": ("million parameters", 1e6),
}


def write_experiment_plots(folder: str | Path, results: dict[str, Any]) -> list[Path]:
    """`<metric>.png` for each metric, `<metric>-over-<name>.png` where arms differ in a number; what was written."""
    figure_class = import_extra("matplotlib.figure").Figure
    written = []
    over = curve_axis(results)
    metrics = sorted({score["metric"] for score in results["scores"]}, key=metric_order)
    for metric in metrics:
        scores = [s for s in results["scores"] if s["metric"] == metric and s["value"] is not None]
        plots = [("", _intervals)] if scores else []
        plots += [(f"-over-{over}", _curves)] if scores and over is not None else []
        for suffix, draw in plots:
            figure = draw(figure_class, results, metric, scores)
            if figure is None:
                continue
            written.append(Path(folder) / f"{metric.replace('@', '-at-')}{suffix}.png")
            written[-1].parent.mkdir(parents=True, exist_ok=True)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Glyph .* missing from")
                # tight: title and legend may be wider than few panels; no version of a library, so that the same
                # results are the same file
                look = {"dpi": 120, "facecolor": "white", "bbox_inches": "tight", "pad_inches": 0.1}
                figure.savefig(written[-1], format="png", metadata={"Software": None}, **look)
    return written


def curve_axis(results: dict[str, Any]) -> str | None:
    """What the curves are drawn over: `plot` of the experiment, or else the first name of `for` that has numbers."""
    if results["experiment"].get("plot"):
        return results["experiment"]["plot"]
    names = dict.fromkeys(name for system in results["systems"] for name in system.get("values", {}))
    return next((name for name in names if len(_values(results, name)) > 1), None)


def _values(results: dict[str, Any], name: str) -> list[float]:
    """The different numbers that arms have, ascending; empty where one of them has something else."""
    found = [system["values"][name] for system in results["systems"] if name in system.get("values", {})]
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in found):
        return []
    return sorted(set(found))


def _intervals(figure_class, results, metric: str, scores: Sequence[dict]):
    """A panel a test set, a row a system: its mean, its interval, and a line where the control is."""
    datasets = list(dict.fromkeys(score["dataset"] for score in scores))
    names = [s["name"] for s in results["systems"] if any(score["system"] == s["name"] for score in scores)]
    styles = _styles(results)
    control = _control(results)
    columns = min(_COLUMNS, len(datasets))
    rows = -(-len(datasets) // columns)
    width = 0.6 + 0.085 * max(len(clean(name)) for name in names)
    figure = figure_class(figsize=(width + _PANEL * columns, rows * (0.75 + _ROW * len(names))), layout="constrained")
    low = min(0.0, *(s["low"] for s in scores if s.get("low") is not None), *(s["value"] for s in scores))
    high = max(s["high"] if s.get("high") is not None else s["value"] for s in scores)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
    for panel, dataset in zip(panels, datasets):
        own = {score["system"]: score for score in scores if score["dataset"] == dataset}
        hollow = {
            c["system"]
            for c in results["comparisons"]
            if (c["dataset"], c["metric"]) == (dataset, metric) and c["baseline"] != BM25
            if not is_significant(c, results)
        }
        if control in own:
            panel.axvline(own[control]["value"], color=_color("muted"), linewidth=1, linestyle=(0, (4, 3)), zorder=0)
        for place, name in enumerate(names):
            if name not in own:
                continue
            score, (color, marker) = own[name], styles[name]
            if score.get("low") is not None:
                panel.plot([score["low"], score["high"]], [place, place], color=color, linewidth=2)
            filled = "white" if name in hollow else color
            marks = dict(markersize=6.5, markerfacecolor=filled, markeredgecolor=color, markeredgewidth=1.6)
            panel.plot([score["value"]], [place], marker=marker, **marks)
            panel.annotate(
                _short(score["value"]),
                (1, place),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
                color=_color("text"),
            )
        _dress(panel, re.sub(r" \(reranked .*\)$", ", reranked", dataset))
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.set_yticks(range(len(names)), [clean(name, 60) for name in names])
        panel.set_xlim(low, high + 0.02 * (high - low or 1))
        panel.set_xticks(round_numbers(low, high))
        panel.grid(axis="x", color=_color("rule"), linewidth=0.8)
        panel.set_axisbelow(True)
    for panel in panels[len(datasets) :]:
        panel.set_visible(False)
    note = "; hollow: no significant difference to the control" if results["comparisons"] else ""
    _title(figure, f"{metric_name(metric)}: mean over seeds and queries, 95 % interval over both{note}")
    return figure


def _curves(figure_class, results, metric: str, scores: Sequence[dict]):
    """A panel a test set, a line for the arms of one name: the metric over a number. What has no number at all, such
    as the control, is a level line; arms that differ in something else are left out."""
    over = curve_axis(results)
    systems = {system["name"]: system for system in results["systems"]}
    ticks = [] if over in MEASURED else _values(results, over)
    axis, divisor = _UNITS.get(over, (over, 1))

    def place(system: dict) -> float | None:
        if over in MEASURED:
            value = system.get(over) if system["kind"] != "bm25" else None
            return None if value is None else value / divisor
        value = system.get("values", {}).get(over)
        return ticks.index(value) if value in ticks else None

    datasets = list(dict.fromkeys(score["dataset"] for score in scores))
    if not any(place(systems[score["system"]]) is not None for score in scores):
        return None
    columns = min(_COLUMNS, len(datasets))
    rows = -(-len(datasets) // columns)
    figure = figure_class(figsize=(0.4 + 3.4 * columns, 0.9 + 2.7 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
    styles = _styles(results, without=over)
    lines: dict[str, Any] = {}
    for panel, dataset in zip(panels, datasets):
        curves: dict[str, list[tuple[float, dict]]] = {}
        for score in (score for score in scores if score["dataset"] == dataset):
            system = systems[score["system"]]
            color, marker = styles[score["system"]]
            x = place(system)
            if x is None and system.get("values"):
                continue
            if x is None:
                level = panel.axhline(score["value"], color=color, linewidth=1.4, linestyle=(0, (4, 3)), zorder=1)
                lines.setdefault(score["system"], level)
            else:
                curves.setdefault(_line_of(system, over), []).append((x, score))
        for name, points in curves.items():
            points.sort(key=lambda point: point[0])
            xs = [x for x, _ in points]
            color, marker = styles[points[0][1]["system"]]
            (drawn,) = panel.plot(
                xs, [score["value"] for _, score in points], color=color, marker=marker, markersize=5, linewidth=1.8
            )
            lines.setdefault(name, drawn)
            if all(score.get("low") is not None for _, score in points):
                ends = ([score[key] for _, score in points] for key in ("low", "high"))
                panel.fill_between(xs, *ends, color=color, alpha=0.13, linewidth=0)
        _dress(panel, re.sub(r" \(reranked .*\)$", ", reranked", dataset))
        if ticks:
            panel.set_xticks(range(len(ticks)), [f"{value:,g}" for value in ticks])
        panel.set_xlabel(axis, fontsize=10, color=_color("muted"))
        panel.grid(axis="y", color=_color("rule"), linewidth=0.8)
        panel.set_axisbelow(True)
    for panel in panels[len(datasets) :]:
        panel.set_visible(False)
    figure.legend(
        list(lines.values()),
        [clean(name, 60) for name in lines],
        loc="outside lower center",
        ncols=min(4, len(lines)),
        frameon=False,
        fontsize=10,
        labelcolor=_color("text"),
    )
    _title(figure, f"{metric_name(metric)} over {axis}, 95 % interval over seeds and queries")
    return figure


def _line_of(system: dict[str, Any], over: str) -> str:
    """The name of a system without the number that its curve is drawn over; of measured ones, without any."""
    name = system["name"]
    for variable, value in system.get("values", {}).items():
        if variable == over or (over in MEASURED and isinstance(value, (int, float))):
            name = name.replace(f", {variable} {value}", "", 1)
    return name


def _styles(results: dict[str, Any], without: str | None = None) -> dict[str, tuple[str, str]]:
    """Colour and marker of each system: one colour for the arms of a line, where there are lines; grey for BM25."""
    styles: dict[str, tuple[str, str]] = {}
    colors: dict[str, str] = {}
    for system in results["systems"]:
        markers = {"bm25": "s", "hybrid": "D", "chunks": "^", "lexical": "v", "expansion": "P"}
        marker = markers.get(system["kind"], "o")
        if system["kind"] == "bm25" or system.get("random_weights"):
            styles[system["name"]] = (_color("reference"), marker)
            continue
        line = system["name"] if without is None else _line_of(system, without)
        styles[system["name"]] = (
            colors.setdefault(line, _color(f"series-{len(colors) % SERIES + 1}")),
            marker,
        )
    return styles


def _control(results: dict[str, Any]) -> str | None:
    """The one system that the others are compared with, if it is one."""
    baselines = {c["baseline"] for c in results["comparisons"] if c["baseline"] != BM25}
    return next(iter(baselines)) if len(baselines) == 1 else None


def _dress(panel, title: str):
    panel.set_title(clean(title, 44), loc="left", fontsize=10.5, fontweight="bold", color=_color("text"))
    panel.tick_params(length=0, labelsize=9.5, labelcolor=_color("text"))
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(_color("rule"))


def _title(figure, text: str):
    figure.suptitle(text, x=0.01, ha="left", fontsize=11.5, color=_color("muted"))


def _short(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"


def _color(name: str) -> str:
    return PALETTE[name][0]
