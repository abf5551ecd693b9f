"""The plots of vectors and training: what they show, and what they leave out."""

import re

import numpy as np
import pytest
from report_results import bm25_only, full, label_of, texts_of, title_of

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.report_plots import map_plot, project_2d, similarity_plot, styles, training_plot
from retrieval_pretraining.results_file import validate_results


def test_nothing_to_show_is_no_plot():
    results = validate_results(bm25_only())
    assert similarity_plot(results, "scifact") is map_plot(results, "scifact") is training_plot(results) is None


def test_systems_are_told_apart_by_colour_and_marker():
    results = full()
    results["systems"].append({"name": "after, chunks", "kind": "chunks", "of": ["after"]})
    found = styles(validate_results(results))
    assert [(s.color, s.marker, s.hollow) for s in found.values()] == [
        ("reference", "s", False),
        ("reference", "o", True),
        ("series-1", "o", False),
        ("series-2", "o", False),
        ("series-3", "D", False),
        ("series-4", "^", False),
    ]


def test_similarities_state_their_means_and_the_auc():
    plot = similarity_plot(validate_results(full()), "scifact")
    assert [title_of(panel) for panel in plot.panels] == ["before", "after"]
    assert ["AUC 0.800" in texts_of(panel) for panel in plot.panels] == [False, True]
    record = full()["details"]["similarities"][1]
    means = [f"{kind} {record[kind].mean():.2f}" for kind in ("random", "related")]
    assert set(means) <= set(texts_of(plot.panels[1]))
    assert f"related pairs {record['related'].mean():.3f}" in label_of(plot.panels[1])


def test_equal_cosines_and_near_ones_are_drawn_too():
    results = full()
    results["details"]["similarities"] = [
        {"dataset": "scifact", "system": "before", "related": [1.0] * 5, "random": [1.0] * 5},
        {"dataset": "scifact", "system": "after", "related": [0.99996] * 5, "random": [0.99992, np.nan]},
    ]
    panels = similarity_plot(validate_results(results), "scifact").panels
    assert any(text.startswith("related 1.000") for text in texts_of(panels[0]))
    assert {"random 0.99992", "related 0.99996"} <= {text[:15].rstrip("0") for text in texts_of(panels[1])}


def test_points_of_a_map_have_their_texts_and_groups_their_colours():
    plot = map_plot(validate_results(full(points=9)), "scifact")
    svg = plot.panels[0]
    assert len(re.findall("<circle", svg)) == 9
    assert "<title>queries: text 0 &lt;b&gt; 文本</title>" in svg and "<title>documents: text 1 " in svg
    assert {"● queries", "● documents"} <= set(texts_of(svg))
    groups = re.findall(r'<g style="fill: var\(--(series-\d)\)[^>]*><g>(.*?)</g>', svg)
    assert [(color, circles.count("<circle")) for color, circles in groups] == [("series-1", 5), ("series-2", 4)]


def test_a_map_takes_points_that_are_not_finite_groups_without_names_and_many_groups():
    results = full(points=40)
    record = results["details"]["map"][0]
    record["points"][3] = np.nan
    record["groups"] = np.arange(40) % 11
    del record["group_names"]
    svg = map_plot(validate_results(results), "scifact").panels[0]
    assert len(re.findall("<circle", svg)) == 39 and "<title>text 0 " in svg
    assert {f"series-{number}" for number in range(1, 9)} <= set(
        re.findall(r"series-\d", svg)
    ) and "var(--muted)" in svg


def test_losses_are_shown_by_part_with_what_was_measured_on_held_out_text():
    plot = training_plot(validate_results(full()))
    assert plot.title == "Losses by part of after" and "held-out" in plot.caption
    assert [title_of(panel) for panel in plot.panels] == [
        *("loss (weighted sum)", "contrastive_loss", "lm_loss", "nDCG@10")
    ]
    assert label_of(plot.panels[2]) == "lm_loss over the training steps: after from 9.5 to 8.5"
    assert label_of(plot.panels[3]) == "nDCG@10 over the training steps: after from 0.1 to 0.3"


def test_runs_share_a_panel_and_a_sum_of_one_part_is_left_out():
    results = full()
    history = [{"step": step, "loss": 5.0, "lm_loss": 5.0} for step in (30, 10, 20)]
    results["training"].append({"system": "before", "log_history": [*history, {"step": 40, "loss": float("nan")}]})
    plot = training_plot(validate_results(results))
    assert plot.title == "Losses by part" and len(plot.panels) == 4
    assert "before" not in texts_of(plot.panels[0]) and {"before", "after"} <= set(texts_of(plot.panels[2]))
    assert "before from 5 to 5" in label_of(plot.panels[2])


def test_a_history_without_curves_is_no_plot():
    results = full()
    results["training"] = [
        {"system": "after", "log_history": [{"step": 1, "loss": 2.0}, {"train_loss": 2.0, "step": 1}]}
    ]
    assert training_plot(validate_results(results)) is None


def test_the_projection_is_that_of_principal_components():
    random = np.random.default_rng(0)
    vectors = random.normal(size=(200, 6)) * [5, 1, 3, 0.5, 0.5, 0.5] + 7
    points = project_2d(vectors, seed=0)
    values, directions = np.linalg.eigh(np.cov(vectors.T))
    expected = (vectors - vectors.mean(axis=0)) @ directions[:, ::-1][:, :2]
    np.testing.assert_allclose(np.abs(points), np.abs(expected), atol=1e-8)
    np.testing.assert_allclose(points.var(axis=0, ddof=1), values[::-1][:2])
    for column in (0, 1):  # turned so that the largest entry of a direction is positive
        direction = np.linalg.lstsq(vectors - vectors.mean(axis=0), points[:, column], rcond=None)[0]
        assert direction[np.abs(direction).argmax()] > 0
    np.testing.assert_array_equal(points, project_2d(vectors, seed=1))


def test_of_many_vectors_a_sample_decides_on_the_directions(monkeypatch):
    monkeypatch.setattr("retrieval_pretraining.report_plots._FIT_ON", 50)
    vectors = np.random.default_rng(0).normal(size=(300, 5))
    points = project_2d(vectors, seed=3)
    assert points.shape == (300, 2)
    np.testing.assert_array_equal(points, project_2d(vectors, seed=3))
    assert not np.allclose(points, project_2d(vectors, seed=4))


@pytest.mark.parametrize("shape", [(0, 5), (1, 5), (4, 1), (3, 0)])
def test_few_vectors_or_dimensions_still_have_two_coordinates(shape):
    points = project_2d(np.ones(shape), seed=0)
    assert points.shape == (shape[0], 2) and not points.any()


def test_what_is_no_matrix_of_numbers_is_an_error():
    for vectors in (np.ones(3), np.full((2, 2), np.nan)):
        with pytest.raises(InputError, match="give \\[n, H\\]"):
            project_2d(vectors, seed=0)
