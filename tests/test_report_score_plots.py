"""The plots of scores and differences: honest axes, the names of the systems, what is significant."""

import re

import numpy as np
from report_results import bm25_only, comparison, full, label_of, score, texts_of, title_of

from retrieval_pretraining.report_score_plots import difference_plot, metric_plot, query_plot
from retrieval_pretraining.results_file import validate_results


def test_scores_name_their_system_and_value_on_an_axis_with_zero():
    plot = metric_plot(validate_results(full()), "scifact")
    assert [title_of(panel) for panel in plot.panels] == ["nDCG@10", "recall@100"]
    assert [title_of(panel) for panel in plot.more] == ["MRR@10"]
    shown = texts_of(plot.panels[0])
    assert "0" in shown and {"BM25", "0.676", "after + BM25", "0.694"} <= set(shown)
    assert label_of(plot.panels[0]).startswith("nDCG@10 on scifact: BM25 0.676; random 0.077; before 0.212")
    assert "95 % interval" in plot.caption and "see the differences" in plot.caption


def test_with_one_score_the_caption_promises_nothing_more():
    results = bm25_only()
    results["scores"] = [score("scifact", "BM25", "ndcg@10", 0.676)]
    plot = metric_plot(validate_results(results), "scifact")
    assert plot.caption == "The further right the better; all axes are the same and include 0." and not plot.more
    assert (
        difference_plot(validate_results(results), "scifact")
        is query_plot(validate_results(results), "scifact")
        is None
    )


def test_metrics_of_a_dataset_share_their_axis():
    def ends(svg: str) -> list[float]:
        return [float(x) for x in re.findall(r"<path d=\"M ([\d.]+) [\d.]+ L \1 ", svg)[:5]]

    results = bm25_only()
    results["scores"].append(score("scifact", "BM25", "recall@100", 0.95))
    first, second = metric_plot(validate_results(results), "scifact").panels
    assert ends(first) == ends(second)


def test_a_dataset_without_values_is_no_plot():
    results = bm25_only()
    results["scores"][0]["value"] = float("nan")
    assert metric_plot(validate_results(results), "scifact") is None


def test_negative_scores_and_deviations_over_seeds_have_room():
    results = bm25_only()
    results["scores"] = [
        score("scifact", "BM25", "spearman", -0.2, -0.3, -0.1),
        score("scifact", "BM25", "accuracy@5", 0.4) | {"std": 0.02},
    ]
    plot = metric_plot(validate_results(results), "scifact")
    assert (
        "−0.2" in texts_of(plot.panels[1]) and "−0.200" in texts_of(plot.panels[0]) and "one deviation" in plot.caption
    )


def test_differences_are_filled_where_significant():
    plot = difference_plot(validate_results(full()), "scifact")
    assert [title_of(panel) for panel in plot.panels] == ["minus BM25", "minus before"]
    assert label_of(plot.panels[0]) == (
        "nDCG@10 on scifact minus that of BM25: after −0.334; after + BM25 +0.018, not significant"
    )
    filled = re.findall(r'<use [^>]*style="fill: var\(--([\w-]+)\)', plot.panels[0])
    assert filled == ["series-2", "ground"]


def test_queries_are_counted_and_their_mean_is_stated():
    results = full()
    for record in results["details"]["query_differences"]:
        record["differences"] = [0.5, -0.25, 0, 1.0, float("nan")]
    plot = query_plot(validate_results(results), "scifact")
    assert label_of(plot.panels[0]) == (
        "nDCG@10 of after minus before on scifact: better on 2 queries, worse on 1, equal on 1; mean +0.312"
    )
    assert {"● better on 2", "● worse on 1", "● equal on 1", "mean +0.312"} <= set(texts_of(plot.panels[0]))


def test_areas_of_gains_and_losses_are_true():
    results = full()
    for record in results["details"]["query_differences"]:
        record["differences"] = [1.0] * 2 + [0.0] * 6 + [-0.5] * 2
    svg = query_plot(validate_results(results), "scifact").panels[0]

    def corners(color: str) -> np.ndarray:
        path = re.search(rf'<path d="([^"]*)"[^>]*fill: var\(--{color}\)', svg).group(1)
        return np.array(re.findall(r"([\d.]+) ([\d.]+)", path), float)

    gain, loss = corners("series-1"), corners("series-2")
    (gain_width, gain_height), (loss_width, loss_height) = np.ptp(gain, axis=0), np.ptp(loss, axis=0)
    np.testing.assert_allclose(gain_width, loss_width, atol=0.02)
    np.testing.assert_allclose(gain_height, 2 * loss_height, atol=0.05)
    assert gain[:, 0].min() < loss[:, 0].min() and gain[:, 1].min() < loss[:, 1].min()


def test_many_queries_stay_a_small_drawing_that_shows_a_single_gain():
    results = full()
    for record in results["details"]["query_differences"]:
        record["differences"] = np.r_[0.5, np.linspace(-1, -0.1, 20_000)]
    svg = query_plot(validate_results(results), "scifact").panels[0]
    assert len(svg) < 20_000 and "fill: var(--series-1)" in svg and "● better on 1" in texts_of(svg)


def test_random_weights_and_more_than_six_comparisons_are_folded():
    results = full()
    results["systems"] += [{"name": f"s{i}", "kind": "dense"} for i in range(7)]
    pair = {"dataset": "scifact", "metric": "ndcg@10", "baseline": "BM25", "differences": [0.1, -0.1]}
    results["details"]["query_differences"] = [
        pair | {"system": name} for name in ("random", *(f"s{i}" for i in range(7)))
    ]
    plot = query_plot(validate_results(results), "scifact")
    assert (len(plot.panels), len(plot.more)) == (6, 2)


def test_long_names_are_cut_so_that_both_can_be_read():
    results = bm25_only()
    results["systems"] += [{"name": "a" * 90, "kind": "dense"}, {"name": "b" * 90, "kind": "dense"}]
    results["comparisons"] = [comparison("scifact", "a" * 90, "b" * 90, 0.1)]
    pair = {"dataset": "scifact", "metric": "ndcg@10", "system": "a" * 90, "baseline": "b" * 90}
    results["details"] = {"query_differences": [pair | {"differences": [0.1]}]}
    results = validate_results(results)
    assert title_of(query_plot(results, "scifact").panels[0]) == "a" * 16 + "… minus " + "b" * 15 + "…"
    assert title_of(difference_plot(results, "scifact").panels[0]) == "minus " + "b" * 33 + "…"
