"""Exports that other tools load: GUR's head as plain layers, and the sentence vector as an ONNX graph."""

import sys

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers_for_tests import SENTENCES, bert_tokenizer, t5_tokenizer, unigram_tokenizer
from toy_models import gur_config, retromae_config

from modeling_gur import GURModel
from modeling_retromae import RetroMAEModel
from retrieval_pretraining import onnx_export
from retrieval_pretraining.encoding import encode_texts
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.gur_export import why_no_plain_layers, write_plain_layers
from retrieval_pretraining.onnx_export import export_onnx, onnx_vectors
from retrieval_pretraining.text_encoder import TextEncoder

TEXTS = [*SENTENCES[:5], "a", "", SENTENCES[6] * 20]


def gur(**changes):
    tokenizer = t5_tokenizer()
    torch.manual_seed(0)
    model = GURModel(gur_config(vocab_size=len(tokenizer), **changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # no norm of ones, no weight of tokens of zeros
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model, tokenizer


def retromae(kind: str):
    tokenizer = unigram_tokenizer() if kind in ("roberta", "xlm-roberta", "mpnet") else bert_tokenizer()
    torch.manual_seed(0)
    config = retromae_config(kind)
    config.vocab_size = len(tokenizer)
    config.encoder_config.initializer_range = 0.3
    return RetroMAEModel(config).eval(), tokenizer


@pytest.mark.parametrize("pooling", ["eos", "mean", "first", "weighted_mean"])
def test_a_head_that_is_not_gated_becomes_layers_of_sentence_transformers(pooling, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model, tokenizer = gur(pooling=pooling)
    write_plain_layers(model, tokenizer, tmp_path / "plain", max_seq_length=32)
    loaded = sentence_transformers.SentenceTransformer(str(tmp_path / "plain"), device="cpu")
    assert loaded.max_seq_length == 32 and type(loaded[0].auto_model).__name__ == "T5EncoderModel"
    expected = encode_texts(model, tokenizer, TEXTS, max_seq_length=32)
    np.testing.assert_allclose(loaded.encode(TEXTS, batch_size=3), expected, atol=1e-5)
    assert not list((tmp_path / "plain").rglob("*.py")) and not list((tmp_path / "plain").rglob("*.bin"))


def test_a_head_that_no_layer_is_stays_code(tmp_path):
    model, tokenizer = gur(feed_forward_proj="gated-gelu")
    with pytest.raises(InputError, match="without code of its own: its head is gated"):
        write_plain_layers(model, tokenizer, tmp_path, max_seq_length=32)
    model, tokenizer = gur(pooling="eos")
    assert why_no_plain_layers(model, tokenizer) is None
    repeated, _ = gur(pooling="weighted_mean", repeated_token_power=0.5)
    assert "repeated_token_power 0.5" in why_no_plain_layers(repeated, tokenizer)
    tokenizer.padding_side = "left"
    assert "left" in why_no_plain_layers(model, tokenizer)
    assert "</s>" in why_no_plain_layers(model, bert_tokenizer())


# --- ONNX ------------------------------------------------------------------------------------------------------------


def text_encoder(kind: str) -> TextEncoder:
    """`gur-...`: its pooling or its kind of T5; else a backbone of RetroMAE, and the pooling of a plain model."""
    if kind.startswith("gur-"):
        name = kind[4:]
        changes = {"backbone_type": "umt5", "pooling": "mean"} if name == "umt5" else {"pooling": name}
        model, tokenizer = gur(**changes)
        return TextEncoder(model, tokenizer, max_seq_length=40)
    kind, _, pooling = kind.partition("+")
    model, tokenizer = retromae(kind)
    return TextEncoder(model.encoder if pooling else model, tokenizer, pooling=pooling or None, max_seq_length=40)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A GUR model that pools at </s>, and the path of its graph."""
    pytest.importorskip("onnxruntime")
    encoder = text_encoder("gur-eos")
    return encoder, export_onnx(encoder, tmp_path_factory.mktemp("exported"))


@pytest.mark.parametrize("kind", ["bert", "bert+mean"])
def test_the_onnx_graph_gives_the_vectors_for_any_batch(kind, tmp_path):
    pytest.importorskip("onnxruntime")
    encoder = text_encoder(kind)
    path = export_onnx(encoder, tmp_path)
    assert path == tmp_path / "onnx/model.onnx"
    check_vectors(encoder, path)


def test_the_onnx_graph_of_gur_holds_its_head(exported):
    check_vectors(*exported)


def check_vectors(encoder: TextEncoder, path):
    for texts in (TEXTS[:1], TEXTS, TEXTS[4:7]):
        inputs = encoder.tokenizer(
            texts, padding=True, truncation=True, max_length=40, return_tensors="np", return_token_type_ids=False
        )
        found = onnx_vectors(path, {name: value.astype(np.int64) for name, value in inputs.items()})
        np.testing.assert_allclose(found, encoder.encode(texts), atol=1e-4)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        *(
            "bert+eos",
            "roberta",
            "xlm-roberta",
            "distilbert",
            "electra",
            "albert",
            "deberta-v2",
            "mpnet",
            "modernbert",
        ),
        *("gur-first", "gur-mean", "gur-weighted_mean", "gur-umt5"),
    ],
)
def test_every_backbone_has_an_onnx_graph(kind, tmp_path):
    test_the_onnx_graph_gives_the_vectors_for_any_batch(kind, tmp_path)


def test_the_graph_tells_nothing_of_the_machine_that_made_it(exported):
    graph = exported[1].read_bytes()
    assert b"input_ids" in graph
    assert not any(word in graph for word in (b"site-packages", b".py", b"retrieval_pretraining", b"/tmp"))


def test_padding_on_the_left_gives_the_same_vectors_in_onnx(exported):
    _, path = exported
    ids = np.array([[5, 6, 7, 1, 0, 0], [5, 6, 7, 8, 9, 1]])
    mask = (ids > 0).astype(np.int64)
    moved, moved_mask = (np.stack([np.roll(each[0], 2), each[1]]) for each in (ids, mask))
    vectors = onnx_vectors(path, {"input_ids": ids, "attention_mask": mask})
    np.testing.assert_allclose(
        onnx_vectors(path, {"input_ids": moved, "attention_mask": moved_mask}), vectors, atol=1e-5
    )


def test_a_graph_with_other_vectors_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    real = onnx_export.onnx_vectors
    monkeypatch.setattr(onnx_export, "onnx_vectors", lambda *given: real(*given) + 2e-4)
    with pytest.raises(InputError, match="the ONNX graph gives other vectors than the model"):
        export_onnx(text_encoder("bert"), tmp_path)


def test_a_model_that_the_exporter_cannot_take_is_refused_in_a_sentence(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    encoder = text_encoder("bert")
    monkeypatch.setattr(RetroMAEModel, "forward", lambda self, **inputs: inputs["input_ids"].sum().item())
    with pytest.raises(InputError, match=r"cannot take this retromae .*; use another format"):
        export_onnx(encoder, tmp_path)


def test_without_the_extra_the_message_is_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r'onnx is not installed; pip install "retromae-gur\[onnx\]"'):
        export_onnx(text_encoder("bert"), tmp_path)


def test_the_tokenizer_beside_the_graph_cuts_and_pads_by_itself(exported):
    encoder, path = exported
    rows = Tokenizer.from_file(str(path.parents[1] / "tokenizer.json")).encode_batch(TEXTS)
    expected = encoder.tokenizer(TEXTS, padding=True, truncation=True, max_length=40)
    assert [row.ids for row in rows] == expected["input_ids"]
    assert [row.attention_mask for row in rows] == expected["attention_mask"]
