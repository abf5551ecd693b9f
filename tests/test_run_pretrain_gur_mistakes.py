"""The front door with `--objective gur`: one line for every mistake, and right numbers where there is little."""

import math
from pathlib import Path

import pytest
from gur_runs import FROM_BACKBONE, PAIRS, TINY, gur, make_inputs, results_of, steps_of, weights_of, write_lines

import run_pretrain
from modeling_gur import GURForPreTraining
from retrieval_pretraining.arguments import PretrainingArguments


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    folder = make_inputs(tmp_path_factory.mktemp("shared"))
    write_lines(folder / "no pair.jsonl", [*PAIRS[:3], {"text": "alone"}])
    write_lines(folder / "no pair first.jsonl", [{"text": "alone", "text_pair": None}, *PAIRS])
    write_lines(folder / "empty.jsonl", [{"text": " ", "text_pair": "b"}, {"text": "a", "text_pair": ""}])
    write_lines(folder / "one document.jsonl", [{**row, "document_id": "d"} for row in PAIRS])
    (folder / "unrelated.txt").write_text("Alpha beta. Gamma delta.\nEpsilon.\n")
    return folder


def error_line(capsys) -> str:
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, lines
    return lines[0]


RETROMAE = {
    "objective": "retromae",
    "config_name": "bert",
    "config_overrides": "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=48",
}
BACKBONE = {**FROM_BACKBONE, "model_name_or_path": "{shared}/t5"}
GATED = {"config_overrides": f"{TINY},feed_forward_proj=gated-gelu"}

MISTAKES = {
    "both weights 0": ({"lm_loss_weight": 0, "contrastive_loss_weight": 0}, "nothing would be trained"),
    "weight below 0": ({"lm_loss_weight": -1}, "--lm_loss_weight is 0 or more"),
    "no sentinels": (
        {"tokenizer_vocab_size": None, "tokenizer_name": "{shared}/bert"},
        "no sentinels <extra_id_0>",
    ),
    "a row without a pair": ({"train_file": "{shared}/no pair.jsonl"}, "no pair.jsonl, line 4: column 'text_pair'"),
    "the first one": ({"train_file": "{shared}/no pair first.jsonl"}, "line 1: column 'text_pair' holds no text"),
    "empty texts": ({"train_file": "{shared}/empty.jsonl"}, "empty.jsonl: 0 usable pairs"),
    "no pair mined": ({"train_file": "{shared}/unrelated.txt"}, "No pair was mined"),
    "nothing held out": (
        {"train_file": "{shared}/one document.jsonl", "validation_split_percentage": 10},
        "--validation_split_percentage",
    ),
    "streaming": ({"streaming": True}, "--streaming"),
    "overflow": ({"overflow": "truncate"}, "--overflow"),
    "strategy": ({"strategy": "best"}, "--strategy: invalid choice: 'best'"),
    "mining settings": ({"min_span_weight": 10}, "--min_span_weight_short 20 is more than --min_span_weight"),
    "flags of RetroMAE": ({"decoder_query": "position", "bow_loss_weight": 0.1}, "--decoder_query, --bow_loss_weight"),
    "masks of RetroMAE": ({"encoder_mlm_probability": 0.2}, "--encoder_mlm_probability"),
    "flags of GUR": (
        {**RETROMAE, "pooling": "mean", "mask_rate": 0.2},
        "--pooling, --mask_rate: only --objective gur",
    ),
    "length of GUR": ({**RETROMAE, "encode_max_seq_length": 64}, "--encode_max_seq_length: only --objective gur"),
    "mining for RetroMAE": ({**RETROMAE, "strategy": "title"}, "--strategy: only --objective gur mines"),
    "identity of a backbone": ({**BACKBONE, "projection_init": "identity"}, "--projection_init identity"),
    "gated identity": ({"projection_init": "identity", **GATED}, "needs relu in feed_forward_proj, not gated-gelu"),
    "gated identity from the corpus": (
        {"projection_init": "identity", "init_weights": "corpus", **GATED},
        "needs relu in feed_forward_proj",
    ),
    "not a T5": ({**RETROMAE, "objective": "gur"}, "backbone of type 'bert'"),
    "not a T5 checkpoint": ({**BACKBONE, "model_name_or_path": "{shared}/bert"}, "no sentinels"),
    "size of the T5": ({"config_overrides": f"{TINY},d_model=-3"}, "`d_model` is 1 or more"),
    "unknown field": ({"config_overrides": "hidden_sise=3"}, "hidden_sise"),
    "small vocabulary": ({"tokenizer_vocab_size": 300}, "use at least 512"),
    "pooling": ({"pooling": "max"}, "--pooling"),
    "mask rate": ({"mask_rate": 1.0}, "--mask_rate is above 0 and below 1"),
    "temperature": ({"contrastive_temperature": 0}, "--contrastive_temperature is above 0"),
    "learned temperature": (
        {"contrastive_temperature": 0.001, "learnable_temperature": True},
        "`contrastive_temperature` is 0.01 or more",
    ),
    "Chinese words without words": ({"chinese_whole_words": True}, "without --mask_whole_words true"),
    "mini-batch": ({"contrastive_mini_batch_size": 0}, "--contrastive_mini_batch_size is above 0"),
    "encoding below training": (
        {"max_seq_length": 32, "encode_max_seq_length": 24},
        "--encode_max_seq_length 24 is below --max_seq_length 32",
    ),
    "short encoding": ({"encode_max_seq_length": 4}, "--encode_max_seq_length is 8 or more"),
    "no samples": ({"max_train_samples": 0}, "--max_train_samples"),
    "metric of RetroMAE": (
        {
            "metric_for_best_model": "encoder_mlm_loss",
            "eval_strategy": "steps",
            "validation_file": "{shared}/pairs.jsonl",
        },
        "there are eval_loss, eval_lm_loss, eval_contrastive_loss",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_names_it(mistake, shared, tmp_path, capsys):
    changes, expected = MISTAKES[mistake]
    changes = {
        name: value.replace("{shared}", str(shared)) if isinstance(value, str) else value
        for name, value in changes.items()
    }
    assert gur(shared, tmp_path / "out", **changes) == 2
    assert expected in error_line(capsys)


def test_fp16_is_refused_with_the_advice_to_use_bf16(shared, tmp_path, capsys, monkeypatch):
    assert gur(shared, tmp_path / "cpu", fp16=True) == 2
    assert "--fp16" in error_line(capsys)
    prepared = PretrainingArguments.__post_init__

    def as_on_a_gpu(self):
        wanted, self.fp16 = self.fp16, False
        prepared(self)
        self.fp16 = wanted

    monkeypatch.setattr(PretrainingArguments, "__post_init__", as_on_a_gpu)
    assert gur(shared, tmp_path / "gpu", fp16=True) == 2
    assert "--bf16" in error_line(capsys)


# --- Little, but right -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"train_file": "one.jsonl"}, {"per_device_train_batch_size": 1}])
def test_a_batch_of_one_pair_has_nothing_to_contrast(changes, shared, tmp_path):
    write_lines(tmp_path / "one.jsonl", PAIRS[:1])
    changes = {name: tmp_path / value if name == "train_file" else value for name, value in changes.items()}
    out = tmp_path / "out"
    assert gur(shared, out, **changes) == 0
    for entry in steps_of(out):
        assert entry["contrastive_loss"] == 0.0 and entry["excluded_negatives"] == 0
        assert math.isfinite(entry["loss"]) and entry["loss"] == pytest.approx(entry["lm_loss"], abs=1e-4)
    assert all(weight.isfinite().all() for weight in weights_of(out).values())


def test_equal_pairs_are_no_negatives_of_each_other(shared, tmp_path):
    same = write_lines(tmp_path / "same.jsonl", PAIRS[:1] * 6)
    assert gur(shared, tmp_path / "out", train_file=same) == 0
    for entry in steps_of(tmp_path / "out"):
        assert entry["contrastive_loss"] == 0.0 and entry["excluded_negatives"] == 6 * 5
        assert math.isfinite(entry["loss"])


def test_pairs_with_an_empty_text_are_left_out(shared, tmp_path, capsys):
    some = write_lines(tmp_path / "some.jsonl", [{"text": "\u3000", "text_pair": "b"}, *PAIRS])
    assert gur(shared, tmp_path / "out", train_file=some) == 0
    assert "pairs: 24 of 1 file" in capsys.readouterr().out
    assert "| pairs | 24 |" in (tmp_path / "out/README.md").read_text()


def test_a_lone_process_with_a_mini_batch_and_no_contrast_trains(shared, tmp_path):
    assert gur(shared, tmp_path / "out", contrastive_loss_weight=0, contrastive_mini_batch_size=2) == 0
    assert "train_contrastive_loss" not in results_of(tmp_path / "out")


# --- Resumed with something else -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun(shared, tmp_path_factory) -> Path:
    """A run of two steps, to go on from."""
    output = tmp_path_factory.mktemp("begun") / "out"
    changes = {"save_strategy": "steps", "save_steps": 2, "train_file": shared / "docs.jsonl"}
    assert gur(shared, output, **changes) == 0
    return output


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pooling", "mean"),
        ("pooling", "weighted_mean"),
        ("projection_dim", 16),
        ("projection_init", "identity"),
        ("learnable_temperature", True),
        ("config_overrides", TINY.replace("d_ff=48", "d_ff=64")),
    ],
)
def test_a_run_cannot_go_on_as_another_model(name, value, shared, begun, capsys):
    changes = {"train_file": shared / "docs.jsonl", "max_steps": 4, "resume_from_checkpoint": "True", name: value}
    before = (begun / "_run_arguments.json").read_text()
    assert gur(shared, begun, **changes) == 2
    how = f"with {TINY}" if name == "config_overrides" else "without it"
    assert f"--{name}: this run was started {how} and can only go on" in error_line(capsys)
    assert (begun / "_run_arguments.json").read_text() == before


def test_a_resumed_run_says_what_was_changed(shared, begun, capsys):
    changes = {"strategy": "random", "max_pairs_per_sentence": 1, "mask_rate": 0.3, "contrastive_temperature": 0.2}
    more = {"train_file": shared / "docs.jsonl", "max_steps": 4, "resume_from_checkpoint": "True"}
    assert gur(shared, begun, **more, **changes) == 0
    printed = capsys.readouterr().out
    changed = ("strategy: lcs -> random", "max_pairs_per_sentence: 2 -> 1", "mask_rate: None -> 0.3")
    for line in (*changed, "contrastive_temperature: None -> 0.2"):
        assert f"warning: resumed with another {line}\n" in printed, line
    assert printed.count("warning: resumed") == 4
    assert GURForPreTraining.from_pretrained(begun).config.contrastive_temperature == 0.2


def test_help_names_what_gur_has(capsys):
    with pytest.raises(SystemExit) as stop:
        run_pretrain.main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for name in ("--projection_init", "--mask_rate", "--encode_max_seq_length", "--strategy", "--min_span_weight"):
        assert name in text, name


def test_a_wrong_override_is_said_before_pairs_are_mined(shared, tmp_path, capsys):
    changes = {"train_file": shared / "docs.jsonl", "config_overrides": "d_modell=32"}
    assert gur(shared, tmp_path / "out", **changes) == 2
    said = capsys.readouterr()
    assert said.out == "" and "takes name=value,name=value of T5Config, not 'd_modell=32'" in said.err
    changes = {"train_file": shared / "docs.jsonl", "config_name": "bert", "config_overrides": None}
    assert gur(shared, tmp_path / "out", **changes) == 2
    said = capsys.readouterr()
    assert said.out == "" and "no backbone of type 'bert' is supported; there are t5, mt5, umt5" in said.err
    changes = {"train_file": shared / "docs.jsonl", "pooling": "mean", "repeated_token_power": 0.5}
    assert gur(shared, tmp_path / "out", **changes) == 2
    said = capsys.readouterr()
    assert said.out == "" and "repeated_token_power" in said.err


def test_without_an_epoch_the_decoder_is_not_offered(shared, tmp_path):
    changes = {"train_file": shared / "docs.jsonl", "init_weights": "corpus", "max_steps": -1}
    # Wide, with more rows than tokens, and losses of held-out text.
    changes["config_overrides"] = TINY.replace("d_model=32", "d_model=512,vocab_size=640")
    changes["validation_split_percentage"] = 20
    assert gur(shared, tmp_path / "out", num_train_epochs=0, **changes) == 0
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert "Its decoder was not trained" in card and "text2text-generation" not in card
    assert "| | held-out text |" in card and "training text" not in card
    assert "by counting: its token vectors are statistics" in card and "| losses |" not in card


def test_random_weights_are_called_so_and_mine_nothing(shared, tmp_path, capsys):
    flags = {"train_file": shared / "docs.jsonl", "num_train_epochs": 0, "max_steps": -1}
    assert gur(shared, tmp_path / "out", **flags) == 0
    assert "no pairs are mined" in capsys.readouterr().out
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert "A model of **random weights**" in card and "Stage: pre-trained" not in card and "precision" not in card


def test_without_an_epoch_and_a_decoder_nothing_is_mined(shared, tmp_path, capsys):
    flags = {"num_train_epochs": 0, "max_steps": -1, "lm_loss_weight": 0, "encode_max_seq_length": 48}
    flags |= {"init_weights": "corpus", "projection_init": "identity", "pooling": "weighted_mean"}
    assert gur(shared, tmp_path / "out", train_file=shared / "docs.jsonl", **flags) == 0
    printed = capsys.readouterr().out
    assert "nothing is trained, so no pairs are mined" in printed and "padding" not in printed
    texts = len((shared / "docs.jsonl").read_text(encoding="utf-8").splitlines())
    assert f"training: {texts} documents, " in printed and "passages of at most 48 tokens" in printed
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert f"| documents | {texts} |" in card and "| passages | " in card and "| pairs | " not in card
    assert "mined" not in card and "temperature" not in card
    # Pairs that are given are what there is to count.
    assert gur(shared, tmp_path / "pairs", train_file=shared / "pairs.jsonl", **flags) == 0
    assert "pairs, " in capsys.readouterr().out and "| pairs | " in (tmp_path / "pairs/README.md").read_text()
