"""The report in words: who is best, what can be told from chance, what to be wary of."""

import pytest
from report_results import bm25_only, comparison, full, score

from retrieval_pretraining.report_summary import p_value, regressions, signed, summarise
from retrieval_pretraining.results_file import validate_results


def results(*, p_value=0.0001, difference=-0.1, start="before", metric="ndcg@10", **of_comparison) -> dict:
    """A model, what it was trained from, and how the one compares with the other."""
    found = bm25_only()
    found["systems"] += [
        {"name": "before", "kind": "dense"},
        {"name": "after", "kind": "dense", "started_from": start},
    ]
    for name, value in (("before", 0.5), ("after", 0.5 + difference)):
        found["scores"].append(score("scifact", name, "ndcg@10", value))
    compared = comparison("scifact", "after", "before", difference, p_value=p_value, metric=metric)
    found["comparisons"] = [compared | of_comparison]
    return validate_results(found)


def warnings(found: dict) -> list[str]:
    return summarise(validate_results(found)).warnings


def test_with_one_system_the_sentence_names_nobody_else():
    (finding,) = summarise(validate_results(bm25_only())).findings
    assert (finding.dataset, finding.metric) == ("scifact", "nDCG@10")
    assert finding.sentences == ["BM25 reaches 0.676 (95 % interval 0.630 to 0.720)."]


def test_the_best_the_second_and_whether_they_differ():
    first = summarise(validate_results(full())).findings[0]
    assert first.sentences == [
        "after + BM25 is best with 0.694 (95 % interval 0.654 to 0.734); BM25 follows with 0.676: no significant "
        "difference.",
        "With random weights: random 0.077; what is above that was learned.",
        "Against BM25: no significant difference: after + BM25 (+0.018); significantly worse: after (−0.334).",
        "Against before: significantly better: after (+0.130); no significant difference: after + BM25 (+0.482).",
    ]


def test_what_training_made_worse_is_a_regression():
    (warning,) = warnings(results())
    assert warning.startswith(
        "Regression: after is significantly worse than before, which it started from, on scifact: nDCG@10 −0.100 "
        "(95 % interval −0.130 to −0.070)."
    )
    assert "general text" in warning


def test_without_a_stated_start_a_dense_baseline_counts_and_bm25_does_not():
    found = results(start=None)
    assert len(regressions(found)) == 1 and "which it started from" not in warnings(found)[0]
    found["comparisons"][0]["baseline"] = "BM25"
    assert regressions(found) == []


@pytest.mark.parametrize(
    "change",
    [
        {"p_value": 0.06},
        {"p_value": None},
        {"p_value_holm": 0.06},
        {"difference": 0.1},
        {"difference": 0.0},
        {"metric": "mrr@10"},
        {"start": "BM25"},
    ],
    ids=str,
)
def test_what_is_no_regression(change):
    assert regressions(results(**change)) == []


def test_the_level_of_the_results_decides():
    found = results(p_value=0.03)
    assert len(regressions(found)) == 1
    assert regressions(found | {"statistics": {"level": 0.01}}) == []


def test_collapsed_vectors_are_alarming():
    found = full()
    found["health"][0] |= {"collapsed": True, "random_cosine_mean": 0.991, "random_cosine_std": 0.004}
    (warning,) = (text for text in warnings(found) if "Collapsed" in text)
    assert "before" in warning and "scifact" in warning and "0.991 ± 0.004" in warning


def test_few_queries_a_sample_and_a_lost_number_are_told():
    found = bm25_only()
    found["datasets"][0] |= {"queries": 12, "sampled": True}
    found["scores"].append(score("scifact", "BM25", "mrr@10", float("nan")))
    found["warnings"] = ["qrels: 3 documents are missing."]
    lost, sample, few, own = warnings(found)
    assert "No MRR@10 for BM25 on scifact" in lost and "is a sample" in sample and "12 queries" in few
    assert own == "qrels: 3 documents are missing."


def test_numbers_are_written_for_people():
    assert [signed(v) for v in (0.13, -0.042, 0.0, -0.0001, None)] == ["+0.130", "−0.042", "0.000", "0.000", "–"]
    assert [p_value(v) for v in (0.0001, 0.04, None)] == ["< 0.001", "0.040", "–"]
