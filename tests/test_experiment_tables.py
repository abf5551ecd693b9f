"""What a reader gets of an experiment: the Markdown to paste, and the plots."""

import re

import numpy as np
import pytest

from retrieval_pretraining.experiment_plots import curve_axis, write_experiment_plots
from retrieval_pretraining.experiment_tables import cost_table, experiment_markdown, scores_table, write_experiment
from retrieval_pretraining.results_file import validate_results

pytest.importorskip("matplotlib")


def results(**changes):
    """Two arms at two sizes beside BM25, on two test sets; "deep" is better, and at one size by chance."""
    systems = [{"name": "BM25", "kind": "bm25"}]
    scores, comparisons = [], []
    for pairs in (0, 300):
        for name, gain in (("flat", 0.0), ("deep", 0.1 if pairs else 0.01)):
            label = f"{name}, pairs {pairs}"
            cost = {"runs": 3, "tokens": 1_234_567 if name == "deep" else 0, "seconds": 71.6, "parameters": 1_453_824}
            systems.append({"name": label, "kind": "dense", "values": {"pairs": pairs}, **cost})
            for place, dataset in enumerate(("scifact", "cranfield", "average of retrieval")):
                value = 0.2 + pairs / 1000 + gain + place / 20
                row = {"dataset": dataset, "system": label, "metric": "ndcg@10", "value": value, "seed_std": 0.0123}
                scores.append({**row, "low": value - 0.05, "high": value + 0.05, "runs": 3, "queries": 300})
                if name == "deep":
                    p = 0.001 if pairs else 0.3
                    difference = {"difference": gain, "low": gain - 0.02, "high": gain + 0.02, "p_value": p}
                    counts = {"p_value_holm": p, "wins": 120, "losses": 40, "ties": 140}
                    pair = {
                        "dataset": dataset,
                        "metric": "ndcg@10",
                        "system": label,
                        "baseline": f"flat, pairs {pairs}",
                    }
                    comparisons.append({**pair, **difference, **counts})
    for dataset in ("scifact", "cranfield", "average of retrieval"):
        row = {"dataset": dataset, "system": "BM25", "metric": "ndcg@10", "value": 0.676}
        scores.append({**row, "low": 0.63, "high": 0.72, "seed_std": None})
    kinds = [("scifact", {}), ("cranfield", {}), ("average of retrieval", {"of": ["scifact", "cranfield"]})]
    about = {"name": "mine", "title": "Deep against flat", "question": "Is it deep?", "seeds": [0, 1, 2]}
    return validate_results(
        {
            "format": 1,
            "created": "2026-11-30T10:00:00+00:00",
            "command": "python run_experiments.py mine.yaml --data_dir data",
            "statistics": {"test": "a test", "interval": "a bootstrap", "level": 0.05},
            "datasets": [{"name": name, "kind": "retrieval", **more} for name, more in kinds],
            "systems": systems,
            "scores": scores,
            "comparisons": comparisons,
            "experiment": {**about, "control": "flat", "plot": None, "missing": [], **changes},
        }
    )


def test_the_table_says_what_was_measured_how_and_with_which_command():
    text = experiment_markdown(results())
    assert text.startswith("## 2026-11-30: Deep against flat\n\nIs it deep?\n\n| arm ")
    assert "| deep, pairs 300 |    3 | 1,234,567 |                  72 |  1,453,824 |" in text
    rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    assert ["BM25", *["**.676 (.630–.720)**"] * 2, ".676 (.630–.720)"] in rows
    assert ["deep, pairs 0", ".210 (.160–.260)", ".260 (.210–.310)", ".310 (.260–.360)"] in rows
    assert ["deep, pairs 300", "▲ .600 (.550–.650)", "▲ .650 (.600–.700)", "▲ **.700 (.650–.750)**"] in rows
    difference = ["deep, pairs 300", "flat, pairs 300", "average of retrieval", "nDCG@10", "▲ +.100"]
    assert [*difference, "+.080 to +.120", ".001", "120", "40"] in rows
    assert not any(row[2:3] == ["scifact"] for row in rows)  # differences: on the averages, where there are any
    assert (
        "Seeds 0, 1 and 2. In brackets the 95 % interval: a bootstrap. Deviation over the seeds: at most .012." in text
    )
    assert "p is a test" in text
    assert text.endswith("```bash\npython run_experiments.py mine.yaml \\\n    --data_dir data\n```\n")


def test_one_seed_and_missing_runs_are_confessed():
    text = experiment_markdown(results(seeds=[3], missing=["deep, seed 3"]))
    assert "Seed 3." in text and "says nothing about the next training" in text
    assert "Missing: deep, seed 3.\n" in text


def test_tables_have_a_row_for_all_that_was_measured():
    found = results()
    assert [row[0].text for row in cost_table(found).rows] == [s["name"] for s in found["systems"][1:]]
    columns = {name: (name, "ndcg@10") for name in ("scifact", "cranfield", "average of retrieval")}
    table = scores_table(found, columns)
    assert table.columns == ["arm", *columns]
    assert [row[0].text for row in table.rows] == [s["name"] for s in found["systems"]]
    found["datasets"][1]["name"] = "scifact (reranked BM25 100)"
    for records in (found["scores"], found["comparisons"]):
        for record in records:
            record["dataset"] = record["dataset"].replace("cranfield", "scifact (reranked BM25 100)")
    assert re.search(r"scifact, reranked \| +average of retrieval \|", experiment_markdown(found))


def test_classification_is_a_table_by_the_number_of_labels():
    found = results()
    found["datasets"].append({"name": "topics", "kind": "classification"})
    for place, metric in enumerate(("accuracy", "accuracy@100", "accuracy@10", "zero_shot_accuracy", "macro_f1@10")):
        row = {"dataset": "topics", "system": "deep, pairs 0", "metric": metric, "value": place / 10}
        found["scores"].append(row)
    text = experiment_markdown(validate_results(found))
    table = text[text.index("topics:") :].splitlines()[2:5]
    assert [cell.strip() for cell in table[0].split("|")[2:-1]] == [
        *("zero-shot accuracy", "accuracy, 10 a class", "accuracy, 100 a class", "accuracy"),
    ]
    assert [cell.strip(" *") for cell in table[2].split("|")[1:-1]] == [
        "deep, pairs 0",
        ".300",
        ".200",
        ".100",
        ".000",
    ]


def test_a_curve_is_drawn_where_arms_differ_in_a_number(tmp_path):
    found = results()
    assert curve_axis(found) == "pairs"
    written = write_experiment_plots(tmp_path, found)
    assert [path.name for path in written] == ["ndcg-at-10.png", "ndcg-at-10-over-pairs.png"]
    for path in written:
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000
    assert curve_axis(results(plot="seconds")) == "seconds"
    assert write_experiment_plots(tmp_path, results(plot="seconds"))[1].name == "ndcg-at-10-over-seconds.png"
    for system in found["systems"]:
        system.pop("values", None)
    assert curve_axis(found) is None and len(write_experiment_plots(tmp_path, found)) == 1


class Recorder:
    """A Figure that keeps what it was told to draw."""

    figures: list = []

    @classmethod
    def recording(cls, monkeypatch):
        from matplotlib.figure import Figure

        from retrieval_pretraining import experiment_plots

        cls.figures = []

        class Kept(Figure):
            def __init__(self, *args, **options):
                super().__init__(*args, **options)
                cls.figures.append(self)

        module = type("module", (), {"Figure": Kept})
        monkeypatch.setattr(experiment_plots, "import_extra", lambda name: module)
        return cls.figures


def test_no_title_or_legend_is_cut_off_at_the_edge(tmp_path):
    from matplotlib.image import imread

    found = results(plot="seconds")
    for path in write_experiment_plots(tmp_path, found):
        image = imread(path)[..., :3]
        edges = np.concatenate([image[:4].reshape(-1, 3), image[-4:].reshape(-1, 3)])
        edges = np.concatenate([edges, image[:, :4].reshape(-1, 3), image[:, -4:].reshape(-1, 3)])
        assert (edges == 1.0).all(), path.name


def test_the_plots_show_the_numbers(tmp_path, monkeypatch):
    figures = Recorder.recording(monkeypatch)
    write_experiment_plots(tmp_path, results())
    intervals, curves = figures
    panel = intervals.axes[0]
    assert panel.get_title(loc="left") == "scifact"
    assert panel.get_yticklabels()[0].get_text() == "BM25"
    marks = [line for line in panel.lines if len(line.get_xdata()) == 1]
    assert [line.get_xdata()[0] for line in marks] == pytest.approx([0.676, 0.2, 0.21, 0.5, 0.6])
    hollow = [line.get_markerfacecolor() == "white" for line in marks]
    assert hollow == [False, False, True, False, False]  # of those that are compared, the one by chance
    lines = {tuple(line.get_ydata()): line for line in curves.axes[0].lines if line.get_marker() == "o"}
    assert sorted(lines) == [pytest.approx((0.2, 0.5)), pytest.approx((0.21, 0.6))]
    assert [label.get_text() for label in curves.axes[0].get_xticklabels()] == ["0", "300"]
    assert [text.get_text() for text in curves.legends[0].get_texts()] == ["BM25", "flat", "deep"]


def test_a_curve_leaves_out_arms_that_differ_in_something_else(tmp_path, monkeypatch):
    figures = Recorder.recording(monkeypatch)
    found = results(plot="pairs")
    found["systems"][2]["values"] = {"rate": 0.1}
    write_experiment_plots(tmp_path, found)
    shown = [text.get_text() for text in figures[1].legends[0].get_texts()]
    assert shown == ["BM25", "flat", "deep"]
    lines = [line for line in figures[1].axes[0].lines if line.get_marker() == "o"]
    assert sorted(len(line.get_xdata()) for line in lines) == [1, 2]


def test_all_that_is_written(tmp_path):
    table = write_experiment(results(), tmp_path)
    assert table == tmp_path / "table.md"
    assert {path.name for path in tmp_path.iterdir()} == {
        *("table.md", "results.json", "results.md", "report.html", "plots"),
    }
    (tmp_path / "plots/old.png").write_bytes(b"")
    write_experiment(results(), tmp_path)
    assert not (tmp_path / "plots/old.png").exists()
