"""A model as an encoder: its vectors depend on the text alone, and what is no text is an error."""

import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from saved_models import KINDS, copy_to, save_all, toy
from tokenizers_for_tests import ENGLISH, SENTENCES, bert_tokenizer
from transformers import BertModel

from retrieval_pretraining import text_encoder
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.search import search
from retrieval_pretraining.systems import PROMPTS, TextEncoder, load_encoder

TEXTS = [*SENTENCES[:29], "", "  \n", "的", " ".join(ENGLISH[:9])]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return save_all(tmp_path_factory.mktemp("models"))


def states(kind: str, text: str) -> np.ndarray:
    """The last states of one text, [L, H], by a plain call."""
    model, tokenizer = toy(kind)
    encoder = model.encoder if kind in ("t5", "gur") else model.base_model
    with torch.no_grad():
        return encoder(**tokenizer(text, return_tensors="pt").to("cpu")).last_hidden_state[0].numpy()


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_have_length_1_and_do_not_depend_on_their_batch(folders, kind):
    encoder = load_encoder(folders[kind], max_seq_length=32)
    alone = encoder.encode(TEXTS, batch_size=1)
    assert (alone.shape, alone.dtype) == ((33, encoder.vector_size), np.float32)
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1), 1.0, atol=1e-5)
    assert np.abs(alone[:5] - alone[5:10]).max() > 0.05  # they differ at all
    places = random.Random(0).sample(range(33), 33)
    for batch_size in (8, 33):
        np.testing.assert_allclose(encoder.encode(TEXTS, batch_size=batch_size), alone, atol=1e-5)
        moved = encoder.encode([TEXTS[i] for i in places], batch_size=batch_size)
        np.testing.assert_allclose(moved, alone[places], atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "pooling", "own"),
    [("bert", None, "cls"), ("xlm-roberta", "auto", "cls"), ("t5", None, "mean"), ("gur", "eos", "eos")],
)
def test_vectors_are_those_of_a_plain_call(folders, kind, pooling, own):
    encoder = load_encoder(folders[kind], pooling=pooling)
    assert encoder.pooling == own
    expected = states(kind, ENGLISH[0])
    expected = {"cls": expected[0], "mean": expected.mean(axis=0), "eos": expected[-1]}[own]
    np.testing.assert_allclose(encoder.encode(ENGLISH[:3])[0], unit(expected), atol=1e-5)


@pytest.mark.parametrize("kind", ["retromae", "gur"])
def test_our_checkpoints_give_their_sentence_vector_without_code_from_the_folder(folders, kind):
    encoder = load_encoder(folders[kind], trust_remote_code=True)
    assert encoder.pooling == "pooler_output"
    assert type(encoder.model).__module__ in ("modeling_retromae", "modeling_gur")
    model, tokenizer = toy(kind)
    with torch.no_grad():
        inputs = tokenizer(ENGLISH[:1], return_tensors="pt")
        expected = model.base_model(inputs["input_ids"], inputs["attention_mask"]).pooler_output.numpy()
    np.testing.assert_allclose(encoder.encode(ENGLISH[:1])[0], unit(expected[0]), atol=1e-5)


def test_prompts_stand_before_queries_and_documents(folders):
    encoder = load_encoder(folders["bert"], query_prompt="query: ", document_prompt="text: ")
    query, document, plain = encoder.encode(["query: cat", "text: cat", "cat"])
    np.testing.assert_allclose(encoder.encode_queries(["cat"])[0], query, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_documents(["cat"])[0], document, atol=1e-5)
    np.testing.assert_allclose(encoder.encode(["cat"], "query: ")[0], query, atol=1e-5)
    assert min(np.abs(query - document).max(), np.abs(query - plain).max()) > 1e-3


def test_known_prompts_have_names(folders):
    encoder = load_encoder(folders["bert"], query_prompt="bge_en", document_prompt="bge_zh")
    assert encoder.query_prompt == "Represent this sentence for searching relevant passages: "
    assert encoder.document_prompt == "为这个句子生成表示以用于检索相关文章：" == PROMPTS["bge_zh"]


@pytest.mark.parametrize("kind", KINDS)
def test_long_texts_are_cut_and_texts_of_any_length_have_vectors(folders, kind):
    encoder = load_encoder(folders[kind])
    assert encoder.max_seq_length == {"t5": 512, "gur": 512}.get(kind, 64)
    vectors = encoder.encode(["x" * 10_000, "a cat " * 2000, "", " ", "的", "\u0000"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    short = load_encoder(folders[kind], max_seq_length=6)
    np.testing.assert_allclose(*short.encode(["a cat and a cat and a cat", "a cat and a cat and a dog"]), atol=1e-6)


def test_half_precision_gives_nearly_the_same_in_float32(folders):
    whole = load_encoder(folders["bert"]).encode(TEXTS)
    encoder = load_encoder(folders["bert"], dtype="bfloat16")
    vectors = encoder.encode(TEXTS)
    assert (encoder.dtype, vectors.dtype) == ("bfloat16", np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert 1e-4 < np.abs(vectors - whole).max() < 0.1


def test_a_checkpoint_in_half_precision_is_encoded_in_float32(folders, tmp_path):
    BertModel.from_pretrained(folders["bert"]).half().save_pretrained(tmp_path)
    bert_tokenizer().save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path)
    assert encoder.dtype == "float32"
    np.testing.assert_allclose(encoder.encode(TEXTS), load_encoder(folders["bert"]).encode(TEXTS), atol=0.01)


def test_no_texts_give_no_vectors(folders):
    assert load_encoder(folders["gur"]).encode_queries([]).shape == (0, 16)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["cat", None], r"texts\[1\] is of type NoneType"),
        (["cat", "dog", 3], r"texts\[2\] is of type int"),
        ("cat", "texts are one string"),
    ],
)
def test_texts_that_are_none_are_an_error_with_their_place(folders, texts, said):
    with pytest.raises(InputError, match=said):
        load_encoder(folders["bert"]).encode_documents(texts)


def test_vectors_that_are_not_finite_are_an_error(folders, tmp_path):
    bert = copy_to(folders["bert"], tmp_path)
    weights = load_file(bert / "model.safetensors")
    name = next(name for name in weights if name.endswith("word_embeddings.weight"))
    weights[name][bert_tokenizer().convert_tokens_to_ids("cat")] = float("nan")
    save_file(weights, bert / "model.safetensors", metadata={"format": "pt"})
    encoder = load_encoder(bert)
    assert np.isfinite(encoder.encode(["dog"])).all()
    with pytest.raises(InputError, match="1 of 3 vectors are not finite, the first is number 1"):
        encoder.encode(["dog", "cat", "dog"])


# --- Chunks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_hold_the_whole_of_each_document(folders, kind):
    encoder = load_encoder(folders[kind])
    documents = ["", ENGLISH[0], " ".join(ENGLISH[1:10]), "的"]
    vectors, of_chunk = encoder.encode_document_chunks(documents, chunk_size=12)
    assert of_chunk[0] == 0 and of_chunk[-1] == 3 and set(np.diff(of_chunk).tolist()) == {0, 1}
    specials = encoder.tokenizer.num_special_tokens_to_add()
    tokens = [len(ids) - specials for ids in encoder.tokenizer(documents)["input_ids"]]
    assert np.bincount(of_chunk).tolist() == [max(1, -(-count // (12 - specials))) for count in tokens]
    starts = load_encoder(folders[kind], max_seq_length=12).encode(documents)
    np.testing.assert_allclose(vectors[np.searchsorted(of_chunk, range(4))], starts, atol=1e-5)
    found, _ = search(starts[2:3], vectors, 1, document_of_chunk=of_chunk)
    assert found.tolist() == [[2]]


def test_the_document_prompt_stands_in_the_first_chunk(folders):
    text = " ".join(ENGLISH[:4])
    encoder = load_encoder(folders["bert"], document_prompt="the garden ")
    vectors, of_chunk = encoder.encode_document_chunks([text], chunk_size=12)
    expected = load_encoder(folders["bert"]).encode_document_chunks(["the garden " + text], chunk_size=12)
    np.testing.assert_allclose(vectors, expected[0], atol=1e-6)
    assert of_chunk.tolist() == expected[1].tolist()


@pytest.mark.parametrize(("chunk_size", "said"), [(2, "leaves no room"), (65, "the model takes 64 at most")])
def test_a_chunk_size_that_does_not_suit_is_an_error(folders, chunk_size, said):
    with pytest.raises(InputError, match=said):
        load_encoder(folders["bert"]).encode_document_chunks(["cat"], chunk_size=chunk_size)


# --- In memory -------------------------------------------------------------------------------------------------------


def test_a_model_in_memory_is_an_encoder_as_well(folders):
    model, tokenizer = toy("gur")
    encoder = TextEncoder(model, tokenizer, name="now", max_seq_length=32)
    np.testing.assert_allclose(
        encoder.encode(TEXTS), load_encoder(folders["gur"], max_seq_length=32).encode(TEXTS), atol=1e-6
    )
    assert encoder.describe()["name"] == "now" and encoder.describe()["weights_sha256"] is None


def test_progress_reaches_the_encoding(folders, monkeypatch):
    asked = []
    real = text_encoder.encode_texts

    def watched(*args, progress, **options):
        asked.append(progress)
        return real(*args, progress=progress, **options)

    monkeypatch.setattr(text_encoder, "encode_texts", watched)
    encoder = load_encoder(folders["bert"])
    encoder.encode_queries(["cat"])
    encoder.encode_documents(["cat"], progress=False)
    assert asked == [None, False]
