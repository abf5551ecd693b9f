"""What the shipped recipes reach on SciFact. Minutes each: `make test-slow`."""

from pathlib import Path

import pytest

from retrieval_pretraining.arguments import DataArguments, ModelArguments, PretrainingArguments, parse_arguments
from retrieval_pretraining.gur_arguments import GURArguments
from retrieval_pretraining.mining_settings import MiningSettings
from run_pretrain import run

ROOT = Path(__file__).parents[1]


def reached(recipe: str, output_dir: Path, monkeypatch) -> dict[str, dict[str, float]]:
    monkeypatch.chdir(ROOT)  # recipes name their files from there
    flags = ["--output_dir", str(output_dir), "--eval_retrieval_dir", "examples/data/scifact"]
    kinds = [ModelArguments, DataArguments, PretrainingArguments]
    return run(*parse_arguments(kinds, [f"recipes/{recipe}", *flags]))["retrieval"]


@pytest.mark.slow
def test_from_text_en_reaches_its_mark(tmp_path, monkeypatch):
    after = reached("from_text_en.yaml", tmp_path, monkeypatch)["after"]
    assert after["ndcg@10"] >= 0.50 and after["recall@100"] >= 0.86


@pytest.mark.slow
def test_retromae_makes_the_starter_usable_and_mlm_does_not(tmp_path, monkeypatch):
    retromae = reached("demo_scifact.yaml", tmp_path / "retromae", monkeypatch)
    mlm = reached("demo_scifact_mlm.yaml", tmp_path / "mlm", monkeypatch)
    assert retromae["before"] == mlm["before"]
    assert retromae["after"]["ndcg@10"] > retromae["before"]["ndcg@10"] + 0.09
    assert retromae["after"]["recall@100"] > retromae["before"]["recall@100"] + 0.15
    assert mlm["after"]["ndcg@10"] < mlm["before"]["ndcg@10"]


@pytest.mark.slow
def test_one_hour_en_is_near_bm25_and_finds_more_in_a_hundred(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    folder = "examples/data/scifact"
    flags = ["--output_dir", str(tmp_path / "out"), "--train_file", folder, "--eval_retrieval_dir", folder]
    kinds = [ModelArguments, DataArguments, PretrainingArguments, GURArguments, MiningSettings]
    measured = run(*parse_arguments(kinds, ["recipes/one_hour_en.yaml", *flags]))
    after, bm25 = measured["retrieval"]["after"], measured["bm25"]
    assert after["ndcg@10"] > bm25["ndcg@10"] - 0.02 and after["recall@100"] > bm25["recall@100"] + 0.02


@pytest.mark.slow
def test_fine_tuning_on_titles_makes_the_starter_better(tmp_path, monkeypatch):
    pytest.importorskip("sentence_transformers")
    import run_finetune

    monkeypatch.chdir(ROOT)
    flags = ["recipes/finetune.yaml", "--output_dir", str(tmp_path / "tuned")]
    measured = run_finetune.run(*parse_arguments(run_finetune.argument_groups(), flags))
    before, after = (measured["retrieval"][when] for when in ("before", "after"))
    assert after["ndcg@10"] > before["ndcg@10"] + 0.07 and after["recall@100"] > before["recall@100"] + 0.15
    assert measured["differences"]["before"]["p_value"] < 0.001
