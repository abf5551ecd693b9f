"""Scores for the model card and the Hub's leaderboards, checked with the Hub's own classes."""

import pytest
import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, parse_eval_result_entries
from report_results import full

from retrieval_pretraining.card_results import (
    eval_result_files,
    model_index_results,
    update_model_card,
    write_eval_results,
)
from retrieval_pretraining.errors import InputError


def on_the_hub() -> dict:
    results = full()
    results["datasets"][0] |= {"hub_dataset": "mteb/scifact", "hub_task": "scifact", "hub_revision": "0" * 40}
    return results


def test_a_card_with_the_model_index_reads_back_as_it_was():
    evaluated = model_index_results(full(), "after")
    data = ModelCardData(model_name="mine", eval_results=evaluated, tags=["retromae"])
    card = ModelCard(f"---\n{data.to_yaml()}\n---\n# mine\n")
    assert [(r.dataset_name, r.metric_type, r.metric_value) for r in card.data.eval_results] == [
        (dataset, metric, 0.342)
        for dataset in ("scifact", "中文问答")
        for metric in ("ndcg@10", "mrr@10", "recall@100")
    ]
    index = card.data.to_dict()["model-index"]
    assert [r["dataset"]["type"] for r in index[0]["results"]] == ["scifact", "中文问答"]
    assert index[0]["results"][0]["task"] == {"type": "information-retrieval", "name": "Information Retrieval"}
    assert index[0]["results"][0]["metrics"][0] == {"type": "ndcg@10", "value": 0.342, "name": "nDCG@10"}


def test_a_sample_is_called_a_sample_and_what_was_not_measured_is_left_out():
    results = full()
    results["datasets"][0]["sampled"] = True
    next(s for s in results["scores"] if (s["system"], s["metric"]) == ("after", "mrr@10"))["value"] = None
    found = [(r.dataset_name, r.metric_type) for r in model_index_results(results, "after")]
    assert found[:2] == [("scifact (sample)", "ndcg@10"), ("scifact (sample)", "recall@100")]


def test_a_benchmark_of_the_hub_gets_a_file_that_the_hub_reads(tmp_path):
    paths = write_eval_results(on_the_hub(), "after", tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [".eval_results/mteb-scifact.yaml"]
    (entry,) = parse_eval_result_entries(yaml.safe_load(paths[0].read_text(encoding="utf-8")))
    assert (entry.dataset_id, entry.task_id, entry.value) == ("mteb/scifact", "scifact", 0.342)
    assert (entry.dataset_revision, entry.date) == ("0" * 40, "2026-11-30T02:00:00+00:00")
    assert entry.notes == "metric nDCG@10, pooling cls, max_seq_length 256, query prompt 'query: '"


def test_no_file_without_a_benchmark_nor_for_a_sample():
    assert eval_result_files(full(), "after") == {}
    results = on_the_hub()
    results["datasets"][0]["sampled"] = True
    assert eval_result_files(results, "after") == {}


@pytest.mark.parametrize("function", [model_index_results, eval_result_files])
def test_an_unknown_system_is_an_error(function):
    with pytest.raises(InputError, match='no system "mine"; choose one of BM25, random, before, after'):
        function(full(), "mine")


def test_a_card_gets_the_scores_and_keeps_the_rest(tmp_path):
    path = tmp_path / "README.md"
    other = EvalResult("reranking", "other", "Other", "map", 0.5)
    data = ModelCardData(license="mit", model_name="mine", eval_results=[other])
    path.write_text(f"---\n{data.to_yaml()}\n---\n\n# Mine\n\nText.\n", encoding="utf-8")
    assert update_model_card(tmp_path, on_the_hub(), "after") == path
    card = ModelCard.load(path)
    assert card.data.license == "mit" and card.data.model_name == "mine"
    assert [r.dataset_name for r in card.data.eval_results] == ["Other", *["scifact"] * 3, *["中文问答"] * 3]
    assert "# Mine\n\nText." in card.text and "| after        | ▼¹▲² 0.342 |" in card.text
    assert (tmp_path / ".eval_results" / "mteb-scifact.yaml").is_file()


def test_scores_are_replaced_not_piled_up(tmp_path):
    once = update_model_card(tmp_path, full(), "after").read_text(encoding="utf-8")
    assert update_model_card(tmp_path, full(), "after").read_text(encoding="utf-8") == once
    results = full()
    for record in results["scores"]:
        record["value"] /= 2
    path = update_model_card(tmp_path, results, "after")
    card = ModelCard.load(path)
    assert [r.metric_value for r in card.data.eval_results] == [0.171] * 6
    assert card.text.count("## Evaluation") == 1 and "0.342" not in card.text


def test_a_folder_without_a_card_gets_one(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    card = ModelCard.load(update_model_card(folder, full(), "after"))
    assert card.data.model_name == "mine" and card.text.startswith("# mine")


def test_a_broken_card_is_an_error_and_stays(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("---\ntags: [a\n---\n# Mine\n")
    with pytest.raises(InputError, match=r"README.md is not a readable model card"):
        update_model_card(tmp_path, full(), "after")
    assert path.read_text() == "---\ntags: [a\n---\n# Mine\n"
