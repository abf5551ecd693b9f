"""Retrieval metrics: values worked out by hand and by a slow oracle, ids, what is missing, mistakes."""

import math
import random
import sys
from math import log2

import numpy as np
import pytest
from reference import retrieval_oracle as oracle

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.retrieval_metrics import ALL_MEASURES, check_ids, retrieval_metrics

GRADES = {"q1": {"d1": 2, "d2": 1}, "q2": {"d4": 1}, "q3": {"d1": 1}}
RANKING = {"q1": {"d2": 7.0, "d3": 9.0, "d1": 8.0}, "q2": {"d4": 0.5, "d1": 0.25}, "not judged": {"d1": 1.0}}
# q1: (2 / log2 3 + 1 / log2 4) / (2 / log2 2 + 1 / log2 3) = 1.761860 / 2.630930; q3 is not in the run
NDCG_Q1 = 0.669672


def scores(*documents):
    return {document: float(-rank) for rank, document in enumerate(documents)}


# values


def test_metrics_equal_values_worked_out_by_hand():
    values = retrieval_metrics(RANKING, GRADES, measures=["nDCG@10", "R@2", "RR@10", "AP"])
    assert values == pytest.approx(
        {
            "ndcg@10": (NDCG_Q1 + 1 + 0) / 3,
            "recall@2": (1 / 2 + 1 + 0) / 3,
            "mrr@10": (1 / 2 + 1 + 0) / 3,
            "map": ((1 / 2 + 2 / 3) / 2 + 1 + 0) / 3,
        },
        abs=1e-6,
    )


def test_all_measures_equal_values_worked_out_by_hand_also_behind_the_cut_at_10():
    # relevant at ranks 2 (grade 2), 4 (grade 1) and 11 (grade 1); "far" (grade 3) is not found, "no" has grade 0
    run = {"q": scores("no", "two", "n3", "one", "n5", "n6", "n7", "n8", "n9", "n10", "late")}
    qrels = {"q": {"far": 3, "two": 2, "one": 1, "late": 1, "no": 0}}
    assert retrieval_metrics(run, qrels, measures=ALL_MEASURES) == pytest.approx(
        {
            # 2 / 1.584963 + 1 / 2.321928 over 3 / 1 + 2 / 1.584963 + 1 / 2 + 1 / 2.321928 = 1.692536 / 5.192536
            "ndcg@10": (2 / log2(3) + 1 / log2(5)) / (3 / log2(2) + 2 / log2(3) + 1 / log2(4) + 1 / log2(5)),
            "mrr@10": 1 / 2,
            "map": (1 / 2 + 2 / 4 + 3 / 11 + 0) / 4,
            "recall@1": 0 / 4,
            "recall@10": 2 / 4,
            "recall@100": 3 / 4,
            "recall@1000": 3 / 4,
        },
        abs=1e-9,
    )


def test_a_first_relevant_document_at_rank_11_gives_mrr_at_10_nothing():
    run = {"q": scores(*(f"n{i}" for i in range(10)), "late")}
    values = retrieval_metrics(run, {"q": {"late": 1}}, measures=["RR@10", "AP"])
    assert values == pytest.approx({"mrr@10": 0, "map": 1 / 11})


def test_metrics_equal_the_slow_oracle():
    generator = random.Random(3)
    documents = [f"d{i}" for i in range(60)]
    run = {f"q{i}": scores(*generator.sample(documents, generator.randint(1, 60))) for i in range(30)}
    qrels = {
        query: {"d0": 1, **{each: generator.randint(-1, 3) for each in generator.sample(documents[1:], 12)}}
        for query in run
    }
    measures = ["nDCG@5", "nDCG@10", "RR@3", "AP", "R@1", "R@20"]
    values = retrieval_metrics(run, qrels, measures=measures, per_query=True)
    for query, grades in qrels.items():
        ranking = list(run[query])
        assert {key: own[query] for key, own in values.items()} == pytest.approx(
            {
                "ndcg@5": oracle.ndcg(ranking, grades, 5),
                "ndcg@10": oracle.ndcg(ranking, grades, 10),
                "mrr@3": oracle.reciprocal_rank(ranking, grades, 3),
                "map": oracle.average_precision(ranking, grades),
                "recall@1": oracle.recall(ranking, grades, 1),
                "recall@20": oracle.recall(ranking, grades, 20),
            },
            abs=1e-9,
        )


def test_metrics_per_query_cover_every_judged_query():
    values = retrieval_metrics(RANKING, GRADES, per_query=True)
    assert set(values) == {"ndcg@10", "recall@100", "mrr@10"}
    assert values["ndcg@10"] == pytest.approx({"q1": NDCG_Q1, "q2": 1, "q3": 0}, abs=1e-6)


def test_values_per_query_are_in_the_order_of_the_qrels():
    qrels = {query: {"d": 1} for query in ("q9", "q1", "missing", "q5")}
    run = {query: {"d": 1.0} for query in ("q1", "q5", "q9")}
    for own in retrieval_metrics(run, qrels, measures=ALL_MEASURES, per_query=True).values():
        assert list(own.items()) == [("q9", 1), ("q1", 1), ("missing", 0), ("q5", 1)]


def test_equal_scores_rank_in_the_order_of_the_run():
    run = {"q": {"d2": 1.0, "d9": 1.0, "d1": 1.0}}
    assert retrieval_metrics(run, {"q": {"d9": 1}}, measures=["RR@10"]) == {"mrr@10": 0.5}


def test_scores_that_differ_beyond_float32_rank_by_their_difference():
    run = {"q": {"a": 1.0, "b": 1.0 + 1e-12}}
    assert retrieval_metrics(run, {"q": {"b": 1}}, measures=["RR@10"]) == {"mrr@10": 1.0}


# ids


@pytest.mark.parametrize("run_type", [str, int, np.int64])
@pytest.mark.parametrize("qrels_type", [str, int, np.int64])
def test_ids_that_are_numbers_equal_their_digits(run_type, qrels_type):
    run = {run_type(1): {run_type(7): 2.0, run_type(8): 1.0}}
    qrels = {qrels_type(1): {qrels_type(8): 1}}
    assert retrieval_metrics(run, qrels, measures=["RR@10"], per_query=True) == {"mrr@10": {"1": 0.5}}


@pytest.mark.parametrize(
    ("run", "qrels", "what"),
    [({"q": {1: 0.5, "1": 0.4}}, {"q": {"1": 1}}, "run"), ({"1": {"d": 1.0}}, {1: {"d": 1}, "1": {"d": 1}}, "qrels")],
)
def test_a_number_beside_its_digits_is_an_error(run, qrels, what):
    with pytest.raises(InputError, match=f"An id of the {what} is there both"):
        retrieval_metrics(run, qrels)


# what is missing


def test_what_is_missing_is_counted_in_one_warning(caplog):
    run = {"q1": {"d1": 1.0}, "q4": {"d1": 1.0}, "other": {"d1": 1.0}}
    values = retrieval_metrics(run, {**GRADES, "q4": {"d1": 0, "d2": -1}}, measures=["R@1"])
    assert values == {"recall@1": pytest.approx((1 / 2 + 0 + 0 + 0) / 4)}
    (record,) = caplog.records
    assert "2 of 4 judged queries are not in the run and score 0" in record.getMessage()
    assert "1 of 4 judged queries have no relevant document" in record.getMessage()
    assert "1 of 3 queries of the run are not judged" in record.getMessage()


def test_a_run_that_fits_gives_no_warning(caplog):
    retrieval_metrics({"q1": {"d1": 1.0}, "q2": {}}, {"q1": {"d1": 1}, "q2": {"d1": 1}})
    assert not caplog.records


def test_a_judged_document_that_nobody_finds_lowers_recall():
    assert retrieval_metrics({"q": {"d1": 1.0}}, {"q": {"d1": 1, "gone": 1}}, measures=["R@10"]) == {"recall@10": 0.5}


def test_a_run_for_other_queries_is_an_error_and_not_zero():
    with pytest.raises(InputError, match="share no id"):
        retrieval_metrics({"1": {"d1": 1.0}}, GRADES)


def test_no_judged_queries_are_an_error():
    with pytest.raises(InputError, match="no judged queries"):
        retrieval_metrics({"1": {"d1": 1.0}}, {})


def test_a_run_that_finds_no_judged_document_scores_zero_and_warns(caplog):
    assert retrieval_metrics({"q1": {"x": 1.0}}, GRADES) == {"ndcg@10": 0, "recall@100": 0, "mrr@10": 0}
    assert "No query finds" in caplog.text


# mistakes


@pytest.mark.parametrize("measure", ["gain@10", "nDCG@", "nDCG@ten", "R@0", "RR@-1"])
def test_an_unknown_measure_is_an_error(measure):
    with pytest.raises(InputError, match="Unknown measure"):
        retrieval_metrics(RANKING, GRADES, measures=[measure])


@pytest.mark.parametrize("score", [math.nan, math.inf, None, "high"])
def test_a_score_that_is_no_number_is_an_error(score):
    with pytest.raises(InputError, match=r'score for query "q1" that is not (finite|a number)'):
        retrieval_metrics({"q1": {"d1": 1.0, "d2": score}}, GRADES)


@pytest.mark.parametrize("grade", [0.5, None, "1", math.nan])
def test_a_grade_that_is_no_whole_number_is_an_error(grade):
    with pytest.raises(InputError, match=r"A grade of the qrels is .*; give whole numbers"):
        retrieval_metrics({"q1": {"d1": 1.0}}, {"q1": {"d1": grade}})


def test_ids_are_one_each_and_each_another():
    check_ids(["a", "b"], 2, "queries")
    with pytest.raises(InputError, match="There are 2 ids for 3 queries"):
        check_ids(["a", "b"], 3, "queries")
    with pytest.raises(InputError, match='The id "a" stands for several queries'):
        check_ids(["b", "a", "a"], 3, "queries")


def test_a_missing_extra_gives_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_measures", None)
    with pytest.raises(InputError, match=r'ir_measures .* pip install "retromae-gur\[eval\]"'):
        retrieval_metrics(RANKING, GRADES)
