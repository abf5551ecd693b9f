"""The report of an evaluation: results.json, results.md and report.html, a page that needs nothing but itself.

    write_report(results, "report")

The page is one file with its styles and plots inside: no script, no font, no request. It is made for a phone as for a
desk, light and dark, and for paper. Texts come from data and models and stay texts: the template escapes all of them.
"""

import os
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from retrieval_pretraining import report_plots, report_score_plots
from retrieval_pretraining.report_summary import joined, number, signed, summarise
from retrieval_pretraining.report_svg import PALETTE, clean, printable
from retrieval_pretraining.report_tables import (
    command_lines,
    datasets_table,
    describe_dataset,
    differences_table,
    health_table,
    markdown_report,
    scores_table,
    systems_table,
)
from retrieval_pretraining.results_file import metric_name, metric_order, validate_results, write_results, write_whole

_QUERY_CHARACTERS, _DOCUMENT_CHARACTERS = 500, 320


def write_report(results: dict[str, Any], output_dir: str | os.PathLike) -> dict[str, Path]:
    """Write `results.json`, `results.md` and `report.html` (by these names in the dict that is returned).

    The numbers are written first, so they are there even if the page cannot be made. `InputError` if the results do
    not fit the schema of `results_file.py`, a file cannot be written, or matplotlib (extra `eval`) is missing.
    """
    output = Path(output_dir)
    results = validate_results(results)
    paths = {"results.json": write_results(results, output / "results.json")}
    for name, make in (("results.md", markdown_report), ("report.html", report_html)):
        paths[name] = write_whole(output / name, make(results).encode("utf-8", errors="replace"))
    return paths


def report_html(results: dict[str, Any]) -> str:
    """The page as text; the same results give the same text."""
    results = validate_results(results)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    summary = summarise(results)
    datasets = [_dataset(results, dataset, number) for number, dataset in enumerate(results["datasets"])]
    datasets = [dataset for dataset in datasets if dataset["scores"].rows]
    health = health_table(results)
    vectors = _vectors(results)
    training = report_plots.training_plot(results)
    sections = [(dataset["anchor"], dataset["name"]) for dataset in datasets]
    sections += [("vectors", "Vectors")] if vectors or health.rows else []
    sections += [("training", "Training")] if training else []
    sections += [("systems", "Systems and data"), ("repeat", "To repeat it")]
    facts = {"created": results.get("created"), "seed": results.get("seed"), **results["environment"]}
    return environment.get_template("report_page.html").render(
        title="Evaluation",
        subtitle=_subtitle(results),
        palette=PALETTE,
        summary=summary,
        sections=sections,
        datasets=datasets,
        health=health,
        vectors=vectors,
        has_vectors=bool(vectors or health.rows),
        training=training,
        systems=systems_table(results),
        data=datasets_table(results),
        command=results.get("command") and command_lines(results["command"]),
        facts=[(name, value) for name, value in facts.items() if value is not None],
    )


def _subtitle(results: dict[str, Any]) -> str:
    systems = [system["name"] for system in results["systems"]]
    datasets = [dataset["name"] for dataset in results["datasets"]]
    if not systems or not datasets:
        return results.get("created") or ""
    shown = joined(systems) if len(systems) <= 6 else f"{', '.join(systems[:5])} and {len(systems) - 5} more"
    return f"{shown} on {joined(datasets)}. {(results.get('created') or '')[:10]}"


def _dataset(results: dict[str, Any], dataset: dict[str, Any], place: int) -> dict[str, Any]:
    name = dataset["name"]
    compared = sorted({c["metric"] for c in results["comparisons"] if c["dataset"] == name}, key=metric_order)
    return {
        "anchor": f"dataset-{place}",
        "name": name,
        "description": describe_dataset(dataset),
        "scores": scores_table(results, name),
        "differences": differences_table(results, name, metrics=compared),
        "metric_plot": report_score_plots.metric_plot(results, name),
        "difference_plot": report_score_plots.difference_plot(results, name),
        "query_plot": report_score_plots.query_plot(results, name),
        "queries": _queries(results, name),
        "generated": _generated(results, name),
    }


def _generated(results: dict[str, Any], dataset: str) -> list[dict[str, Any]]:
    """What models have written, by system: the text that was given and what was made of it."""
    titles = {"query": "Expanded queries", "title": "Titles"}
    groups: dict[tuple[str, str], list[dict]] = {}
    for record in results["details"]["generated"]:
        if record["dataset"] == dataset:
            groups.setdefault((record["system"], record["what"]), []).append(record)
    return [
        {
            "system": system,
            "what": titles.get(what, what),
            "rows": [(clean(r["given"], _QUERY_CHARACTERS), clean(r["written"], _QUERY_CHARACTERS)) for r in records],
        }
        for (system, what), records in groups.items()
    ]


def _queries(results: dict[str, Any], dataset: str) -> list[dict[str, Any]]:
    """The largest gains and losses, by system and baseline."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for record in results["details"]["queries"]:
        if record["dataset"] == dataset and None not in (record["value"], record["baseline_value"]):
            groups.setdefault((record["system"], record["baseline"]), []).append(record)
    shown = []
    for (system, baseline), records in groups.items():
        records = sorted(records, key=lambda r: r["baseline_value"] - r["value"])
        gains = [_query(record) for record in records if record["value"] > record["baseline_value"]]
        losses = [_query(record) for record in reversed(records) if record["value"] < record["baseline_value"]]
        if gains or losses:
            parts = [(f"{system} is better", gains), (f"{baseline} is better", losses)]
            count = len(gains) + len(losses)
            shown.append({"title": f"{system} and {baseline}", "count": count, "parts": parts})
    return shown


def _query(record: dict[str, Any]) -> dict[str, Any]:
    def documents(found: list[dict]) -> list[dict]:
        return [{"text": clean(d["text"], _DOCUMENT_CHARACTERS), "relevant": bool(d.get("relevant"))} for d in found]

    return {
        "query": clean(record["query"], _QUERY_CHARACTERS),
        "metric": metric_name(record["metric"]),
        "change": signed(record["value"] - record["baseline_value"]),
        "system": record["system"],
        "value": number(record["value"]),
        "found": documents(record["found"]),
        "baseline": record["baseline"],
        "baseline_value": number(record["baseline_value"]),
        "baseline_found": documents(record["baseline_found"]),
    }


def _vectors(results: dict[str, Any]) -> list[tuple[str, Any]]:
    plots = []
    for dataset in results["datasets"]:
        for draw in (report_plots.similarity_plot, report_plots.map_plot):
            plot = draw(results, dataset["name"])
            if plot is not None:
                plots.append((f"{plot.title}: {dataset['name']}", plot))
    return plots
