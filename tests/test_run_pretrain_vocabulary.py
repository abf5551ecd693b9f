"""The front door with another vocabulary: --add_tokens, and --tokenizer_vocab_size for an existing model."""

import re
from pathlib import Path

import pytest
import torch
from fresh_process import in_fresh_process
from gur_runs import FROM_BACKBONE, gur, make_inputs, weights_of
from tokenizers_for_tests import SENTENCES, bert_tokenizer, t5_tokenizer
from toy_models import encoder_config
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoTokenizer, BertForMaskedLM

import run_pretrain
from modeling_gur import GURForPreTraining
from modeling_retromae import RetroMAEForPreTraining
from retrieval_pretraining.added_terms import own_pieces
from retrieval_pretraining.passages import sentinel_ids

TERMS = ["sensorless control", "magnet motor", "无传感器", "the"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """A BERT, a T5, text of 180 documents, pairs, and terms: of them two become tokens, or three."""
    folder = make_inputs(tmp_path_factory.mktemp("shared"))
    torch.manual_seed(0)
    BertForMaskedLM(encoder_config(vocab_size=len(bert_tokenizer()))).save_pretrained(folder / "backbone")
    bert_tokenizer().save_pretrained(folder / "backbone")
    (folder / "text.txt").write_text("\n".join(SENTENCES * 3) + "\n", encoding="utf-8")
    (folder / "terms.txt").write_text("\n".join([*TERMS, "", "magnet motor"]), encoding="utf-8-sig")
    (folder / "empty.txt").write_text("\n")
    (folder / "spaces.txt").write_text("  \n\t\n")
    (folder / "good motor.txt").write_text("good motor\nand the\n")
    return folder


def door(shared: Path, output: Path, **changes) -> int:
    """A run from the BERT; None leaves an option out."""
    settings = {
        "model_name_or_path": shared / "backbone",
        "train_file": shared / "text.txt",
        "output_dir": output,
        "max_seq_length": 32,
        "max_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        **changes,
    }
    flags = [word for name, value in settings.items() if value is not None for word in (f"--{name}", str(value))]
    return run_pretrain.main([*flags, "--use_cpu", "--disable_tqdm", "True"])


def tokens_of(folder: Path, text: str) -> list[str]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_terms_become_tokens_of_the_model_and_of_its_encoder(shared, tmp_path, capsys):
    output = tmp_path / "out"
    assert door(shared, output, add_tokens=shared / "terms.txt", objective="dupmae", learning_rate=0.0) == 0
    printed = capsys.readouterr().out
    assert "terms.txt: 3 terms become tokens (1 one token already, 1 repeated, 1 blank lines)" in printed
    assert "vocabulary: 700 -> 703 tokens (700 kept, 3 new, 0 dropped); a text takes" in printed
    assert "the text has 3 of 3 new tokens" in printed
    sentence = "Sensorless control of a magnet motor."
    for folder in (output, output / "encoder"):
        assert tokens_of(folder, sentence) == ["sensorless control", "of", "a", "magnet motor", "."]
    before = BertForMaskedLM.from_pretrained(shared / "backbone")
    plain = AutoModelForMaskedLM.from_pretrained(output / "encoder")
    ours = RetroMAEForPreTraining.from_pretrained(output)
    rows = plain.get_input_embeddings().weight
    assert plain.config.vocab_size == ours.config.vocab_size == len(rows) == len(plain.cls.predictions.bias) == 703
    assert torch.equal(rows[:700], before.get_input_embeddings().weight)
    assert torch.equal(rows, ours.mlm_head.decoder.weight) and torch.equal(rows, plain.get_output_embeddings().weight)


def test_new_tokens_start_from_their_pieces_on_request(shared, tmp_path, capsys):
    output = tmp_path / "out"
    terms = {"add_tokens": shared / "terms.txt", "new_token_init": "pieces", "learning_rate": 0.0}
    assert door(shared, output, **terms) == 0
    assert "mean of their pieces" in capsys.readouterr().out
    rows = RetroMAEForPreTraining.from_pretrained(output).get_input_embeddings().weight
    pieces = own_pieces(bert_tokenizer(), "sensorless control")
    torch.testing.assert_close(rows[700], rows[pieces].mean(0))


def test_a_replaced_vocabulary_keeps_the_rows_of_tokens_that_stay(shared, tmp_path, capsys):
    output = tmp_path / "out"
    assert door(shared, output, tokenizer_vocab_size=300, learning_rate=0.0, add_tokens=shared / "terms.txt") == 0
    printed = capsys.readouterr().out
    assert "training a tokenizer of at most 300 tokens" in printed and "vocabulary: 700 -> 303 tokens (" in printed
    old, new = AutoTokenizer.from_pretrained(shared / "backbone"), AutoTokenizer.from_pretrained(output)
    assert len(new) == 303 and tokens_of(output, "magnet motor") == ["magnet motor"]
    before = BertForMaskedLM.from_pretrained(shared / "backbone").get_input_embeddings().weight
    after = RetroMAEForPreTraining.from_pretrained(output).get_input_embeddings().weight
    kept = old.get_vocab().keys() & new.get_vocab().keys()
    assert len(after) == 303 and len(kept) > 100
    for token in kept:
        assert torch.equal(after[new.get_vocab()[token]], before[old.get_vocab()[token]]), token


def test_the_result_trains_on_without_the_flags(shared, tmp_path, capsys):
    first, second = tmp_path / "first", tmp_path / "second"
    assert door(shared, first, tokenizer_vocab_size=300, add_tokens=shared / "terms.txt") == 0
    capsys.readouterr()
    assert door(shared, second, model_name_or_path=first, learning_rate=0.0) == 0
    printed = capsys.readouterr().out
    assert "vocabulary" not in printed and "new tokens" not in printed and "decoder loaded" in printed
    assert all(torch.equal(weight, weights_of(first)[name]) for name, weight in weights_of(second).items())
    assert tokens_of(second, "magnet motor") == ["magnet motor"]


@pytest.mark.parametrize("flags", [{"tokenizer_vocab_size": 300}, {"add_tokens": "{shared}/terms.txt"}])
def test_a_run_that_was_cut_off_goes_on_without_the_flags(shared, tmp_path, capsys, flags):
    flags = {name: str(value).format(shared=shared) for name, value in flags.items()}
    settings = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant", "warmup_steps": 0}
    assert door(shared, tmp_path / "whole", **settings, max_steps=4, **flags) == 0
    assert door(shared, tmp_path / "half", **settings, max_steps=2, **flags) == 0
    settings["resume_from_checkpoint"] = "True"
    capsys.readouterr()
    assert door(shared, tmp_path / "half", **settings, max_steps=4) == 0
    for name in (*flags, "new_token_init"):
        assert f"resumed with another {name}" not in capsys.readouterr().out
    whole = weights_of(tmp_path / "whole")
    for name, weight in weights_of(tmp_path / "half").items():
        torch.testing.assert_close(weight, whole[name], msg=name)
    assert tokens_of(tmp_path / "half", SENTENCES[0]) == tokens_of(tmp_path / "whole", SENTENCES[0])
    assert door(shared, tmp_path / "half", **settings, max_steps=6, **flags) == 0
    other = {name: shared / "good motor.txt" if name == "add_tokens" else 400 for name in flags}
    assert door(shared, tmp_path / "half", **settings, max_steps=8, **other) == 2
    assert "can only go on with that" in capsys.readouterr().err


def test_a_model_from_scratch_takes_terms_too(shared, tmp_path, capsys):
    sizes = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=48"
    scratch = {"model_name_or_path": None, "config_name": "bert", "config_overrides": sizes, "init_weights": "corpus"}
    terms = {"tokenizer_vocab_size": 300, "add_tokens": shared / "good motor.txt"}
    assert door(shared, tmp_path / "out", **scratch, **terms) == 0
    assert "good motor.txt: 2 terms become tokens" in capsys.readouterr().out
    assert tokens_of(tmp_path / "out", "a good motor") == ["a", "good motor"]


def test_terms_go_with_streaming(shared, tmp_path, capsys):
    terms = {"add_tokens": shared / "terms.txt", "streaming": True}
    assert door(shared, tmp_path / "out", **terms) == 0
    assert "a text takes" in capsys.readouterr().out
    assert door(shared, tmp_path / "other", **terms, new_token_init="statistics") == 2
    assert "leave out --streaming" in capsys.readouterr().err


def test_sentence_transformers_reads_terms_as_one_token(shared, tmp_path):
    assert door(shared, tmp_path / "out", add_tokens=shared / "terms.txt") == 0
    code = """
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(folder + "/encoder")
print(model.tokenizer("a magnet motor")["input_ids"], model.encode("a magnet motor").shape)
"""
    expected = AutoTokenizer.from_pretrained(tmp_path / "out")("a magnet motor")["input_ids"]
    assert len(expected) == 4
    assert in_fresh_process(code, tmp_path / "out", tmp_path).splitlines()[-1] == f"{expected} (32,)"


# --- GUR ---


def test_a_t5_gets_terms(shared, tmp_path, capsys):
    output = tmp_path / "out"
    changes = {
        "model_name_or_path": shared / "t5",
        "add_tokens": shared / "good motor.txt",
        "pooling": "weighted_mean",
    }
    assert gur(shared, output, **{**FROM_BACKBONE, **changes}, train_file=shared / "docs.jsonl") == 0
    assert "2 terms become tokens" in capsys.readouterr().out
    tokenizer, size = AutoTokenizer.from_pretrained(output), len(t5_tokenizer()) + 2
    assert tokens_of(output, "It needs a good motor.")[-2:] == ["good motor", "."]
    assert tokenizer.decode(tokenizer("It needs a good motor.")["input_ids"], skip_special_tokens=True)
    model = GURForPreTraining.from_pretrained(output)
    plain = AutoModelForSeq2SeqLM.from_pretrained(output / "backbone")
    for rows in (model.shared, model.lm_head, model.token_weights, plain.shared, plain.lm_head):
        assert len(rows.weight) == size == plain.config.vocab_size
    assert model.decoder.embed_tokens.weight is model.shared.weight


def test_a_t5_gets_another_vocabulary_and_keeps_its_sentinels(shared, tmp_path, capsys):
    output = tmp_path / "out"
    changes = {"model_name_or_path": shared / "t5", "tokenizer_vocab_size": 600, "learning_rate": 0.0}
    assert gur(shared, output, **{**FROM_BACKBONE, **changes}) == 0
    printed = capsys.readouterr().out
    old, new = t5_tokenizer(), AutoTokenizer.from_pretrained(output)
    assert f"vocabulary: {len(old)} -> {len(new)} tokens" in printed
    before = AutoModelForSeq2SeqLM.from_pretrained(shared / "t5").shared.weight
    after = GURForPreTraining.from_pretrained(output).shared.weight
    assert len(after) == len(new) != len(before)
    for was, now in zip(sentinel_ids(old), sentinel_ids(new)):
        assert torch.equal(before[was], after[now])


# --- Mistakes ---

MISTAKES = {
    "missing file": ({"add_tokens": "{shared}/none.txt"}, "none.txt cannot be read"),
    "empty file": ({"add_tokens": "{shared}/empty.txt"}, "empty.txt holds no term"),
    "only spaces": ({"add_tokens": "{shared}/spaces.txt"}, "spaces.txt holds no term"),
    "no room": ({"tokenizer_vocab_size": 5}, "--tokenizer_vocab_size 5: .* at least 10"),
    "two tokenizers": (
        {"tokenizer_vocab_size": 300, "tokenizer_name": "{shared}/backbone"},
        "either --tokenizer_name or --tokenizer_vocab_size",
    ),
    "streaming": ({"tokenizer_vocab_size": 300, "streaming": True}, "leave out --streaming"),
    "start of nothing": ({"new_token_init": "pieces"}, "has no effect without --add_tokens"),
    "unknown start": ({"new_token_init": "random", "add_tokens": "{shared}/terms.txt"}, "--new_token_init"),
    "start from scratch": (
        {
            **{"model_name_or_path": None, "config_name": "bert", "tokenizer_vocab_size": 300},
            "new_token_init": "pieces",
        },
        "from scratch",
    ),
    "overrides": ({"config_overrides": "hidden_size=8"}, "--config_overrides is for models from scratch"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_one_clear_line(shared, tmp_path, capsys, name):
    changes, message = MISTAKES[name]
    changes = {key: value.format(shared=shared) if isinstance(value, str) else value for key, value in changes.items()}
    assert door(shared, tmp_path / "out", **changes) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and re.search(message, lines[0]), lines
    assert not (tmp_path / "out/model.safetensors").exists()


def test_terms_that_are_all_tokens_already_are_said_and_change_nothing(shared, tmp_path, capsys):
    (tmp_path / "known.txt").write_text("the\ncat\n")
    assert door(shared, tmp_path / "out", add_tokens=tmp_path / "known.txt") == 0
    printed = capsys.readouterr().out
    assert "warning: --add_tokens" in printed and "adds nothing" in printed and "vocabulary:" not in printed
