"""Fusion of runs, against values worked out by hand."""

import math

import pytest

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.hybrid import fuse
from retrieval_pretraining.retrieval_data import RetrievalData
from retrieval_pretraining.retrieval_evaluation import bm25_run, retrieval_metrics

BM25 = {"q": {"a": 8.0, "b": 5.0, "c": 2.0}}
DENSE = {"q": {"b": 0.9, "d": 0.5}}
OUTER = math.sqrt(1.5)  # three equal steps have a deviation of sqrt(2 / 3) steps


def test_z_scores_are_summed_and_a_missing_document_gets_the_lowest():
    fused = fuse([BM25, DENSE])
    # BM25: a OUTER, b 0, c -OUTER, d as c; dense: b 1, d -1, a and c as d
    assert fused["q"] == pytest.approx({"b": 1.0, "a": OUTER - 1, "c": -OUTER - 1, "d": -OUTER - 1})
    assert list(fused["q"]) == ["b", "a", "c", "d"]  # c comes before d in the runs


def test_weights_scale_the_runs():
    fused = fuse([BM25, DENSE], weights=[0.5, 2.0])
    assert fused["q"] == pytest.approx({"b": 2.0, "a": OUTER / 2 - 2, "c": -OUTER / 2 - 2, "d": -OUTER / 2 - 2})
    assert fuse([BM25, DENSE], weights=[0.0, 1.0])["q"]["b"] == pytest.approx(1.0)


def test_reciprocal_ranks_are_summed_and_a_missing_document_gets_nothing():
    fused = fuse([BM25, DENSE], method="reciprocal_rank", weights=[1.0, 0.5])
    expected = {"b": 1 / 62 + 0.5 / 61, "a": 1 / 61, "c": 1 / 63, "d": 0.5 / 62}
    assert fused["q"] == pytest.approx(expected) and list(fused["q"]) == ["b", "a", "c", "d"]


def test_ranks_go_by_score_and_not_by_the_order_in_the_run():
    assert fuse([{"q": {"low": 1.0, "high": 2.0}}], method="reciprocal_rank")["q"]["high"] == pytest.approx(1 / 61)


@pytest.mark.parametrize("method", ["z_score", "reciprocal_rank"])
def test_a_query_that_one_run_lacks_is_ranked_by_the_other(method):
    fused = fuse([{"q": {}, "only bm25": {"x": 2.0, "y": 3.0}}, {"q": {"b": 0.1, "a": 0.2}}], method=method)
    assert {query: list(scores) for query, scores in fused.items()} == {"q": ["a", "b"], "only bm25": ["y", "x"]}


def test_a_run_whose_scores_are_all_equal_decides_nothing():
    fused = fuse([{"q": {"x": 7.1, "y": 7.1, "z": 7.1}}, {"q": {"y": 0.9, "x": 0.8}}])
    assert fused["q"] == pytest.approx({"y": 1.0, "x": -1.0, "z": -1.0})


def test_equal_scores_are_in_the_order_of_the_runs_also_at_the_cut():
    run = {"q": {"d9": 1.0, "d1": 1.0, "d5": 1.0}}
    assert list(fuse([run, run], top_k=2)["q"]) == ["d9", "d1"]
    assert len(fuse([run, run], top_k=None)["q"]) == 3


def test_the_hybrid_of_two_halves_finds_all():
    texts = ["the red fox", "blue whales", "dogs sleep"]
    qrels = {"q": {"d0": 1, "d1": 1}}
    data = RetrievalData("toy", ["d0", "d1", "d2"], texts, ["q"], ["fox"], qrels)
    dense = {"q": {"d1": 0.9, "d0": 0.3, "d2": 0.2}}
    assert retrieval_metrics(fuse([bm25_run(data), dense]), qrels, measures=["nDCG@2"]) == {"ndcg@2": 1.0}


@pytest.mark.parametrize(
    ("runs", "options", "said"),
    [
        ([], {}, "no runs"),
        ([BM25], {"method": "sum"}, 'method is "sum"'),
        ([BM25, DENSE], {"weights": [1.0]}, "2 runs and 1 weights"),
        ([BM25, DENSE], {"weights": [1.0, -1.0]}, "0 or more"),
        ([BM25, DENSE], {"weights": [0.0, 0.0]}, "at least one above 0"),
        ([BM25, DENSE], {"weights": [1.0, math.inf]}, "finite numbers"),
        ([BM25], {"top_k": 0}, "top_k is 0"),
        ([{"q": {"a": math.nan, "b": 1.0}}], {}, "not finite"),
    ],
)
def test_what_cannot_be_fused_is_an_error_in_a_sentence(runs, options, said):
    with pytest.raises(InputError, match=said):
        fuse(runs, **options)
