"""The door of the exports: each format loads with stock tools, in another process and folder."""

import json

import numpy as np
import pytest
import torch
from fresh_process import in_fresh_process
from saved_models import change, copy_to, sentence_transformers_folder
from tokenizers_for_tests import SENTENCES, bert_tokenizer, t5_tokenizer
from toy_models import gur_config, retromae_config

import export_model
from modeling_gur import GURForConditionalGeneration, GURForPreTraining
from modeling_retromae import RetroMAEForPreTraining
from retrieval_pretraining.export import write_sentence_transformers_files, write_sentence_vector_files
from retrieval_pretraining.systems import load_encoder

TEXTS = SENTENCES[:5]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Checkpoints as runs write them: `retromae`, `gur` with a plain head, `gated` with one that needs code."""
    root, found = tmp_path_factory.mktemp("trained"), {}
    for name in ("retromae", "gur", "gated"):
        torch.manual_seed(0)
        tokenizer = bert_tokenizer() if name == "retromae" else t5_tokenizer()
        size = {"vocab_size": len(tokenizer)}
        if name == "retromae":
            config = retromae_config(initializer_range=0.3)
            config.encoder_config.initializer_range, config.vocab_size = 0.3, len(tokenizer)
            model = RetroMAEForPreTraining(config)
        elif name == "gur":
            model = GURForPreTraining(gur_config(**size, pooling="weighted_mean", tie_word_embeddings=False))
            model.set_token_weights(torch.rand(len(tokenizer)))
        else:
            model = GURForPreTraining(gur_config(**size, feed_forward_proj="gated-gelu", backbone_type="umt5"))
        found[name] = root / name
        model.save_pretrained(found[name])
        tokenizer.save_pretrained(found[name])
        if name == "retromae":
            write_sentence_transformers_files(found[name], max_seq_length=32)
            change(found[name] / "config_sentence_transformers.json", prompts={"query": "query: ", "document": ""})
        else:
            write_sentence_vector_files(found[name], max_seq_length=32)
    return found


def door(source, wanted: str, output, *more) -> int:
    flags = ("--model_name_or_path", source, "--format", wanted, "--output_dir", output, *more)
    return export_model.main([str(flag) for flag in flags])


def vectors_of(folder) -> np.ndarray:
    return load_encoder(folder, query_prompt="").encode(TEXTS)


def test_the_encoder_keeps_its_mlm_head_and_needs_no_remote_code(folders, tmp_path, capsys):
    assert door(folders["retromae"], "encoder", tmp_path / "out") == 0
    assert "SentenceTransformer(" in capsys.readouterr().out
    config = json.loads((tmp_path / "out/config.json").read_text())
    ours = json.loads((folders["retromae"] / "config.json").read_text())["encoder_config"]
    assert config["architectures"] == ["BertForMaskedLM"] and "auto_map" not in config
    assert all(config[name] == ours[name] for name in ("max_position_embeddings", "type_vocab_size", "vocab_size"))
    code = """
import json
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(folder)
model, info = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
assert not info["missing_keys"] and not info["unexpected_keys"], info
print(json.dumps(model.eval()(**tokenizer("The [MASK] sat.", return_tensors="pt")).logits[0, 2].tolist()))
"""
    logits = json.loads(in_fresh_process(code, tmp_path / "out", tmp_path).splitlines()[-1])
    trained = RetroMAEForPreTraining.from_pretrained(folders["retromae"]).eval()
    inputs = bert_tokenizer()("The [MASK] sat.", return_tensors="pt", return_token_type_ids=False)
    expected = trained.mlm_head(trained.retromae(**inputs).last_hidden_state)[0, 2]
    np.testing.assert_allclose(logits, expected.detach().numpy(), atol=1e-5)


def test_a_bare_encoder_for_sentence_transformers_is_fine_tuned_saved_and_loaded(folders, tmp_path):
    pytest.importorskip("sentence_transformers")
    assert door(folders["retromae"], "sentence-transformers", tmp_path / "out") == 0
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == ["BertModel"]
    code = FINE_TUNING.replace("FLAGS", "")
    before, after, again = printed_vectors(in_fresh_process(code, tmp_path / "out", tmp_path))
    np.testing.assert_allclose(before, vectors_of(folders["retromae"]), atol=1e-5)
    np.testing.assert_allclose(again, after, atol=1e-6)
    assert np.abs(np.array(after) - before).max() > 1e-3
    assert (
        json.loads((tmp_path / "out/config_sentence_transformers.json").read_text())["prompts"]["query"] == "query: "
    )


def printed_vectors(output: str) -> list[list]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("[[")]


FINE_TUNING = f"""
import json, os
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses,
)
model = SentenceTransformer(folder, device="cpu" FLAGS)
assert model.max_seq_length == 32
vectors = lambda: print(json.dumps(model.encode({TEXTS!r}).tolist()))
vectors()
pairs = Dataset.from_dict(dict(anchor={TEXTS[:4]!r}, positive={SENTENCES[4:8]!r}))
arguments = SentenceTransformerTrainingArguments(
    "run", max_steps=2, per_device_train_batch_size=4, learning_rate=1e-2, warmup_steps=0, use_cpu=True,
    report_to="none", save_strategy="no", disable_tqdm=True,
)
loss = losses.MultipleNegativesRankingLoss(model)
SentenceTransformerTrainer(model, arguments, pairs, loss=loss).train()
model.eval()
vectors()
model.save("tuned")
code = {{name for name in os.listdir(folder) if name.endswith(".py")}}
assert code <= set(os.listdir("tuned")), os.listdir("tuned")
model = SentenceTransformer("tuned", device="cpu" FLAGS)
vectors()
"""


def test_our_own_folder_is_fine_tuned_by_sentence_transformers_and_keeps_its_code(folders, tmp_path):
    pytest.importorskip("sentence_transformers")
    code = FINE_TUNING.replace("FLAGS", ", trust_remote_code=True")
    _, after, again = printed_vectors(in_fresh_process(code, folders["retromae"], tmp_path))
    np.testing.assert_allclose(again, after, atol=1e-6)
    assert list((tmp_path / "tuned").glob("modeling_*.py"))


def test_gur_goes_to_sentence_transformers_without_code_where_its_head_allows(folders, tmp_path, capsys):
    pytest.importorskip("sentence_transformers")
    assert door(folders["gur"], "sentence-transformers", tmp_path / "plain") == 0
    assert "trust_remote_code" not in capsys.readouterr().out
    np.testing.assert_allclose(vectors_of(tmp_path / "plain"), vectors_of(folders["gur"]), atol=1e-5)
    assert door(folders["gated"], "sentence-transformers", tmp_path / "code") == 0
    said = capsys.readouterr().out
    assert "needs trust_remote_code=True" in said and "is gated (gated-gelu)" in said
    assert 'code", trust_remote_code=True)' in said and (tmp_path / "code/modeling_gur.py").is_file()
    np.testing.assert_allclose(vectors_of(tmp_path / "code"), vectors_of(folders["gated"]), atol=1e-6)
    weights = [(each / "model.safetensors").stat().st_size for each in (tmp_path / "code", folders["gated"])]
    assert weights[0] < 0.8 * weights[1]  # without the decoder


def test_the_t5_inside_writes_the_same_text_with_its_own_head(folders, tmp_path):
    assert door(folders["gur"], "t5", tmp_path / "out") == 0
    code = """
import json
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(folder)
model, info = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
assert not info["missing_keys"] and model.lm_head.weight is not model.shared.weight
inputs = tokenizer("a query", return_tensors="pt")
print(json.dumps(model.eval()(**inputs, decoder_input_ids=inputs["input_ids"]).logits[0, 0].tolist()))
"""
    logits = json.loads(in_fresh_process(code, tmp_path / "out", tmp_path).splitlines()[-1])
    trained = GURForConditionalGeneration.from_pretrained(folders["gur"]).eval()
    inputs = t5_tokenizer()("a query", return_tensors="pt")
    expected = trained(**inputs, decoder_input_ids=inputs["input_ids"]).logits[0, 0]
    np.testing.assert_allclose(logits, expected.detach().numpy(), atol=1e-5)


def test_the_lines_that_the_door_prints_for_onnx_run_as_they_stand(folders, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    assert door(folders["gur"], "onnx", tmp_path / "out") == 0
    lines = capsys.readouterr().out.partition("To use it:")[2]
    code = "\n".join(line.strip() for line in lines.splitlines()) + "\nprint(vectors.tolist())"
    found = json.loads(in_fresh_process(code, tmp_path / "out", tmp_path).splitlines()[-1])
    expected = load_encoder(folders["gur"]).encode(["a query", "a document"])
    np.testing.assert_allclose(found, expected, atol=1e-4)
    record = json.loads((tmp_path / "out/export.json").read_text())
    assert (record["model"], record["pooling"], record["opset"]) == ("gur", "pooler_output", 18)
    assert record["max_seq_length"] == 32 and str(tmp_path) not in json.dumps(record)
    assert not (tmp_path / "out/config.json").exists()


def test_a_model_of_others_gets_a_graph_with_the_pooling_of_its_folder(folders, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("sentence_transformers")
    from retrieval_pretraining.onnx_export import onnx_vectors

    assert door(folders["retromae"], "encoder", tmp_path / "bert") == 0
    sentence_transformers_folder({"bert": tmp_path / "bert"}, tmp_path / "mean")
    assert door(tmp_path / "mean", "onnx", tmp_path / "out") == 0
    encoder = load_encoder(tmp_path / "mean")
    inputs = bert_tokenizer()(TEXTS, padding=True, truncation=True, max_length=20, return_tensors="np")
    inputs = {name: inputs[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
    np.testing.assert_allclose(
        onnx_vectors(tmp_path / "out/onnx/model.onnx", inputs), encoder.encode(TEXTS), atol=1e-4
    )
    assert json.loads((tmp_path / "out/config.json").read_text())["model_type"] == "bert"
    sentence_transformers_folder({"bert": tmp_path / "bert"}, tmp_path / "dense", dense=True)
    assert door(tmp_path / "dense", "onnx", tmp_path / "none") == 2


def test_nothing_is_overwritten_but_an_earlier_export_that_is_given_up(folders, tmp_path, capsys):
    output = tmp_path / "out"
    assert door(folders["gur"], "t5", output) == 0
    (output / "note.txt").write_text("old")
    assert door(folders["gur"], "t5", output) == 2
    assert "holds an earlier export" in capsys.readouterr().err and (output / "note.txt").exists()
    assert door(folders["gated"], "t5", output, "--overwrite_output_dir", "True") == 0
    assert not (output / "note.txt").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    assert door(folders["gur"], "t5", tmp_path / "mine", "--overwrite_output_dir", "True") == 2
    assert "no earlier export" in capsys.readouterr().err
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"


def test_a_failed_export_leaves_the_earlier_one_and_no_half_of_it(folders, tmp_path, monkeypatch):
    output = tmp_path / "out"
    assert door(folders["gur"], "t5", output) == 0
    monkeypatch.setattr(GURForPreTraining, "export_backbone", lambda self, folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        door(folders["gur"], "t5", output, "--overwrite_output_dir", "True")
    assert (output / "model.safetensors").is_file() and [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "source, wanted, more, said",
    [
        ("gur", "encoder", (), "made by its head"),
        ("retromae", "t5", (), "has no T5 in it: use encoder"),
        ("retromae", "gguf", (), "--format"),
        ("gur", "t5", ("--pooling", "mean"), "--pooling has no effect"),
        ("gur", "t5", ("--max_seq_length", 16), "--max_seq_length has no effect"),
        ("gur", "onnx", ("--pooling", "max"), "--pooling"),
        ("nowhere", "onnx", (), "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(source, wanted, more, said, folders, tmp_path, capsys):
    assert door(folders.get(source, tmp_path / "nowhere"), wanted, tmp_path / "out", *more) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("error: ") and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_head_that_is_not_in_the_checkpoint_is_not_made_up(folders, tmp_path, capsys):
    copy_to(folders["gur"], tmp_path / "encoder only")
    GURForPreTraining.from_pretrained(folders["gur"]).base_model.save_pretrained(tmp_path / "encoder only")
    assert door(tmp_path / "encoder only", "t5", tmp_path / "out") == 2
    assert "has no decoder, lm_head, which this format needs; use sentence-transformers" in capsys.readouterr().err


def test_a_plain_model_is_sent_away_and_a_checkpoint_without_weights_too(folders, tmp_path, capsys):
    assert door(folders["gur"], "t5", tmp_path / "t5") == 0
    assert door(tmp_path / "t5", "encoder", tmp_path / "out") == 2
    assert "this is a plain t5" in capsys.readouterr().err
    spoiled = copy_to(folders["gur"], tmp_path / "spoiled")
    (spoiled / "model.safetensors").unlink()
    assert door(spoiled, "t5", tmp_path / "out") == 2
