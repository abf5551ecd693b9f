"""The door of the experiments: one command from files to tables; what is wrong is one sentence and an exit status."""

import json

import pytest
import yaml
from experiment_doors import calls, experiment, write_doors, write_experiment_file
from test_run_evaluation import write_beir, write_lines
from tokenizers_for_tests import SENTENCES, bert_tokenizer
from toy_models import encoder_config

from retrieval_pretraining import experiment_runs
from run_experiments import main

pytest.importorskip("matplotlib")


def write_file(path, **changes):
    """The experiment on one test set: tables and plots take most of the time."""
    stages = experiment()["stages"]
    del stages["evaluate"]["rerank_candidates"]
    stages["evaluate"]["eval_retrieval_dir"] = ["{data}/one"]
    write_experiment_file(path, **{"stages": stages, **changes})


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment_runs, "ROOT", write_doors(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_file(tmp_path / "mine.yaml")
    return tmp_path


def test_one_command_runs_all_and_writes_the_tables(place, capsys):
    assert main(["mine.yaml", "--output_dir", "out"]) == 0
    printed = capsys.readouterr().out
    assert "mine: long against short" in printed and "mine: 9 run\n" in printed
    assert "## 20" in printed and "The tables and plots are in out/mine." in printed
    results = json.loads((place / "out/mine/results.json").read_text(encoding="utf-8"))
    assert results["experiment"]["seeds"] == [0, 1]
    assert results["command"] == "python run_experiments.py mine.yaml --data_dir data"
    assert results["command"].split()[1] in (place / "out/mine/table.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in (place / "out/mine/plots").iterdir()) == [
        *("mrr-at-10.png", "ndcg-at-10.png", "recall-at-100.png"),
    ]
    assert main(["mine.yaml", "--output_dir", "out"]) == 0
    assert len(calls(place)) == 9 and "0 run, 9 there already" in capsys.readouterr().out


def test_a_dry_run_prints_the_commands_and_runs_nothing(place, capsys):
    assert main(["mine.yaml", "--output_dir", "out", "--dry_run", "--arms", "long", "--seeds", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "# long, seed 4: pretrain" and lines[2] == "# long, seed 4: evaluate" and len(lines) == 4
    assert lines[1].startswith("python run_pretrain.py --") and "--max_steps 300 --seed 4" in lines[1]
    assert lines[1].endswith("--output_dir out/mine/long/seed-4/pretrain")
    assert calls(place) == [] and not (place / "out").exists()


def test_missing_data_are_one_sentence_before_anything_runs(place, capsys):
    write_file(place / "second.yaml", arms={"short": {"pretrain": {"train_file": ["{data}/none"]}}})
    assert main(["mine.yaml", "second.yaml", "--output_dir", "out"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: second: data/none is not there; --data_dir says where the data lie")
    assert printed.err.count("\n") == 1 and calls(place) == []
    assert main(["mine.yaml", "--data_dir", "nowhere"]) == 2
    assert "nowhere/one is not there" in capsys.readouterr().err
    write_file(place / "mine.yaml", arms={"short": {"pretrain": {"train_file": ["{data}/none"]}}, "long": {}})
    assert main(["mine.yaml", "--output_dir", "out", "--arms", "long", "--seeds", "0"]) == 0  # which does not need it


def test_a_failed_arm_makes_the_exit_status(place, capsys):
    arms = experiment()["arms"]
    write_file(place / "mine.yaml", arms={**arms, "unlucky": {"pretrain": {"max_steps": 13}}}, seeds=[0])
    assert main(["mine.yaml", "--output_dir", "out"]) == 1
    printed = capsys.readouterr().out
    assert "| error: thirteen brings bad luck" in printed and "failed: unlucky, seed 0: pretrain" in printed
    assert "Missing: unlucky, seed 0." in printed  # the table of the others is there


def test_only_tables_runs_nothing(place, capsys):
    assert main(["mine.yaml", "--output_dir", "out", "--only_tables"]) == 0
    assert "nothing to make a table of yet" in capsys.readouterr().out
    main(["mine.yaml", "--output_dir", "out", "--arms", "untouched", "short", "--seeds", "0"])
    done = len(calls(place))
    capsys.readouterr()
    assert main(["mine.yaml", "--output_dir", "out", "--only_tables"]) == 0
    assert len(calls(place)) == done == 3
    printed = capsys.readouterr().out
    assert "Missing: short, seed 1; long, seed 0; long, seed 1." in printed and "mine: 0" not in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Give the file of an experiment"),
        (["--dry_run"], "Give the file of an experiment"),
        (["nowhere.yaml"], "There is no experiment nowhere.yaml"),
        (["mine.yaml", "--arm", "x"], "There is no option --arm; did you mean --arms?"),
        (["mine.yaml", "--arms", "x"], "mine has no arm x: there are long, short, untouched."),
        (["mine.yaml", "--seeds", "1", "1"], "--seeds are different numbers"),
        (["mine.yaml", "--dry_run", "--only_tables"], "both run nothing"),
        (["mine.yaml", "other/mine.yaml"], "Two experiments are called mine"),
    ],
)
def test_a_mistake_is_one_sentence(place, capsys, words, message):
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.startswith("error: ") and printed.count("\n") == 1
    assert calls(place) == []


def test_a_stop_says_how_to_go_on(place, capsys, monkeypatch):
    def stopped(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("run_experiments.run_jobs", stopped)
    assert main(["mine.yaml"]) == 130
    assert "the same command goes on from there" in capsys.readouterr().err


@pytest.mark.slow
def test_an_experiment_with_the_doors_of_this_project(tmp_path, monkeypatch):
    """From two sentences' worth of training to the table, by real commands."""
    import torch
    from transformers import BertForMaskedLM

    pytest.importorskip("bm25s")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    BertForMaskedLM(encoder_config(vocab_size=len(bert_tokenizer()))).save_pretrained(tmp_path / "tiny")
    bert_tokenizer().save_pretrained(tmp_path / "tiny")
    write_beir(tmp_path / "data/small")
    rows = [{"text": text, "label": "short" if len(text.split()) < 7 else "long"} for text in SENTENCES]
    write_lines(tmp_path / "data/topics/train.jsonl", rows[::2])
    write_lines(tmp_path / "data/topics/test.jsonl", rows[1::2])
    common = {"use_cpu": True, "max_steps": 3, "per_device_train_batch_size": 4, "max_seq_length": 32}
    stages = {
        "pretrain": {
            **{"door": "run_pretrain.py", "model_name_or_path": "{model}", "train_file": ["{data}/small"]},
            **common,
        },
        "evaluate": {
            **{"door": "run_evaluation.py", "model_name_or_path": "{model}", "eval_retrieval_dir": ["{data}/small"]},
            **{"eval_classification_dir": ["{data}/topics"], "shots": [2, "all"], "few_shot_seeds": 2},
            **{"rerank_candidates": "bm25", "bm25": True, "random_weights": False, "seed": 42},
        },
    }
    arms = {"untouched": {"pretrain": None}, "mlm": {"pretrain": {"objective": "mlm"}}, "retromae": {}}
    file = {"stages": stages, "arms": arms, "model": "./tiny", "control": "mlm", "seeds": [0]}
    (tmp_path / "real.yaml").write_text(yaml.safe_dump(file, sort_keys=False), encoding="utf-8")
    assert main(["real.yaml", "--output_dir", "out", "--delete_weights"]) == 0
    results = json.loads((tmp_path / "out/real/results.json").read_text(encoding="utf-8"))
    systems = {system["name"]: system for system in results["systems"]}
    assert set(systems) == {"BM25", *arms, *(f"{arm} + BM25" for arm in arms)}
    assert systems["mlm"]["tokens"] > 0 and systems["mlm"]["seconds"] > 0
    assert systems["mlm"]["tokens"] == systems["retromae"]["tokens"]  # the same text in the same order
    evaluation = json.loads((tmp_path / "out/real/mlm/seed-0/evaluate/results.json").read_text(encoding="utf-8"))
    ours = {(s["dataset"], s["metric"]): s["value"] for s in results["scores"] if s["system"] == "mlm"}
    theirs = {(s["dataset"], s["metric"]): s["value"] for s in evaluation["scores"] if s["system"] == "pretrain"}
    compared = ours.keys() & theirs.keys()
    assert {("small", "ndcg@10"), ("topics", "zero_shot_accuracy"), ("topics", "accuracy@2")} <= compared
    assert {place: ours[place] for place in compared} == pytest.approx({place: theirs[place] for place in compared})
    assert not (tmp_path / "out/real/mlm/seed-0/pretrain/model.safetensors").exists()
