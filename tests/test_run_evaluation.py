"""The evaluation door: systems side by side in one command, and one clear sentence where that cannot be."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from tokenizers_for_tests import SENTENCES, bert_tokenizer, t5_tokenizer
from toy_models import gur_config, retromae_config

from modeling_gur import GURForPreTraining
from modeling_retromae import RetroMAEForPreTraining
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.evaluation import model_names
from retrieval_pretraining.evaluation_results import EvaluationResults
from run_evaluation import main

pytest.importorskip("bm25s")
pytest.importorskip("ir_measures")
pytest.importorskip("matplotlib")


def write_lines(path: Path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def write_beir(folder: Path) -> Path:
    """Each sentence is a document; the queries are the first four words of some of them."""
    write_lines(folder / "corpus.jsonl", ({"_id": f"d{i}", "text": text} for i, text in enumerate(SENTENCES)))
    queries = [i for i, text in enumerate(SENTENCES) if len(text.split()) > 4][:8]
    write_lines(
        folder / "queries.jsonl", ({"_id": f"q{i}", "text": " ".join(SENTENCES[i].split()[:4])} for i in queries)
    )
    (folder / "qrels").mkdir()
    grades = "".join(f"q{i}\td{i}\t2\nq{i}\td{(i + 1) % len(SENTENCES)}\t1\n" for i in queries)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + grades, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with data and two small models of this project."""
    root = tmp_path_factory.mktemp("evaluation")
    write_beir(root / "tiny")
    for name, tokenizer, kind, config in (
        ("gur", t5_tokenizer(), GURForPreTraining, gur_config),
        ("retromae", bert_tokenizer(), RetroMAEForPreTraining, retromae_config),
    ):
        torch.manual_seed(0)
        kind(config(vocab_size=len(tokenizer))).save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    (root / "gur" / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": 1, "loss": 2.0}]}))
    rows = [{"text": text, "label": "short" if len(text.split()) < 7 else "long"} for text in SENTENCES]
    for topics in (root / "topics", root / "other" / "tiny"):
        write_lines(topics / "train.jsonl", rows[::2])
        write_lines(topics / "test.jsonl", rows[1::2])
    pairs = [
        {"sentence1": one, "sentence2": other, "score": i % 5}
        for i, (one, other) in enumerate(itertools.pairwise(SENTENCES))
    ]
    write_lines(root / "pairs.jsonl", pairs)
    return root


@pytest.fixture(scope="module")
def report(place) -> Path:
    """A run with all there is."""
    command = [
        "--eval_retrieval_dir",
        place / "tiny",
        "--model_name_or_path",
        place / "gur",
        place / "retromae",
        "--bm25",
    ]
    command += ["--eval_classification_dir", place / "topics", "--shots", 2, "--few_shot_seeds", 2]
    command += ["--eval_similarity_file", place / "pairs.jsonl", "--rerank_candidates", "bm25", "--chunk_size", 8]
    command += [
        "--hybrid",
        "z_score",
        "reciprocal_rank",
        "--save_runs",
        "--save_query_scores",
        "--output_dir",
        place / "report",
    ]
    assert main([str(word) for word in command]) == 0
    return place / "report"


@pytest.fixture(scope="module")
def results(report) -> dict:
    return json.loads((report / "results.json").read_text(encoding="utf-8"))


def values(results: dict, dataset: str, metric: str) -> dict[str, float]:
    return {
        row["system"]: row["value"]
        for row in results["scores"]
        if (row["dataset"], row["metric"]) == (dataset, metric)
    }


def test_one_command_measures_all_systems_side_by_side(results):
    systems = {"BM25", "random weights (gur)", "random weights (retromae)"}
    for model in ("gur", "retromae"):
        for run in (model, f"{model}, chunks of 8 (max+mean)"):
            systems |= {run, f"{run} + BM25 (z_score)", f"{run} + BM25 (reciprocal_rank)"}
    for metric in ("ndcg@10", "mrr@10", "map", "recall@1", "recall@10", "recall@100", "recall@1000"):
        assert values(results, "tiny", metric).keys() == systems
    assert values(results, "tiny (reranked BM25 100)", "ndcg@10").keys() == {
        *("BM25", "gur", "retromae", "random weights (gur)", "random weights (retromae)")
    }
    assert {"zero_shot_accuracy", "accuracy@2"} <= {
        row["metric"] for row in results["scores"] if row["dataset"] == "topics"
    }
    assert values(results, "pairs", "spearman").keys() >= {"gur", "retromae"}


def test_bm25_finds_the_documents_that_the_queries_were_cut_from(results):
    found = values(results, "tiny", "mrr@10")
    assert found["BM25"] > found["random weights (gur)"]
    assert values(results, "tiny", "recall@1000")["gur"] == 1.0  # of so few documents all are found


def test_scores_have_intervals_and_systems_are_compared_in_pairs(results):
    rows = [row for row in results["scores"] if row["dataset"] == "tiny"]
    assert all(row["low"] <= row["value"] <= row["high"] and row["queries"] == 8 for row in rows)
    pairs = [(row["system"], row["baseline"]) for row in results["comparisons"] if row["dataset"] == "tiny"]
    assert ("gur", "BM25") in pairs and ("retromae", "gur") in pairs
    assert not any((baseline, system) in pairs for system, baseline in pairs)
    for row in results["comparisons"]:
        scores = values(results, row["dataset"], row["metric"])
        assert row["difference"] == pytest.approx(scores[row["system"]] - scores[row["baseline"]])
        assert 0 < row["p_value"] <= row["p_value_holm"] <= 1


def test_what_it_takes_to_repeat_is_written_down(results, place):
    gur = next(system for system in results["systems"] if system["name"] == "gur")
    assert gur["pooling"] == "pooler_output" and gur["dtype"] == "float32" and not gur["random_weights"]
    assert gur["model_name_or_path"] == str(place / "gur") and len(gur["weights_sha256"]) == 64
    assert results["environment"]["torch"] == torch.__version__ and results["seed"] == 42
    assert "bigrams" in next(data for data in results["datasets"] if data["name"] == "tiny")["bm25"]
    assert results["training"] == [{"system": "gur", "log_history": [{"step": 1, "loss": 2.0}]}]


def test_the_report_is_there_in_three_forms_and_the_runs_beside_it(report):
    assert "gur" in (report / "results.md").read_text(encoding="utf-8")
    assert "</html>" in (report / "report.html").read_text(encoding="utf-8")
    lines = (report / "runs" / "tiny.BM25.trec").read_text(encoding="utf-8").splitlines()
    query, zero, _document, rank, score, system = lines[0].split()
    assert (zero, rank, system) == ("Q0", "1", "BM25") and query.startswith("q") and float(score) > 0


def test_the_same_command_gives_the_same_numbers(results, place, tmp_path):
    command = ["--eval_retrieval_dir", place / "tiny", "--model_name_or_path", place / "gur", "--bm25"]
    assert main([str(word) for word in [*command, "--output_dir", tmp_path]]) == 0
    again = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    for metric in ("ndcg@10", "recall@10"):
        before = values(results, "tiny", metric)
        now = values(again, "tiny", metric)
        assert now["BM25"] == before["BM25"] and now["gur"] == pytest.approx(before["gur"], abs=1e-6)
        assert now["random weights"] == pytest.approx(before["random weights (gur)"], abs=1e-6)


def test_every_measure_of_every_query_and_text_is_kept(report, results):
    """Whose means are the scores."""
    of_queries = json.loads((report / "query_scores.json").read_text(encoding="utf-8"))
    kept = {
        (dataset, system, metric): sum(values.values()) / len(values)
        for dataset, systems in of_queries.items()
        for system, metrics in systems.items()
        for metric, values in metrics.items()
    }
    scores = {(row["dataset"], row["system"], row["metric"]): row["value"] for row in results["scores"]}
    assert kept == {place: pytest.approx(scores[place]) for place in kept}
    left = {metric for place in scores.keys() - kept.keys() for metric in place[2:]}
    assert left == {"macro_f1@2", "zero_shot_macro_f1", "spearman", "pearson"}
    assert of_queries["tiny"]["gur"]["ndcg@10"].keys() == of_queries["tiny"]["BM25"]["ndcg@10"].keys()
    assert len(of_queries["topics"]["gur"]["accuracy@2"]) == len(SENTENCES) // 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--model_name_or_path", "./nowhere"], "--model_name_or_path ./nowhere: there is no such folder"),
        (["--eval_retrieval_dir", "nowhere"], "nowhere"),
        (["--baseline", "gpt"], "--baseline gpt is none of the systems: BM25, gur"),
        (["--pooling", "max"], "--pooling is one of"),
        (["--hybrid", "sum"], "--hybrid is one of"),
        (["--pooling", "cls", "mean"], "--pooling has 2 values for 1 models"),
        (["--rerank_candidates", "nowhere.trec"], "nowhere.trec"),
        (["--eval_similarity_file", "nowhere.tsv"], "nowhere.tsv"),
        (["--eval_classification_dir", "nowhere"], "nowhere"),
        (["--batch_size", "0"], "--batch_size is 1 or more"),
        (["--max_seq_length", "4"], "--max_seq_length 4"),
        (["--no_such_flag", "1"], "no_such_flag"),
        (["--model_name_or_path", "{place}/retromae", "--chunk_size", "100000"], "100000"),
        (["--lexical_top_n", "5"], "--lexical_top_n has no effect without --lexical"),
        (["--bm25", "False", "--bm25_weight", "3"], "--bm25_weight has no effect without --bm25"),
        (["--eval_classification_dir", "{place}/other/tiny"], "--eval_classification_dir names a second dataset tiny"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_is_measured(place, tmp_path, capsys, change, message):
    command = ["--eval_retrieval_dir", place / "tiny", "--model_name_or_path", place / "gur", "--bm25"]
    command += ["--output_dir", tmp_path / "report", *(word.format(place=place) for word in change)]
    assert main([str(word) for word in command]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert ": BM25" not in printed.out
    assert not (tmp_path / "report").exists()


def test_a_run_file_keeps_the_order_of_near_ties(tmp_path):
    results = EvaluationResults(seed=0)
    results._runs["data", "system"] = {"q": {"b": 0.50000002, "a": 0.50000001}}
    (file,) = results.write_runs(tmp_path)
    assert [float(line.split()[4]) for line in file.read_text().splitlines()] == [0.50000002, 0.50000001]


def test_nothing_to_measure_is_said(place, tmp_path, capsys):
    assert main(["--eval_retrieval_dir", str(place / "tiny"), "--output_dir", str(tmp_path)]) == 2
    assert "give --model_name_or_path, --bm25, or both" in capsys.readouterr().err
    assert main(["--bm25", "--output_dir", str(tmp_path)]) == 2
    assert "give --eval_retrieval_dir" in capsys.readouterr().err


def test_names_are_as_short_as_they_can_be(tmp_path):
    assert model_names(["a/x", "b/x", "c/y"]) == ["a/x", "b/x", "y"]
    assert model_names(["outputs/demo/encoder"]) == ["demo/encoder"]
    with pytest.raises(InputError, match="the same model twice"):
        model_names(["a/x", "a/x"])


def test_approximate_search_finds_the_same_in_so_little(place, tmp_path, results):
    pytest.importorskip("faiss")
    command = ["--eval_retrieval_dir", place / "tiny", "--model_name_or_path", place / "gur", "--approximate_search"]
    command += ["--random_weights", "False", "--output_dir", tmp_path]
    assert main([str(word) for word in command]) == 0
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert values(found, "tiny", "ndcg@10") == {
        "gur": pytest.approx(values(results, "tiny", "ndcg@10")["gur"], abs=1e-6)
    }
