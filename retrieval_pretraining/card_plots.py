"""The two images of a model card: the losses over the steps, and search before and after, beside BM25.

Needs matplotlib (extra `eval`); without it a card has no images.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

from .report_svg import PALETTE, round_numbers
from .results_file import metric_name

FOLDER = "images"
_SYSTEMS = {"bm25": ("BM25", "reference"), "before": ("before", "series-1"), "after": ("after", "series-2")}


def write_plots(folder: str | Path, results: dict[str, Any]) -> dict[str, str]:
    """Writes `images/losses.png` and `images/retrieval.png`; name -> what it shows, of those that were written."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return {}
    written = {}
    for name, draw in (("losses", _losses), ("retrieval", _retrieval)):
        path = Path(folder) / FOLDER / f"{name}.png"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an image is not worth a line on the screen
            drawn = draw(Figure, results)
            if drawn is None:
                path.unlink(missing_ok=True)  # of an earlier card
                continue
            figure, written[name] = drawn
            path.parent.mkdir(exist_ok=True)
            # The ground is white in dark mode too. No version of a library, so that the same run is the same file.
            figure.savefig(path, format="png", dpi=120, facecolor="white", metadata={"Software": None})
    return written


def _losses(figure_class, results: dict[str, Any]):
    """One panel a loss: a line for the training text, circles for the held-out one."""
    curves: dict[str, tuple[list, list]] = {}
    for row in results.get("log_history") or []:
        for key, value in row.items():
            name = key.removeprefix("eval_")
            if name.endswith("_loss") and not name.startswith("train_") and "step" in row and _is_number(value):
                curves.setdefault(name, ([], []))[key.startswith("eval_")].append((row["step"], value))
    curves = {name: points for name, points in curves.items() if len(points[0]) > 1 or len(points[1]) > 1}
    if not curves:
        return None
    figure = figure_class(figsize=(3.6 * len(curves), 2.8), layout="constrained")
    for panel, (name, (training, held_out)) in zip(_panels(figure, len(curves)), curves.items(), strict=True):
        if training:
            panel.plot(*zip(*training), color=_color("series-1"), linewidth=1.8, label="training text")
        if held_out:
            panel.plot(*zip(*held_out), "o--", color=_color("series-2"), linewidth=1, label="held-out text")
            panel.legend(frameon=False, fontsize=9, labelcolor=_color("text"))
        values = [value for _, value in training + held_out]
        panel.set_yticks(round_numbers(min(values), max(values)))
        panel.set_title(name, loc="left", fontsize=11, fontweight="bold", color=_color("text"))
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_xlabel("step", fontsize=10, color=_color("muted"))
        panel.grid(axis="y", color=_color("rule"))
    return figure, "Losses over the steps"


def _retrieval(figure_class, results: dict[str, Any]):
    """One panel a metric, one bar a system, from 0 to 1; nothing where there is only one system."""
    rows = {"bm25": results.get("bm25"), **(results.get("retrieval") or {})}
    rows = {when: row for when, row in rows.items() if row and when in _SYSTEMS}
    metrics = [
        name for name in next(iter(rows.values()), {}) if all(_is_number(row.get(name)) for row in rows.values())
    ]
    if len(rows) < 2 or not metrics:
        return None
    figure = figure_class(figsize=(3.6 * len(metrics), 0.8 + 0.42 * len(rows)), layout="constrained")
    names, colors = zip(*(_SYSTEMS[when] for when in reversed(rows)))
    for panel, metric in zip(_panels(figure, len(metrics)), metrics, strict=True):
        values = [rows[when][metric] for when in reversed(rows)]
        bars = panel.barh(names, values, color=[_color(color) for color in colors], height=0.65)
        panel.bar_label(bars, [f"{value:.3f}" for value in values], padding=4, fontsize=10, color=_color("text"))
        panel.set_xlim(0, 1.18)
        panel.set_xticks([0, 0.5, 1])
        panel.set_title(metric_name(metric), loc="left", fontsize=11, fontweight="bold", color=_color("text"))
    title = "Search before and after" if "before" in rows else "Search"
    return figure, f"{title}, beside BM25" if "bm25" in rows else title


def _panels(figure, count: int) -> list:
    panels = [figure.add_subplot(1, count, number + 1) for number in range(count)]
    for panel in panels:
        panel.tick_params(length=0, labelsize=10, labelcolor=_color("text"))
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
        panel.spines["bottom"].set_color(_color("rule"))
    return panels


def _color(name: str) -> str:
    return PALETTE[name][0]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
