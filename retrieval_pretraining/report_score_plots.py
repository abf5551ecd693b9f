"""The plots of scores: all systems side by side, their differences, and the queries behind these.

Input is the results dict of `results_file.py`, validated. Every function returns None where there is nothing to show.
Needs matplotlib (extra `eval`).
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from retrieval_pretraining.report_plots import Plot, panel_id, styles
from retrieval_pretraining.report_summary import is_significant, main_metric, number, signed
from retrieval_pretraining.report_svg import (
    add_axes,
    clean,
    drawing,
    ink,
    mark_axis,
    round_numbers,
    to_svg,
    write,
    write_legend,
    write_title,
)
from retrieval_pretraining.results_file import LOWER_IS_BETTER, NEITHER_IS_BETTER, metric_name, metric_order

_ROW = 44  # height of a system in a plot of intervals: its name, its line below, and space
_FIRST_METRICS = ("ndcg@10", "recall@100")  # of retrieval; the others are one click away
_PANELS = 6  # that are shown at once; the others are one click away


def metric_plot(results: dict[str, Any], dataset: str) -> Plot | None:
    """Values of all systems with their intervals, one panel a metric, on an axis that starts at 0.

    Measures of which more is not better have scales of their own and stand in the table alone.
    """
    by_metric: dict[str, list[dict]] = {}
    for score in results["scores"]:
        plotted = score["metric"] not in (*LOWER_IS_BETTER, *NEITHER_IS_BETTER)
        if score["dataset"] == dataset and score["value"] is not None and plotted:
            by_metric.setdefault(score["metric"], []).append(score)
    if not by_metric:
        return None
    first = [metric for metric in _FIRST_METRICS if metric in by_metric] or list(by_metric)
    captions = ["The further right the better; all axes are the same and include 0."]
    every = [score for scores in by_metric.values() for score in scores]
    if any(score.get("low") is not None for score in every):
        captions.insert(0, "The mark is the value, the line its 95 % interval.")
    if any(score.get("std") is not None for score in every):
        captions.append("Of a mean over seeds, the line is one deviation to each side.")
    if any(comparison["dataset"] == dataset for comparison in results["comparisons"]):
        captions.append("Overlapping lines do not mean that two systems are equal: see the differences.")
    plot = Plot("Scores", " ".join(captions), more_title="The other metrics")
    limits = _limits(value for score in every for value in (score["value"], *_line(score)))
    for metric in sorted(by_metric, key=metric_order):
        rows = [(s["system"], s["value"], *_line(s), number(s["value"]), None) for s in by_metric[metric]]
        label = f"{metric_name(metric)} on {dataset}: " + "; ".join(f"{row[0]} {row[4]}" for row in rows)
        prefix = panel_id(results, "score", dataset, metric)
        panel = _intervals(results, rows, metric_name(metric), label, limits=limits, prefix=prefix)
        (plot.panels if metric in first else plot.more).append(panel)
    return plot


def difference_plot(results: dict[str, Any], dataset: str) -> Plot | None:
    """Paired differences to each baseline by the main metric, with their intervals; zero is marked."""
    metric = main_metric(results, dataset)
    comparisons = [c for c in results["comparisons"] if (c["dataset"], c["metric"]) == (dataset, metric)]
    comparisons = [c for c in comparisons if c["difference"] is not None]
    if not comparisons:
        return None
    plot = Plot(
        f"Differences in {metric_name(metric)}",
        "System minus baseline, query by query; the line is the 95 % interval of the mean. Right of zero the system "
        "is better. A filled mark is a significant difference, a hollow one is not.",
    )
    for baseline in dict.fromkeys(c["baseline"] for c in comparisons):
        rows = [
            (
                c["system"],
                c["difference"],
                c.get("low"),
                c.get("high"),
                signed(c["difference"]),
                is_significant(c, results),
            )
            for c in comparisons
            if c["baseline"] == baseline
        ]
        label = f"{metric_name(metric)} on {dataset} minus that of {baseline}: "
        label += "; ".join(f"{row[0]} {row[4]}{'' if row[5] else ', not significant'}" for row in rows)
        prefix = panel_id(results, "difference", dataset, metric, baseline)
        limits = _limits(value for row in rows for value in row[1:4])
        title = f"minus {clean(baseline, 34)}"
        plot.panels.append(_intervals(results, rows, title, label, limits=limits, prefix=prefix))
    return plot


def query_plot(results: dict[str, Any], dataset: str) -> Plot | None:
    """Differences of all queries, sorted: how many win and lose, and by how much."""
    own = [record for record in results["details"]["query_differences"] if record["dataset"] == dataset]
    own = [record for record in own if any(d is not None for d in record["differences"])]
    if not own:
        return None
    plot = Plot(
        "Query by query",
        "One bar a query, from the largest gain to the largest loss, so the areas are the total gain and the total "
        "loss. The dashed line is the mean.",
        layout="labelled",
        more_title="The other comparisons",
    )
    random = {system["name"] for system in results["systems"] if system.get("random_weights")}
    for record in own:
        prefix = panel_id(results, "query", dataset, record["metric"], record["system"], record["baseline"])
        folded = record["system"] in random or len(plot.panels) == _PANELS
        (plot.more if folded else plot.panels).append(_sorted_differences(record, prefix=prefix))
    return plot


def _intervals(
    results, rows: Sequence[tuple], title: str, label: str, *, limits: tuple[float, float], prefix: str
) -> str:
    """Rows (system, value, low, high, text, filled or None) as marks on lines, the names above them."""
    own = styles(results)
    low, high = limits
    reach = high - low or 1.0
    with drawing(height=_ROW * len(rows) + 48) as figure:
        write_title(figure, title)
        axes = add_axes(figure, 5, 52, 26, 22)
        axes.set_xlim(low - 0.02 * reach, high + 0.02 * reach)
        axes.set_ylim(_ROW * len(rows), 0)  # in pixels
        ticks = round_numbers(low, high)
        mark_axis(axes.xaxis, ticks)
        axes.set_yticks([])
        across = dict(transform=axes.get_yaxis_transform(), va="center")
        for place, (system, value, begin, end, text, filled) in enumerate(rows):
            style = own[system]
            y = _ROW * place + 29
            write(axes, 0, _ROW * place + 11, clean(system, 46), **across)
            for tick in ticks:  # along the marks only, so that no line runs through a name
                shade, width = ("muted", 1.2) if abs(tick) < 1e-9 else ("rule", 0.8)
                axes.plot([tick] * 2, [y - 9, y + 9], color=ink(shade), linewidth=width, zorder=0)
            if begin is not None and end is not None:
                axes.plot([begin, end], [y, y], color=ink(style.color), linewidth=2.4, solid_capstyle="round")
            axes.plot([value], [y], **style.marks(hollow=None if filled is None else not filled), clip_on=False)
            write(axes, 1.025, y, text, **across)
        return to_svg(figure, label=label, prefix=prefix)


def _sorted_differences(record: dict[str, Any], *, prefix: str) -> str:
    differences = np.sort(np.array([d for d in record["differences"] if d is not None], float))[::-1]
    count = len(differences)
    better, worse = int((differences > 0).sum()), int((differences < 0).sum())
    mean = differences.mean()
    baseline = clean(record["baseline"], 16)
    title = f"{clean(record['system'], 33 - len(baseline))} minus {baseline}"
    label = (
        f"{metric_name(record['metric'])} of {record['system']} minus {record['baseline']} on {record['dataset']}: "
        f"better on {better:,} queries, worse on {worse:,}, equal on {count - better - worse:,}; mean {signed(mean)}"
    )
    reach = max(np.abs(differences).max(), 1e-9)
    counts = [("better", better, "series-1"), ("worse", worse, "series-2"), ("equal", count - better - worse, "muted")]
    with drawing(height=212) as figure:
        write_title(figure, title)
        write_legend(figure, [(f"{name} on {n:,}", color) for name, n, color in counts if n])
        axes = add_axes(figure, 40, 6, 44, 22)
        axes.set_xlim(0, count)
        axes.set_ylim(-1.08 * reach, 1.08 * reach)
        ticks = round_numbers(-reach, reach)
        mark_axis(axes.yaxis, ticks)
        for tick in ticks:
            axes.axhline(tick, color=ink("rule"), linewidth=0.8, zorder=0)
        axes.axhline(0, color=ink("muted"), linewidth=1.2)
        for color, begin, end in (("series-1", 0, better), ("series-2", count - worse, count)):
            # a panel has no more than some 300 pixels for them: of more queries, every n-th shows the same
            edges = np.unique(np.linspace(begin, end, min(end - begin, 300) + 1).round().astype(int))
            heights = differences[(edges[:-1] + edges[1:]) // 2]
            steps = np.flatnonzero(np.diff(heights, prepend=np.nan))  # equal neighbours are one step
            if len(steps):
                axes.stairs(heights[steps], edges[[*steps, -1]], fill=True, color=ink(color), linewidth=0)
        axes.axhline(mean, color=ink("text"), linewidth=1.2, linestyle=(0, (4, 3)))
        axes.set_xticks([0, count], ["0", f"{count:,} queries"])
        for tick_label, side in zip(axes.get_xticklabels(), ("left", "right"), strict=True):
            tick_label.set_horizontalalignment(side)
        # gains are on the left, losses on the right: above the right end and below the left one there is space
        where = (0.99, "right", "bottom") if mean > 0 else (0.01, "left", "top")
        at = dict(transform=axes.get_yaxis_transform(), ha=where[1], va=where[2], size=11)
        write(axes, where[0], mean + 0.03 * reach * (1 if mean > 0 else -1), f"mean {signed(mean)}", **at)
        return to_svg(figure, label=label, prefix=prefix)


def _line(score: dict[str, Any]) -> tuple[float | None, float | None]:
    """The ends of a score's line: its interval, or a deviation over seeds to each side."""
    if score.get("std") is not None:
        return score["value"] - score["std"], score["value"] + score["std"]
    return score.get("low"), score.get("high")


def _limits(values: Iterable[float | None]) -> tuple[float, float]:
    """From the smallest to the largest value, and 0 between them."""
    known = [0.0, *(value for value in values if value is not None)]
    return min(known), max(known)
