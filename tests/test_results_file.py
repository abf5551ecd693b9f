"""results.json: what goes in comes out, in one order, whole or not at all; what does not fit is named."""

import json
import os
import sys
from datetime import datetime

import numpy as np
import pytest
from report_results import bm25_only, full, score

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.results_file import (
    metric_name,
    metric_order,
    provenance,
    read_results,
    validate_results,
    write_results,
)

OF_BM25 = {"dataset": "scifact", "system": "BM25"}


def test_what_is_written_is_read_back(tmp_path):
    path = write_results(full(), tmp_path / "new" / "results.json")
    assert read_results(path) == read_results(path.parent) == validate_results(full())
    assert os.listdir(path.parent) == ["results.json"]


def test_the_order_of_the_records_does_not_depend_on_how_they_came(tmp_path):
    results = full()
    for key in ("scores", "comparisons", "health"):
        results[key] = results[key][::-1]
    first = write_results(full(), tmp_path / "1.json")
    second = write_results(dict(reversed(results.items())), tmp_path / "2.json")
    assert first.read_bytes() == second.read_bytes()
    scores = read_results(first)["scores"]
    assert [s["system"] for s in scores[:5]] == ["BM25", "random", "before", "after", "after + BM25"]
    assert [s["metric"] for s in scores[:15:5]] == ["ndcg@10", "mrr@10", "recall@100"]


def test_a_record_is_a_line_and_text_is_utf_8(tmp_path):
    lines = write_results(full(), tmp_path / "results.json").read_text(encoding="utf-8").splitlines()
    of_scores = lines[lines.index(' "scores": [') + 1 : lines.index(' "comparisons": [') - 1]
    assert len(of_scores) == len(full()["scores"]) == sum(line.startswith('  {"dataset"') for line in of_scores)
    assert any("语言模型" in line for line in lines)


def test_half_a_surrogate_pair_comes_back(tmp_path):
    results = bm25_only() | {"command": "broken \ud83d text"}
    assert read_results(write_results(results, tmp_path / "results.json"))["command"] == "broken \ud83d text"


def test_numpy_numbers_become_numbers_and_what_is_not_finite_null(tmp_path):
    results = bm25_only() | {"seed": np.int64(7), "numbers": np.array([1.5, np.nan])}
    results["scores"] = [score("scifact", "BM25", "ndcg@10", np.float64("nan"), np.float32(0.5), float("inf"))]
    text = write_results(results, tmp_path / "results.json").read_text(encoding="utf-8")
    read = json.loads(text, parse_constant=pytest.fail)
    assert (read["seed"], read["numbers"]) == (7, [1.5, None])
    assert (read["scores"][0]["value"], read["scores"][0]["low"], read["scores"][0]["high"]) == (None, 0.5, None)


def test_the_results_given_are_left_as_they_are():
    results = bm25_only()
    validate_results(results)["scores"][0]["value"] = 0
    assert results == bm25_only()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format 2"),
        ({"scores": {}}, "scores is a dict"),
        ({"scores": [{"dataset": "scifact", "system": "BM25", "metric": "ndcg@10"}]}, r'scores\[0\] lacks "value"'),
        ({"scores": [score("scifact", "BM25", "ndcg@10", "0.676")]}, r"scores\[0\].value is '0.676'"),
        ({"scores": [score("scifacts", "BM25", "map", 0.1)]}, 'dataset is "scifacts", but datasets'),
        ({"scores": [score("scifact", "bm25", "map", 0.1)]}, 'system is "bm25", but systems'),
        ({"scores": [score("scifact", "BM25", "map", 0.1)] * 2}, "comes twice"),
        ({"systems": [{"name": "BM25", "kind": "bm25"}] * 2}, "'BM25' comes twice"),
        ({"environment": {"device": object()}}, "results.environment.device is a object"),
        ({"environment": {1: "x"}}, "has the key 1"),
        ({"details": {"map": [{**OF_BM25, "points": [[0, 0]], "groups": [0], "texts": []}]}},
         "different lengths"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(change, message):
    with pytest.raises(InputError, match=message):
        validate_results(bm25_only() | change)


def test_a_file_that_is_no_results_file_is_named(tmp_path):
    path = tmp_path / "results.json"
    with pytest.raises(InputError, match="does not exist"):
        read_results(path)
    for text, message in (("{", "not a readable JSON"), ("[]", 'no "format"'), ('{"format": 9}', "format 9")):
        path.write_text(text)
        with pytest.raises(InputError, match=f"results.json.*{message}"):
            read_results(path)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = write_results(bm25_only(), tmp_path / "results.json")
    before = path.read_bytes()

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match="No space left"):
        write_results(full(), path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["results.json"]


def test_metrics_have_names_and_an_order():
    metrics = ["accuracy@10", "zzz", "recall@100", "accuracy@5", "recall@10", "ndcg@10"]
    ordered = ["ndcg@10", "recall@10", "recall@100", "accuracy@5", "accuracy@10", "zzz"]
    assert sorted(metrics, key=metric_order) == ordered
    assert [metric_name(m) for m in ("ndcg@10", "accuracy@5", "zzz")] == ["nDCG@10", "accuracy, 5 a class", "zzz"]


def test_provenance_is_what_it_takes_to_repeat(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/some/where/run_evaluation.py", "--query_prompt", "query: "])
    found = provenance()
    assert found["command"] == "python run_evaluation.py --query_prompt 'query: '"
    assert datetime.fromisoformat(found["created"]).tzinfo is not None
    assert {"python", "platform", "device", "torch", "transformers", "retromae-gur"} <= found["environment"].keys()
    assert validate_results(bm25_only() | found)["environment"] == found["environment"]
