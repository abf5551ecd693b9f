"""The front door: any format in, a complete folder out, and one clear line for every mistake."""

import copy
import csv
import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fresh_process import in_fresh_process, run_script
from safetensors.torch import load_file
from tokenizers_for_tests import SENTENCES, bert_tokenizer, unigram_tokenizer
from toy_models import encoder_config
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertForMaskedLM
from two_processes import run_two_processes

import run_pretrain
from modeling_retromae import RetroMAEForMaskedLM, RetroMAEForPreTraining
from retrieval_pretraining.arguments import PretrainingArguments, SearchArguments, parse_arguments

ROOT = Path(__file__).parents[1]
TINY = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=48,max_position_embeddings=64"


@pytest.fixture(scope="module")
def backbone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("backbone")
    torch.manual_seed(0)
    BertForMaskedLM(encoder_config(vocab_size=len(bert_tokenizer()))).save_pretrained(folder)
    bert_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def text_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def retrieval_folder(tmp_path) -> Path:
    folder = tmp_path / "toy_beir"
    (folder / "qrels").mkdir(parents=True)
    with open(folder / "corpus.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"_id": i, "title": "", "text": text}) + "\n" for i, text in enumerate(SENTENCES))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": SENTENCES[3]}) + "\n")
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t3\t1\n")
    return folder


def door(*arguments, **named) -> int:
    flags = [word for name, value in named.items() for word in (f"--{name}", str(value))]
    return run_pretrain.main([*map(str, arguments), "--use_cpu", "--disable_tqdm", "True", *flags])


def test_every_format_gives_the_same_passages(tmp_path, backbone, capsys):
    passages = SENTENCES[:20]
    rows = [{"text": passage, "other": [i]} for i, passage in enumerate(passages)]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (tmp_path / "a.txt").write_text("\n".join(passages), encoding="utf-8")
    (tmp_path / "a.jsonl").write_text("".join(lines), encoding="utf-8")
    with open(tmp_path / "a.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["text"], *([passage] for passage in passages)])
    pq.write_table(pa.table({"text": passages}), tmp_path / "a.parquet")
    with gzip.open(tmp_path / "a.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(lines)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/one.jsonl").write_text("".join(lines[:7]), encoding="utf-8")
    (tmp_path / "folder/two.jsonl").write_text("".join(lines[7:]), encoding="utf-8")
    weights = []
    for name in ("a.txt", "a.jsonl", "a.csv", "a.parquet", "a.jsonl.gz", "folder"):
        output = tmp_path / f"out {name}"
        status = door(
            model_name_or_path=backbone, train_file=tmp_path / name, output_dir=output, max_steps=2, save_strategy="no"
        )
        assert status == 0
        printed = capsys.readouterr().out
        assert "20 documents from" in printed and "0 dropped" in printed and "20 passages" in printed
        weights.append(load_file(output / "model.safetensors")["decoder.layer.output.dense.weight"])
    assert all(torch.equal(weight, weights[0]) for weight in weights)


def test_a_run_writes_a_complete_folder(tmp_path, backbone, text_file, retrieval_folder, capsys):
    output = tmp_path / "out"
    assert 0 == door(
        model_name_or_path=backbone,
        train_file=text_file,
        output_dir=output,
        max_steps=4,
        eval_strategy="steps",
        eval_steps=2,
        validation_split_percentage=10,
        eval_retrieval_dir=retrieval_folder,
        objective="dupmae",
    )
    files = {path.name for path in output.iterdir()}
    assert {"train_results.json", "eval_results.json", "all_results.json", "README.md", "encoder"} <= files
    assert {"model.safetensors", "config.json", "modeling_retromae.py", "tokenizer.json", "modules.json"} <= files
    results = json.loads((output / "all_results.json").read_text())
    for name in (
        "train_decoder_mlm_loss",
        "eval_bag_of_words_loss",
        "retrieval_before_ndcg@10",
        "retrieval_after_ndcg@10",
    ):
        assert name in results, sorted(results)
    card = (output / "README.md").read_text(encoding="utf-8")
    assert "dupmae" in card and "fine-tune" in card and str(tmp_path) not in card
    plain = AutoModelForMaskedLM.from_pretrained(output / "encoder")
    trained = RetroMAEForPreTraining.from_pretrained(output)
    assert torch.equal(plain.bert.embeddings.word_embeddings.weight, trained.get_input_embeddings().weight)
    source = BertForMaskedLM.from_pretrained(backbone)
    for name, parameter in plain.named_parameters():
        if parameter.dim() > 1:  # every matrix was trained
            assert not torch.equal(parameter, source.get_parameter(name)), name
    printed = capsys.readouterr().out
    assert "encoder 100 %, MLM head loaded, decoder initialised" in printed
    assert "| before |" in printed and "SentenceTransformer" in printed
    assert re.search(
        r"^batches of like lengths: \S+% of their tokens are padding, in random order \S+%$", printed, re.M
    )


def test_from_nothing_but_text_with_a_corpus_start(tmp_path, text_file, capsys):
    assert 0 == door(
        config_name="bert",
        config_overrides=TINY,
        tokenizer_vocab_size=300,
        init_weights="corpus",
        train_file=text_file,
        output_dir=tmp_path / "out",
        max_steps=2,
        max_seq_length=32,
    )
    printed = capsys.readouterr().out
    assert "bert from scratch" in printed and "training a tokenizer" in printed
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.model_max_length == 32 and len(tokenizer) <= 300


def test_no_epoch_measures_the_start_once_and_trains_nothing(tmp_path, backbone, text_file, retrieval_folder, capsys):
    out = tmp_path / "out"
    flags = {"model_name_or_path": backbone, "train_file": text_file, "output_dir": out}
    assert door(**flags, num_train_epochs=0, eval_retrieval_dir=retrieval_folder) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"^\| (\w+) ", printed, flags=re.MULTILINE)[-2:] == ["BM25", "model"]
    before, after = (load_file(each / "model.safetensors") for each in (backbone, out / "encoder"))
    assert after and all(torch.equal(weight, before[name]) for name, weight in after.items())
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "| steps | 0 |" in card and "| **this model** |" in card
    assert "learning rate" not in card and "before this training" not in card and "| encoder_mlm_loss |" not in card
    assert "by no step of training" in card and "| losses |" not in card and "padding" not in printed
    assert json.loads((out / "trainer_state.json").read_text())["global_step"] == 0
    assert "masked" not in card.split("## Use")[1] and "precision" not in card
    assert door(**flags, num_train_epochs=1) == 2  # nor is it overwritten
    assert "holds the model of an earlier run" in error_line(capsys)


def test_frozen_weights_stay_as_they_are(tmp_path, backbone, text_file, capsys):
    flags = {"model_name_or_path": backbone, "train_file": text_file, "max_steps": 2}
    assert door("--freeze", "position_embeddings", "token_type", **flags, output_dir=tmp_path / "out") == 0
    assert "not trained: " in capsys.readouterr().out
    before, after = (load_file(each / "model.safetensors") for each in (backbone, tmp_path / "out/encoder"))
    same = {name for name, weight in after.items() if torch.equal(weight, before[name])}
    assert {name for name in after if "position_embeddings" in name or "token_type" in name} == {
        name for name in same if "embeddings" in name
    }
    assert not any("attention" in name and name.endswith("weight") for name in same)
    assert door("--freeze", "positions", **flags, output_dir=tmp_path / "other") == 2
    assert "--freeze positions: no weight of this model has it in its name" in error_line(capsys)
    assert door("--freeze", "e", **flags, output_dir=tmp_path / "other") == 2
    assert "leaves nothing to train" in error_line(capsys)


def test_a_share_of_the_start_is_in_the_finished_weights_also_after_a_resume(tmp_path, text_file):
    flags = {"config_name": "bert", "config_overrides": TINY, "tokenizer_vocab_size": 300, "init_weights": "corpus"}
    flags |= {"train_file": text_file, "learning_rate": 1e-2, "save_steps": 2}
    assert door(**flags, output_dir=tmp_path / "start", num_train_epochs=0) == 0
    assert door(**flags, output_dir=tmp_path / "trained", max_steps=4) == 0
    assert door(**flags, output_dir=tmp_path / "mixed", max_steps=4, start_share=0.75) == 0
    start, trained, mixed = (
        load_file(tmp_path / name / "model.safetensors") for name in ("start", "trained", "mixed")
    )
    for name, weight in mixed.items():
        assert torch.allclose(weight, torch.lerp(trained[name], start[name], 0.75), atol=1e-6), name
    assert not all(torch.equal(trained[name], start[name]) for name in mixed)
    card = (tmp_path / "mixed/README.md").read_text(encoding="utf-8")
    assert "| of the start in these weights | 75% |" in card
    # What goes on is what was trained, and what it is mixed with is still the start, which is not made again.
    flags |= {"max_steps": 4, "start_share": 0.75, "resume_from_checkpoint": tmp_path / "mixed/checkpoint-2"}
    assert door(**flags, output_dir=tmp_path / "on") == 0
    again = load_file(tmp_path / "on/model.safetensors")
    assert all(torch.equal(again[name], mixed[name]) for name in mixed)


def test_the_mlm_control_has_no_decoder(tmp_path, backbone, text_file):
    out = tmp_path / "out"
    assert 0 == door(model_name_or_path=backbone, train_file=text_file, output_dir=out, max_steps=2, objective="mlm")
    assert not any(name.startswith("decoder") for name in load_file(out / "model.safetensors"))
    assert isinstance(RetroMAEForMaskedLM.from_pretrained(out), RetroMAEForMaskedLM)
    assert "train_encoder_mlm_loss" in json.loads((out / "all_results.json").read_text())


def test_a_recipe_is_a_run_and_flags_override_it(tmp_path, backbone, text_file):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"model_name_or_path: {backbone}\ntrain_file: {text_file}\noutput_dir: {tmp_path / 'recipe'}\n"
        "max_steps: 3\nlearning_rate: 1e-3\nmax_seq_length: 24\ndecoder_query: embedding\nuse_cpu: true\n"
    )
    assert run_pretrain.main([str(recipe), "--max_steps", "1", "--output_dir", str(tmp_path / "flag")]) == 0
    state = json.loads((tmp_path / "flag/trainer_state.json").read_text())
    assert state["global_step"] == 1
    arguments = json.loads((tmp_path / "flag/training_args.json").read_text())
    assert arguments["learning_rate"] == 1e-3
    assert RetroMAEForPreTraining.from_pretrained(tmp_path / "flag").config.decoder_query == "embedding"


def test_null_leaves_out_what_a_recipe_sets(tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("output_dir: out\neval_retrieval_dir: there\nlearning_rate: 1e-3\nuse_cpu: true\n")
    flags = ["--eval_retrieval_dir", "null", "--learning_rate", "null", "--seed", "3"]
    search, training = parse_arguments([SearchArguments, PretrainingArguments], [str(recipe), *flags])
    assert (search.eval_retrieval_dir, training.learning_rate, training.seed) == (None, 1e-4, 3)
    assert run_pretrain.main([str(recipe), "--eval_retrieval_dirr", "null"]) == 2
    assert "did you mean eval_retrieval_dir?" in error_line(capsys)


def test_streaming_trains_for_max_steps_over_several_passes(tmp_path, backbone):
    (tmp_path / "t.txt").write_text("\n".join(SENTENCES[:25]), encoding="utf-8")
    assert 0 == door(
        "--streaming",
        model_name_or_path=backbone,
        train_file=tmp_path / "t.txt",
        output_dir=tmp_path / "out",
        max_steps=10,
        per_device_train_batch_size=8,
    )
    assert json.loads((tmp_path / "out/trainer_state.json").read_text())["global_step"] == 10


def error_line(capsys) -> str:
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, lines
    return lines[0]


MISTAKES = {
    "no data": ({"train_file": None}, "--train_file"),
    "missing file": ({"train_file": "nowhere/t.txt"}, "nowhere/t.txt"),
    "missing column": ({"text_column_name": "body", "train_file": "{folder}/t.jsonl"}, "body"),
    "no model": ({"model_name_or_path": None}, "--config_name"),
    "unknown model": ({"model_name_or_path": "{folder}/nothing"}, "--model_name_or_path"),
    "no output": ({"output_dir": None}, "--output_dir"),
    "too long": ({"max_seq_length": 65}, "use at most 64"),
    "streaming without steps": ({"streaming": True, "max_steps": -1}, "--max_steps"),
    "probability": ({"encoder_mlm_probability": 1.5}, "--encoder_mlm_probability"),
    "objective": ({"objective": "gpt"}, "gpt"),
    "decoder of mlm": ({"objective": "mlm", "decoder_query": "position"}, "--decoder_query"),
    "fp16 on a CPU": ({"fp16": True}, "--fp16"),
    "typo": ({"encoder_mlm_probabilty": 0.3}, "did you mean --encoder_mlm_probability?"),
    "not a number": ({"max_steps": "many"}, "many"),
    "retrieval folder": ({"eval_retrieval_dir": "{folder}"}, "corpus.jsonl"),
    "output is a file": ({"output_dir": "{folder}/t.jsonl"}, "--output_dir"),
    "output is the model": ({"output_dir": "{backbone}"}, "overwritten"),
    "batch of none": ({"per_device_train_batch_size": 0}, "--per_device_train_batch_size"),
    "share of the start": ({"start_share": 1}, "--start_share is 0 or more and below 1"),
    "epochs below 0": ({"num_train_epochs": -1, "max_steps": -1}, "--num_train_epochs is 0 (no training) or more"),
    "label smoothing": ({"label_smoothing_factor": 0.1}, "--label_smoothing_factor"),
    "abbreviation": ({"encoder_mlm": 0.3}, "--encoder_mlm"),
    "best of nothing": ({"load_best_model_at_end": True}, "load_best_model_at_end"),
    "unmeasured metric": (
        {
            "metric_for_best_model": "eval_retrieval_ndcg@10",
            "eval_strategy": "steps",
            "validation_split_percentage": 10,
        },
        "--eval_retrieval_dir",
    ),
    "no such folder": ({"model_name_or_path": "./no/such"}, "no such folder"),
    "no such type": ({"model_name_or_path": None, "config_name": "brt", "tokenizer_name": "{backbone}"}, "roberta"),
    "no such field": (
        {
            "model_name_or_path": None,
            "config_name": "bert",
            "tokenizer_name": "{backbone}",
            "config_overrides": "hidden_sise=3",
        },
        "hidden_sise",
    ),
    "no such activation": (
        {
            "model_name_or_path": None,
            "config_name": "bert",
            "tokenizer_name": "{backbone}",
            "config_overrides": "hidden_act=gellu",
        },
        "gellu",
    ),
    "unknown script": ({"train_file": "{folder}/thai.txt"}, "not one token"),
    "evaluation of nothing": ({"eval_strategy": "epoch"}, "--validation_file"),
    "drop_last of all": (
        {"dataloader_drop_last": True, "per_device_train_batch_size": 500},
        "--dataloader_drop_last",
    ),
    "overlap of nothing": ({"overlap": 4, "overflow": "truncate"}, "--overlap"),
    "overlap of all": ({"overlap": 40, "max_seq_length": 32}, "overlap of 40"),
    "no such boundary": ({"chunk_boundary": "page"}, "chunk_boundary"),
    "resume without checkpoint": ({"resume_from_checkpoint": "True"}, "--resume_from_checkpoint"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_option(mistake, tmp_path, backbone, text_file, capsys):
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "thai.txt").write_text("\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22\n" * 5, encoding="utf-8")
    changes, expected = MISTAKES[mistake]
    settings = {
        "model_name_or_path": backbone,
        "train_file": text_file,
        "output_dir": tmp_path / "out",
        "max_steps": 2,
        **changes,
    }
    settings = {
        name: str(value).replace("{folder}", str(tmp_path)).replace("{backbone}", str(backbone))
        for name, value in settings.items()
        if value is not None
    }
    assert door(**settings) == 2
    assert expected in error_line(capsys)


@pytest.mark.parametrize("content", [b"", b"\n  \n\xe3\x80\x80\n"])
@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_a_text_without_a_passage_is_one_line(content, suffix, tmp_path, backbone, capsys):
    path = tmp_path / f"empty.{suffix}"
    path.write_bytes(content)
    assert door(model_name_or_path=backbone, train_file=path, output_dir=tmp_path / "out", max_steps=1) == 2
    line = error_line(capsys)
    assert f"empty.{suffix}" in line


def test_three_short_lines_train_at_full_length(tmp_path, backbone):
    (tmp_path / "t.txt").write_text("a cat\n好\nok\n", encoding="utf-8")
    out = tmp_path / "out"
    assert door(model_name_or_path=backbone, train_file=tmp_path / "t.txt", output_dir=out, num_train_epochs=1) == 0


def test_a_long_document_is_cut_as_the_flags_say(tmp_path, backbone, capsys, caplog):
    # D06: 3,000 tokens and 30, each a word, without a mark that ends a sentence.
    (tmp_path / "t.txt").write_text(" ".join(["the"] * 3000) + "\n" + " ".join(["the"] * 30) + "\n")

    def passages(**flags):
        options = {
            "model_name_or_path": backbone,
            "train_file": tmp_path / "t.txt",
            "max_seq_length": 64,
            "max_steps": 1,
        }
        assert door(output_dir=tmp_path / "_".join(["out", *flags]), save_strategy="no", **options, **flags) == 0
        return int(re.search(r"2 documents, ([\d,]+) passages", capsys.readouterr().out).group(1).replace(",", ""))

    assert passages() == -(-3000 // 62) + 1
    assert passages(overlap=10) == 1 + -(-(3000 - 62) // 52) + 1
    assert passages(overflow="truncate") == 2 and "discarded 2,938 tokens of 1 documents" in caplog.text


def test_an_earlier_run_is_not_overwritten(tmp_path, backbone, text_file, capsys):
    settings = {
        "model_name_or_path": backbone,
        "train_file": text_file,
        "output_dir": tmp_path / "out",
        "max_steps": 2,
    }
    assert door(**settings) == 0
    assert (tmp_path / "out/checkpoint-2").is_dir()
    assert door(**settings) == 2
    assert "--resume_from_checkpoint True" in error_line(capsys)
    assert door(**{**settings, "max_steps": 4}, resume_from_checkpoint="True") == 0
    assert json.loads((tmp_path / "out/trainer_state.json").read_text())["global_step"] == 4


def test_a_finished_run_is_neither_overwritten_nor_trained_further(tmp_path, backbone, text_file, capsys):
    settings = {
        "model_name_or_path": backbone,
        "train_file": text_file,
        "output_dir": tmp_path / "out",
        "max_steps": 2,
    }
    assert door(**settings, save_strategy="no") == 0
    before = (tmp_path / "out/model.safetensors").read_bytes()
    assert door(**settings, save_strategy="no", seed=3) == 2
    assert "earlier run" in error_line(capsys)
    settings["output_dir"] = tmp_path / "saved"
    assert door(**settings) == 0
    capsys.readouterr()
    assert door(**settings, resume_from_checkpoint="True") == 2
    assert "is the end of its run (2 steps)" in error_line(capsys)
    assert (tmp_path / "out/model.safetensors").read_bytes() == before


def test_a_resumed_run_says_what_was_changed(tmp_path, backbone, text_file, capsys):
    settings = {"model_name_or_path": backbone, "train_file": text_file, "output_dir": tmp_path / "out"}
    assert door(**settings, max_steps=2) == 0
    capsys.readouterr()
    assert door(**settings, max_steps=4, objective="dupmae", resume_from_checkpoint="True") == 2
    assert "started with retromae" in error_line(capsys)
    assert door(**settings, max_steps=4, max_seq_length=20, resume_from_checkpoint="True") == 0
    assert "warning: resumed with another max_seq_length: None -> 20" in capsys.readouterr().out


def test_a_checkpoint_without_the_optimizer_is_not_resumed(tmp_path, backbone, text_file, capsys):
    settings = {"model_name_or_path": backbone, "train_file": text_file, "output_dir": tmp_path / "out"}
    assert door(**settings, max_steps=2, save_only_model=True) == 0
    capsys.readouterr()
    assert door(**settings, max_steps=4, resume_from_checkpoint="True") == 2
    assert "without the optimizer" in error_line(capsys)


def test_the_tokenizer_of_another_model_is_refused(tmp_path, backbone, text_file, capsys):
    unigram_tokenizer().save_pretrained(tmp_path / "other")
    settings = {
        "model_name_or_path": backbone,
        "train_file": text_file,
        "output_dir": tmp_path / "out",
        "max_steps": 1,
    }
    assert door(**settings, tokenizer_name=tmp_path / "other") == 2
    assert "another id" in error_line(capsys)
    larger = copy.deepcopy(bert_tokenizer())
    larger.add_tokens(["sensorless"])
    larger.save_pretrained(tmp_path / "larger")
    assert door(**settings, tokenizer_name=tmp_path / "larger") == 0
    model = RetroMAEForPreTraining.from_pretrained(tmp_path / "out")
    assert model.config.vocab_size == len(bert_tokenizer()) + 1


def test_going_on_from_dupmae_as_retromae_leaves_the_bag_of_words_out(tmp_path, backbone, text_file):
    settings = {"train_file": text_file, "max_steps": 1}
    assert door(**settings, model_name_or_path=backbone, output_dir=tmp_path / "dup", objective="dupmae") == 0
    assert door(**settings, model_name_or_path=tmp_path / "dup", output_dir=tmp_path / "retro") == 0
    assert RetroMAEForPreTraining.from_pretrained(tmp_path / "dup").config.bow_loss_weight == 0.1
    assert RetroMAEForPreTraining.from_pretrained(tmp_path / "retro").config.bow_loss_weight == 0.0


@pytest.mark.parametrize("kind", ["modernbert", "roberta", "deberta-v2"])
def test_overrides_make_a_model_from_scratch_that_loads_again(kind, tmp_path, text_file):
    out = tmp_path / "out"
    assert 0 == door(
        config_name=kind,
        config_overrides="num_hidden_layers=2, hidden_size=32,num_attention_heads=2,intermediate_size=48",
        tokenizer_vocab_size=300,
        train_file=text_file,
        output_dir=out,
        max_steps=1,
        max_seq_length=32,
    )
    assert RetroMAEForPreTraining.from_pretrained(out).config.num_hidden_layers == 2
    assert AutoModelForMaskedLM.from_pretrained(out / "encoder").config.num_hidden_layers == 2


def test_streaming_is_shuffled_and_resumes_exactly(tmp_path, backbone, text_file):
    # 60 lines are 8 steps: the run is stopped, and resumed, in its second pass.
    settings = {"model_name_or_path": backbone, "train_file": text_file, "per_device_train_batch_size": 8}
    settings |= {"save_strategy": "steps", "save_steps": 5, "lr_scheduler_type": "constant"}
    assert door("--streaming", **settings, max_steps=12, output_dir=tmp_path / "whole") == 0
    for steps, more in ((10, {}), (12, {"resume_from_checkpoint": "True"})):
        assert door("--streaming", **settings, max_steps=steps, output_dir=tmp_path / "half", **more) == 0
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "half"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    in_order = tmp_path / "in order"
    assert door("--streaming", **settings, max_steps=12, output_dir=in_order, shuffle_buffer_size=1) == 0
    third = load_file(in_order / "model.safetensors")
    assert not all(torch.equal(first[name], third[name]) for name in first)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("learning_rate:", "no value"),
        ("max_steps: 2.5", "2.5"),
        ("save_stratgy: no", "did you mean save_strategy?"),
        ("- a list", "`name: value`"),
    ],
)
def test_a_mistake_in_a_recipe_is_one_line(line, expected, tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"{line}\n")
    assert run_pretrain.main([str(recipe)]) == 2
    assert expected in error_line(capsys)
    assert run_pretrain.main(["--max_steps", "1", "--output_dir", "x", str(recipe)]) == 2
    assert "comes first" in error_line(capsys)


def test_a_bare_no_in_a_recipe_is_a_strategy(tmp_path, backbone, text_file):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"save_strategy: no\nmodel_name_or_path: {backbone}\nuse_cpu: true\nmax_steps: 1\n")
    arguments = [str(recipe), "--train_file", str(text_file), "--output_dir", str(tmp_path / "out")]
    assert run_pretrain.main(arguments) == 0
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_the_snippets_of_the_card_run_as_they_stand(tmp_path, backbone, text_file):
    assert door(model_name_or_path=backbone, train_file=text_file, output_dir=tmp_path / "my model", max_steps=1) == 0
    card = (tmp_path / "my model/README.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    assert len(snippets) == 3
    code = snippets[0] + "\nfirst = vectors\n"
    for snippet in snippets[1:]:
        code += snippet + "\nassert abs(vectors.detach().numpy() - first).max() < 1e-5\n"
    in_fresh_process(code, tmp_path / "my model", tmp_path)


def test_ctrl_c_saves_and_the_printed_command_goes_on_to_the_same_end(tmp_path, backbone, text_file):
    flags = ["--model_name_or_path", backbone, "--train_file", text_file, "--use_cpu", "--disable_tqdm", "True"]
    flags += ["--max_steps", 30, "--logging_steps", 1, "--save_strategy", "steps", "--save_steps", 30]
    flags += ["--resume_from_checkpoint", "False", "--per_device_train_batch_size", 4]
    command = [str(word) for word in (ROOT / "run_pretrain.py", *flags, "--output_dir")]
    whole, broken = tmp_path / "whole", tmp_path / "broken off"
    assert run_script([*command, whole], tmp_path).status == 0
    process = subprocess.Popen(
        [sys.executable, *command, str(broken)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # With several threads MKL may sum in another order when the machine is busy.
        env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "'epoch'" in line and process.poll() is None and not any("Stopped" in said for said in lines):
            process.send_signal(signal.SIGINT)
            break
    rest, _ = process.communicate(timeout=200)
    said = "".join(lines) + rest
    assert process.returncode == 130, said
    assert "Stopped after step" in said
    printed = next(line.strip() for line in said.splitlines() if line.strip().startswith("python "))
    assert run_script(shlex.split(printed)[1:], tmp_path).status == 0
    first, second = (load_file(folder / "model.safetensors") for folder in (whole, broken))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_two_processes_make_one_model_through_the_door(tmp_path, text_file, retrieval_folder):
    flags = ["--use_cpu", "--ddp_backend", "gloo", "--disable_tqdm", "True", "--config_name", "bert"]
    flags += ["--config_overrides", TINY, "--tokenizer_vocab_size", "300", "--init_weights", "corpus"]
    flags += ["--train_file", str(text_file), "--max_seq_length", "32", "--max_steps", "3"]
    flags += ["--eval_retrieval_dir", str(retrieval_folder), "--output_dir", str(tmp_path / "out")]
    result = run_two_processes([str(ROOT / "run_pretrain.py"), *flags], output=tmp_path / "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("The model is in") == 1 and result.stdout.count("from scratch") == 1
    assert (tmp_path / "out/README.md").is_file()
    RetroMAEForPreTraining.from_pretrained(tmp_path / "out")
    AutoModelForMaskedLM.from_pretrained(tmp_path / "out/encoder")


def test_help_shows_the_defaults_of_the_masks(capsys):
    with pytest.raises(SystemExit) as stop:
        run_pretrain.main(["--help"])
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--encoder_mlm_probability" in text and "(default: 0.3)" in text and "(default: 0.5)" in text


def test_the_shipped_recipes_name_only_what_exists(tmp_path):
    import run_finetune
    from retrieval_pretraining.arguments import PairArguments, parse_arguments
    from retrieval_pretraining.evaluation_arguments import EvaluationArguments
    from retrieval_pretraining.mining_settings import MiningSettings

    recipes = sorted((ROOT / "recipes").glob("*.yaml"))
    assert recipes
    for recipe in recipes:
        given = [str(recipe), "--output_dir", str(tmp_path), "--train_file", "x.txt"]
        if recipe.name.startswith("evaluate"):
            (evaluation,) = parse_arguments([EvaluationArguments], given[:-2])
            evaluation.check()
        elif recipe.name.startswith("mine_"):
            for group in parse_arguments([PairArguments, MiningSettings], given):
                group.check()
        elif recipe.name.startswith("finetune"):
            pytest.importorskip("sentence_transformers")
            for group in parse_arguments(run_finetune.argument_groups(), given):
                getattr(group, "check", lambda: None)()
        else:
            model, data, args, gur, mining, cleaning, card = parse_arguments(run_pretrain.ARGUMENTS, given)
            model.check()
            data.check(max_steps=args.max_steps, init_weights=model.init_weights)
            gur.check(objective=model.objective, from_scratch=model.config_name is not None)
            mining.check()
            cleaning.check()
            card.check()
