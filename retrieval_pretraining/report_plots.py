"""The plots of vectors and of training, and what they share with those of `report_score_plots.py`.

A plot is a set of small panels that a phone shows one below the other; a system has one colour and one marker in all
of them. Input is the results dict of `results_file.py`, validated. Every function returns None where there is nothing
to show. Needs matplotlib (extra `eval`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.report_summary import number
from retrieval_pretraining.report_svg import (
    SERIES,
    WIDTH,
    add_axes,
    clean,
    drawing,
    ink,
    legend_lines,
    mark_axis,
    round_numbers,
    to_svg,
    write,
    write_legend,
    write_title,
)
from retrieval_pretraining.results_file import metric_name

_FIT_ON = 20_000  # vectors; more would not turn the directions


@dataclass
class Plot:
    """`panels` are SVG elements; `more` are further ones, folded. `caption` says how to read them."""

    title: str
    caption: str
    panels: list[str] = field(default_factory=list)
    more: list[str] = field(default_factory=list)
    more_title: str = ""
    layout: str = ""


@dataclass(frozen=True)
class Style:
    """Colour (of `PALETTE`) and marker of a system; hollow where its weights are random."""

    color: str
    marker: str
    hollow: bool = False

    def marks(self, size: float = 8, *, hollow: bool | None = None) -> dict[str, Any]:
        """Options for `plot`."""
        is_hollow = self.hollow if hollow is None else hollow
        return dict(
            marker=self.marker,
            markersize=size,
            markerfacecolor=ink("ground") if is_hollow else ink(self.color),
            markeredgecolor=ink(self.color),
            markeredgewidth=1.8,
            linestyle="none",
        )


def styles(results: dict[str, Any]) -> dict[str, Style]:
    """Of each system: grey squares for BM25, hollow grey circles for random weights, diamonds for hybrids,
    triangles for chunks, on their head for lexical ones, thick crosses for expanded queries."""
    found, used = {}, 0
    for system in results["systems"]:
        if system["kind"] == "bm25":
            found[system["name"]] = Style("reference", "s")
        elif system.get("random_weights"):
            found[system["name"]] = Style("reference", "o", hollow=True)
        else:
            marker = {"hybrid": "D", "chunks": "^", "lexical": "v", "expansion": "P"}.get(system["kind"], "o")
            found[system["name"]] = Style(f"series-{used % SERIES + 1}", marker)
            used += 1
    return found


def panel_id(results: dict[str, Any], kind: str, *parts: str) -> str:
    """An id that no other panel has: names become their place among those of the results."""
    places = {d["name"]: f"d{i}" for i, d in enumerate(results["datasets"])}
    places |= {s["name"]: f"s{i}" for i, s in enumerate(results["systems"])}
    return "-".join([kind, *("".join(c if c.isalnum() else "_" for c in places.get(part, part)) for part in parts)])


def similarity_plot(results: dict[str, Any], dataset: str) -> Plot | None:
    """Histograms of the cosines of related and of random pairs, one panel a system."""
    own = [r for r in results["details"]["similarities"] if r["dataset"] == dataset]
    kept = []
    for record in own:
        related, random = (np.array([c for c in record[key] if c is not None], float) for key in ("related", "random"))
        if len(related) and len(random):
            kept.append((record["system"], related, random))
    if not kept:
        return None
    health = {h["system"]: h for h in results["health"] if h["dataset"] == dataset}
    plot = Plot(
        "Similarities",
        "Cosines of queries with a relevant document and with a random one; dashed are their means. How far the two "
        "are apart for their width matters, not where they lie: each axis has a range of its own, and a ranking stays "
        "the same if all cosines rise. AUC: how often the relevant one is higher.",
        layout="labelled",
    )
    colors = styles(results)
    for system, related, random in kept:
        prefix = panel_id(results, "similarity", dataset, system)
        auc = health.get(system, {}).get("auc")
        color = colors[system].color.replace("reference", "series-1")  # random pairs are grey
        plot.panels.append(_histograms(system, color, related, random, auc, prefix=prefix))
    return plot


def map_plot(results: dict[str, Any], dataset: str) -> Plot | None:
    """Vectors in two dimensions as the caller projected them; a point shows its text on hover."""
    own = [record for record in results["details"]["map"] if record["dataset"] == dataset and record["points"]]
    if not own:
        return None
    plot = Plot(
        "Map of the vectors",
        "The two directions in which the vectors differ most (the first two principal components): "
        "near points are often, not always, near vectors. Hover over a point for its text.",
        layout="map",
    )
    for record in own:
        prefix = panel_id(results, "map", dataset, record["system"])
        plot.panels.append(_points(record, prefix=prefix))
    return plot


def training_plot(results: dict[str, Any]) -> Plot | None:
    """Losses, one panel each, over the steps, and retrieval metrics where they were measured during training."""
    curves: dict[str, list[tuple[str, list, list]]] = {}
    for run in results["training"]:
        of_run: dict[str, tuple[list, list]] = {}
        for entry in run["log_history"]:
            step = entry.get("step")
            for key, value in entry.items():
                held_out = key.startswith("eval_")
                name = key.removeprefix("eval_")
                is_loss = (name == "loss" or name.endswith("_loss")) and not key.startswith("train_")
                if step is not None and isinstance(value, (int, float)) and (is_loss or name.startswith("retrieval_")):
                    of_run.setdefault(name, ([], []))[held_out].append((step, value))
        for name, (training, held_out) in of_run.items():
            if len(training) > 1 or len(held_out) > 1:
                curves.setdefault(name, []).append((run["system"], sorted(training), sorted(held_out)))
    # where one part is all there is, the sum says it twice
    for system in {run[0] for run in curves.get("loss", [])}:
        parts = [name for name, runs in curves.items() if name.endswith("_loss") and any(r[0] == system for r in runs)]
        if len(parts) == 1:
            curves["loss"] = [run for run in curves["loss"] if run[0] != system]
    curves = {name: runs for name, runs in curves.items() if runs}
    if not curves:
        return None
    caption = "Step by step as it was logged, not smoothed. Each axis has its own range and need not start at 0."
    if any(held_out for runs in curves.values() for _, _, held_out in runs):
        caption += " Circles are measured on held-out text or queries, lines on the training text."
    trained = dict.fromkeys(run[0] for runs in curves.values() for run in runs)
    plot = Plot("Losses by part" + (f" of {clean(*trained)}" if len(trained) == 1 else ""), caption)
    colors = styles(results)
    for name in sorted(curves, key=lambda name: (name.startswith("retrieval_"), name != "loss", name)):
        prefix = panel_id(results, "training", name)
        plot.panels.append(_curves(name, curves[name], colors, named=len(trained) > 1, prefix=prefix))
    return plot


def project_2d(vectors: np.ndarray, *, seed: int) -> np.ndarray:
    """Vectors [n, H] -> points [n, 2], float64: their two principal components.

    Singular vectors of the centred matrix, each turned so that its largest entry is positive: the same each time. Of
    more than 20,000 vectors, a sample drawn by `seed` decides on the directions. `InputError` if the vectors are not
    finite or not a matrix.
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise InputError(f"vectors have the shape {vectors.shape} or values that are not finite; give [n, H].")
    if len(vectors) == 0 or vectors.shape[1] == 0:
        return np.zeros((len(vectors), 2))
    fit = vectors
    if len(vectors) > _FIT_ON:
        fit = vectors[np.random.default_rng(seed).choice(len(vectors), _FIT_ON, replace=False)]
    centre = fit.mean(axis=0)
    directions = np.linalg.svd(fit - centre, full_matrices=False)[2][:2]
    directions *= np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)])[:, None]
    points = (vectors - centre) @ directions.T
    return np.pad(points, ((0, 0), (0, 2 - points.shape[1])))


def _histograms(system: str, color: str, related, random, auc: float | None, *, prefix: str) -> str:
    low, high = min(related.min(), random.min()), max(related.max(), random.max())
    pad = 0.03 * (high - low) or 0.001
    bins = np.linspace(low - pad, high + pad, 41)
    reach = bins[-1] - bins[0]
    digits = int(np.clip(1 - np.floor(np.log10(reach)), 2, 6))  # enough to tell the means apart
    note = f"AUC {number(auc)}" if auc is not None else ""
    label = (
        f"{system}: mean cosine of related pairs {number(related.mean())}, of random pairs {number(random.mean())}"
        + (f", {note}" if note else "")
    )
    with drawing(height=190) as figure:
        write_title(figure, clean(system, 40), note)
        axes = add_axes(figure, 16, 16, 40, 22)
        axes.set_yticks([])
        axes.set_xlim(bins[0], bins[-1])
        top = 0.0
        for values, shade in ((random, "muted"), (related, color)):
            heights = np.histogram(values, bins)[0] / len(values)
            top = max(top, heights.max())
            axes.stairs(heights, bins, fill=True, color=ink(shade), alpha=0.28, linewidth=0)
            axes.stairs(np.where(heights > 0, heights, np.nan), bins, color=ink(shade), linewidth=1.8)
        axes.set_ylim(0, 1.32 * top)
        means = sorted([(random.mean(), "random", "muted", 1.26), (related.mean(), "related", color, 1.12)])
        for (mean, name, shade, height), side in zip(means, (-1, 1), strict=True):
            axes.axvline(mean, ymax=0.9, color=ink(shade), linewidth=1.2, linestyle=(0, (4, 3)))
            if (mean - bins[0] if side < 0 else bins[-1] - mean) < 0.28 * reach:  # no room on the outer side
                side = -side
            text = f"{name} {mean:.{digits}f}".replace("-", "−")
            at = dict(ha="right" if side < 0 else "left", va="center")
            write(axes, mean + 0.012 * side * reach, height * top, text, shade, **at)
        axes.axhline(0, color=ink("muted"), linewidth=1.2, zorder=4)
        ticks = round_numbers(bins[0], bins[-1])
        mark_axis(axes.xaxis, ticks)
        return to_svg(figure, label=label, prefix=prefix)


def _points(record: dict[str, Any], *, prefix: str) -> str:
    points, groups = np.array(record["points"], float), np.array(record["groups"], int)
    finite = np.isfinite(points).all(axis=1)
    names = record.get("group_names") or []
    sizes = {group: int((groups == group).sum()) for group in sorted(set(groups[finite].tolist()))}
    colored = sorted(sorted(sizes, key=sizes.get, reverse=True)[:SERIES])
    named = {group: names[group] if 0 <= group < len(names) else None for group in sizes}
    label = f"{record['system']}: {len(points):,} texts of {record['dataset']} as points" + (
        f", in {len(sizes)} groups: {', '.join(clean(n) for n in named.values() if n)}" if any(named.values()) else ""
    )
    titles = {}
    shades = {group: f"series-{colored.index(group) + 1}" if group in colored else "muted" for group in sizes}
    legend = [(clean(name, 30), shades[group]) for group, name in named.items() if name]
    lines = len(legend_lines(legend))
    with drawing(height=WIDTH + 26 + 18 * lines) as figure:
        write_title(figure, clean(record["system"], 40))
        write_legend(figure, legend)
        axes = add_axes(figure, 0, 0, 26 + 18 * lines, 0)
        axes.set_facecolor(ink("raised"))
        axes.margins(0.06)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_aspect("equal", adjustable="datalim")
        for group in sorted(sizes, key=lambda group: -sizes[group]):  # the small ones on top
            rows = np.flatnonzero((groups == group) & finite)
            gid = f"group{group}"
            style = dict(color=ink(shades[group]), marker="o", markersize=6, markeredgewidth=0, linestyle="none")
            axes.plot(points[rows, 0], points[rows, 1], gid=gid, clip_on=False, alpha=0.65, **style)
            named_text = f"{named[group]}: " if named[group] else ""
            titles[gid] = [named_text + clean(record["texts"][row], 100) for row in rows]
        return to_svg(figure, label=label, prefix=prefix, titles=titles)


def _curves(name: str, runs: Sequence[tuple], colors: dict[str, Style], *, named: bool, prefix: str) -> str:
    title = metric_name(name.removeprefix("retrieval_")) if name.startswith("retrieval_") else name
    title = "loss (weighted sum)" if name == "loss" else title
    label = f"{title} over the training steps: " + "; ".join(
        f"{system} from {series[0][1]:.3g} to {series[-1][1]:.3g}"
        for system, training, held_out in runs
        for series in (training or held_out,)
    )
    names = {system: clean(system, 14) for system, _, _ in runs}
    margin = 12 + 7.2 * max(map(len, names.values())) if named else 10
    with drawing(height=max(210, 18 * len(runs) + 64 if named else 0)) as figure:
        write_title(figure, title)
        axes = add_axes(figure, 40, margin, 28, 36)
        ends = []
        for system, training, held_out in runs:
            style = colors[system]
            if training:
                axes.plot(*zip(*training, strict=True), color=ink(style.color), linewidth=2)
            if held_out:
                line = dict(linestyle="none" if training else "-", linewidth=1.6, color=ink(style.color))
                marks = style.marks(6, hollow=True) | line | {"marker": "o"}
                axes.plot(*zip(*held_out, strict=True), **marks)
            ends.append([(training or held_out)[-1][1], system])
        axes.margins(x=0.03, y=0.08)
        ticks = round_numbers(*axes.get_ylim())
        mark_axis(axes.yaxis, ticks)
        for tick in ticks:
            axes.axhline(tick, color=ink("rule"), linewidth=0.8, zorder=0)
        last = max(step for _, *both in runs for series in both for step, _ in series)
        ticks = [tick for tick in round_numbers(0, last) if tick == round(tick)]
        axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
        axes.set_xlabel("steps", color=ink("muted"), fontsize=11, labelpad=2)
        if named:
            low, high = axes.get_ylim()
            gap = 17 / (72 * figure.get_size_inches()[1] - 64) * (high - low)
            across = dict(transform=axes.get_yaxis_transform(), va="center")
            places = _apart([end for end, _ in ends], gap, low, high)
            for place, (_, system) in zip(places, ends, strict=True):
                write(axes, 1.02, place, names[system], colors[system].color, **across)
        return to_svg(figure, label=label, prefix=prefix)


def _apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The places in their order, none nearer than `gap` to another, all between `low` and `high` if there is room."""
    order = np.argsort(places, kind="stable")
    moved = np.array(places, float)[order]
    for _ in range(100):
        for i in range(1, len(moved)):
            lacking = max(0.0, gap - (moved[i] - moved[i - 1]))
            moved[i - 1] -= lacking / 2
            moved[i] += lacking / 2
    moved += max(0.0, low - moved[0])
    moved -= max(0.0, moved[-1] - high)
    return moved[np.argsort(order)].tolist()
