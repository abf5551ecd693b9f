"""The metrics as `evaluate.Metric`s: the values of `retrieval_metrics`, offline, alone and combined."""

import socket

import evaluate
import pytest

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.evaluate_metrics import MAP, MRR, NDCG, Recall, RetrievalMetric, metric_rows
from retrieval_pretraining.retrieval_metrics import ALL_MEASURES, retrieval_metrics

QRELS = {"q1": {"1": 2, "2": 1}, "q2": {"4": 1}, "q3": {"1": 1}}
RUN = {"q1": {"2": 7.0, "3": 9.0, "1": 8.0}, "q2": {"4": 0.5, "1": 0.25}, "not judged": {"1": 1.0}}
PREDICTIONS, REFERENCES = metric_rows(RUN, QRELS)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a metric asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def options(tmp_path):
    return {"cache_dir": str(tmp_path)}


def test_rows_are_the_judged_queries_in_their_order():
    assert PREDICTIONS[0] == {"document_ids": ["2", "3", "1"], "scores": [7.0, 9.0, 8.0]}
    assert PREDICTIONS[2] == {"document_ids": [], "scores": []}
    assert REFERENCES[0] == {"document_ids": ["1", "2"], "grades": [2, 1]}
    assert len(PREDICTIONS) == len(REFERENCES) == 3


def test_all_measures_at_once_equal_those_of_a_run(options):
    values = RetrievalMetric(**options).compute(predictions=PREDICTIONS, references=REFERENCES)
    assert values == retrieval_metrics(RUN, QRELS, measures=ALL_MEASURES)
    assert values["recall@10"] == pytest.approx((1 + 1 + 0) / 3)


def test_measures_are_chosen_by_name(options):
    metric = RetrievalMetric(measures=["P@2"], **options)
    assert metric.compute(predictions=PREDICTIONS, references=REFERENCES) == {"precision@2": pytest.approx(1 / 3)}


@pytest.mark.parametrize(
    ("kind", "settings", "key", "value"),
    [
        (NDCG, {}, "ndcg@10", (0.669672 + 1 + 0) / 3),
        (NDCG, {"k": 1}, "ndcg@1", (0 + 1 + 0) / 3),
        (MRR, {}, "mrr@10", (1 / 2 + 1 + 0) / 3),
        (MRR, {"k": 1}, "mrr@1", (0 + 1 + 0) / 3),
        (MAP, {}, "map", ((1 / 2 + 2 / 3) / 2 + 1 + 0) / 3),
        (Recall, {}, "recall@100", 2 / 3),
        (Recall, {"k": 2}, "recall@2", (1 / 2 + 1 + 0) / 3),
    ],
)
def test_each_metric_gives_its_value_under_its_key(options, kind, settings, key, value):
    values = kind(**settings, **options).compute(predictions=PREDICTIONS, references=REFERENCES)
    assert values == {key: pytest.approx(value, abs=1e-6)}


def test_metrics_are_combined(options):
    parts = [NDCG(**options), MRR(**options), MAP(**options)]
    parts += [Recall(k=k, **options) for k in (1, 10, 100, 1000)]
    values = evaluate.combine(parts).compute(predictions=PREDICTIONS, references=REFERENCES)
    assert values == retrieval_metrics(RUN, QRELS, measures=ALL_MEASURES)


def test_rows_may_come_one_by_one_or_in_batches(options):
    expected = {"ndcg@10": pytest.approx((0.669672 + 1 + 0) / 3, abs=1e-6)}
    metric, combined = NDCG(**options), evaluate.combine([NDCG(**options)])
    for prediction, reference in zip(PREDICTIONS, REFERENCES):
        metric.add(prediction=prediction, reference=reference)
        combined.add(prediction=prediction, reference=reference)
    assert metric.compute() == combined.compute() == expected
    metric.add_batch(predictions=PREDICTIONS[:2], references=REFERENCES[:2])
    metric.add_batch(predictions=PREDICTIONS[2:], references=REFERENCES[2:])
    assert metric.compute() == expected


def test_ids_that_are_numbers_equal_their_digits(options):
    numbers = [{**row, "document_ids": [int(each) for each in row["document_ids"]]} for row in REFERENCES]
    values = NDCG(**options).compute(predictions=PREDICTIONS[::-1], references=numbers[::-1])
    assert values == {"ndcg@10": pytest.approx((0.669672 + 1 + 0) / 3, abs=1e-6)}


@pytest.mark.parametrize(
    ("prediction", "message"),
    [
        ({"document_ids": ["1", "1"], "scores": [1, 2]}, r"predictions\[0\] names a document twice"),
        ({"document_ids": [1, "1"], "scores": [1, 2]}, r"predictions\[0\] names a document twice"),
        ({"document_ids": ["1"], "scores": [1, 2]}, r"predictions\[0\] has 1 document_ids and 2 scores"),
        ({"document_ids": ["1"], "scores": [None]}, r"predictions\[0\] is not a dict"),
        ({"document_ids": ["1"]}, r"predictions\[0\] is not a dict"),
        (["1"], r"predictions\[0\] is not a dict"),
        (None, r"predictions\[0\] is not a dict"),
        ({"document_ids": ["1"], "scores": [float("nan")]}, "not finite"),
    ],
)
def test_a_row_that_is_none_is_an_error(options, prediction, message):
    with pytest.raises(InputError, match=message):
        NDCG(**options).compute(predictions=[prediction], references=REFERENCES[:1])


def test_a_grade_is_not_rounded(options):
    reference = {"document_ids": ["1"], "grades": [1.5]}
    with pytest.raises(InputError, match=r"A grade of the qrels is 1\.5"):
        NDCG(**options).compute(predictions=PREDICTIONS[:1], references=[reference])


def test_no_rows_are_an_error(options):
    with pytest.raises(InputError, match="no judged queries"):
        NDCG(**options).compute(predictions=[], references=[])


@pytest.mark.parametrize("k", [0, -1, 1.5, "10", True])
def test_a_cutoff_is_a_whole_number_of_1_or_more(k):
    with pytest.raises(InputError, match="whole number of 1 or more"):
        Recall(k=k)
