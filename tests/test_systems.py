"""Any model as texts -> vectors: what is loaded, how it pools, and what is refused."""

import copy
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers_for_tests import SENTENCES, bert_tokenizer, t5_tokenizer
from toy_models import encoder_config, gur_config, retromae_config, toy_t5
from transformers import AutoModel

from modeling_gur import GURForPreTraining
from modeling_retromae import RetroMAEForPreTraining
from retrieval_pretraining.encoding import encode_texts
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.systems import PROMPTS, load_encoder, weights_hash

TEXTS = [*SENTENCES[:20], "", " ", "a", "的", "word " * 2000]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """A checkpoint of each kind: ours, a plain BERT, a plain T5."""
    root = tmp_path_factory.mktemp("systems")
    torch.manual_seed(0)
    bert, t5 = bert_tokenizer(), t5_tokenizer()
    plain_t5 = toy_t5()
    plain_t5.resize_token_embeddings(len(t5))
    models = {
        "gur": (GURForPreTraining(gur_config(vocab_size=len(t5))), t5),
        "retromae": (RetroMAEForPreTraining(retromae_config(vocab_size=len(bert))), bert),
        "bert": (AutoModel.from_config(encoder_config(vocab_size=len(bert))), bert),
        "t5": (plain_t5, t5),
    }
    for name, (model, tokenizer) in models.items():
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root


KINDS = ("gur", "retromae", "bert", "t5")
OWN_POOLING = {"gur": "pooler_output", "retromae": "pooler_output", "bert": "cls", "t5": "mean"}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_pooled_as_it_was_made_to_be(folders, kind):
    encoder = load_encoder(folders / kind)
    assert encoder.describe()["pooling"] == OWN_POOLING[kind]
    vectors = encoder.encode_documents(TEXTS)
    assert (len(vectors), vectors.dtype) == (len(TEXTS), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    options = {"pooling": OWN_POOLING[kind], "max_seq_length": encoder.describe()["max_seq_length"]}
    np.testing.assert_allclose(vectors, encode_texts(encoder.model, encoder.tokenizer, TEXTS, **options), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_vector_does_not_depend_on_its_batch_or_place(folders, kind):
    alone = load_encoder(folders / kind, batch_size=1).encode(TEXTS)
    places = random.Random(0).sample(range(len(TEXTS)), len(TEXTS))
    for batch_size in (8, 33):
        moved = load_encoder(folders / kind, batch_size=batch_size).encode([TEXTS[i] for i in places])
        np.testing.assert_allclose(moved, alone[places], atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean", "eos"])
def test_every_pooling_of_a_plain_encoder(folders, pooling):
    encoder = load_encoder(folders / "bert", pooling=pooling)
    (vector,) = encoder.encode([SENTENCES[0]])
    batch = encoder.tokenizer(SENTENCES[0], return_tensors="pt")
    with torch.no_grad():
        states = encoder.model(**batch).last_hidden_state[0]
    expected = {"cls": states[0], "mean": states.mean(0), "eos": states[-1]}[pooling]
    np.testing.assert_allclose(vector, torch.nn.functional.normalize(expected, dim=0).numpy(), atol=1e-5)


def test_a_prompt_stands_before_queries_or_documents(folders):
    plain = load_encoder(folders / "bert")
    prompted = load_encoder(folders / "bert", query_prompt="bge_en", document_prompt="passage: ")
    texts = SENTENCES[:3]
    np.testing.assert_array_equal(
        prompted.encode_queries(texts), plain.encode([PROMPTS["bge_en"] + text for text in texts])
    )
    np.testing.assert_array_equal(prompted.encode_documents(texts), plain.encode([f"passage: {t}" for t in texts]))
    assert prompted.describe()["query_prompt"] == PROMPTS["bge_en"]


def test_random_weights_are_the_same_for_a_seed_and_leave_no_trace(folders):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    one, two, other = (
        load_encoder(folders / "gur", random_weights=True, seed=seed).encode(TEXTS) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(one, two)
    trained = load_encoder(folders / "gur").encode(TEXTS)
    assert np.abs(one - other).max() > 0.01 and np.abs(one - trained).max() > 0.01


def test_long_documents_become_chunks_of_their_own(folders):
    encoder = load_encoder(folders / "bert")
    vectors, document_of_chunk = encoder.encode_document_chunks(["short", "word " * 40, "last"], chunk_size=16)
    assert document_of_chunk[0] == 0 and document_of_chunk[-1] == 2 and (document_of_chunk == 1).sum() > 1
    np.testing.assert_allclose(vectors[0], encoder.encode(["short"])[0], atol=1e-5)


def test_other_dtypes_give_vectors_in_float32(folders):
    full = load_encoder(folders / "gur").encode(TEXTS[:5])
    half = load_encoder(folders / "gur", dtype="bfloat16")
    assert half.model.dtype == torch.bfloat16 and half.describe()["dtype"] == "bfloat16"
    vectors = half.encode(TEXTS[:5])
    assert vectors.dtype == np.float32 and (vectors * full).sum(1).min() > 0.98


def test_a_sentence_transformers_folder_is_taken_as_it_says(folders, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    prompts = {"query": "ask: ", "document": ""}
    model = library.SentenceTransformer(str(folders / "bert"), prompts=prompts, device="cpu")  # pools by the mean
    model.max_seq_length = 32
    model.save(str(tmp_path / "st"))
    encoder = load_encoder(tmp_path / "st")
    expected = model.encode([f"ask: {text}" for text in SENTENCES[:5]], normalize_embeddings=True)
    np.testing.assert_allclose(encoder.encode_queries(SENTENCES[:5]), expected, atol=1e-5)
    described = encoder.describe()
    assert described["query_prompt"] == "ask: " and described["max_seq_length"] == 32
    by_cls = load_encoder(tmp_path / "st", pooling="cls")
    np.testing.assert_allclose(
        by_cls.encode(SENTENCES[:5]), load_encoder(folders / "bert").encode(SENTENCES[:5]), atol=1e-5
    )
    random_one = load_encoder(tmp_path / "st", random_weights=True).encode(SENTENCES[:5])
    assert np.abs(random_one - load_encoder(tmp_path / "st").encode(SENTENCES[:5])).max() > 0.01


def copy_without(folder: Path, target: Path, *, key: str) -> Path:
    """The checkpoint less the weights whose names hold `key`."""
    target.mkdir()
    for file in folder.iterdir():
        if file.suffix in (".json", ".txt", ".py"):
            (target / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if key not in name}
    assert len(kept) < len(weights)
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.mark.parametrize(("kind", "key"), [("bert", "layer.1."), ("gur", "projection"), ("retromae", "layer.0.")])
def test_missing_weights_are_an_error_and_no_low_score(folders, tmp_path, kind, key):
    with pytest.raises(InputError, match="would be random"):
        load_encoder(copy_without(folders / kind, tmp_path / "part", key=key))


def test_missing_weights_of_a_sentence_transformers_folder_are_one_too(folders, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    library.SentenceTransformer(str(folders / "bert"), device="cpu").save(str(tmp_path / "st"))
    load_encoder(tmp_path / "st")
    weights = load_file(tmp_path / "st" / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if "layer.1." not in name}
    save_file(kept, tmp_path / "st" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="would be random"):
        load_encoder(tmp_path / "st")


def test_a_pickle_is_refused(folders, tmp_path):
    part = copy_without(folders / "bert", tmp_path / "pickle", key="pooler")
    torch.save(load_file(part / "model.safetensors"), part / "pytorch_model.bin")
    (part / "model.safetensors").unlink()
    with pytest.raises(InputError, match="safetensors"):
        load_encoder(part)


def test_a_tokenizer_of_another_model_is_refused(folders, tmp_path):
    part = copy_without(folders / "bert", tmp_path / "other", key="pooler")
    tokenizer = copy.deepcopy(bert_tokenizer())
    tokenizer.add_tokens([f"new{i}" for i in range(30)])
    tokenizer.save_pretrained(part)
    with pytest.raises(InputError, match="its tokenizer has token"):
        load_encoder(part)


def test_a_model_that_diverged_is_said(folders, tmp_path):
    part = copy_without(folders / "bert", tmp_path / "nan", key="pooler")
    weights = load_file(part / "model.safetensors")
    save_file(
        {name: weight * float("nan") for name, weight in weights.items()},
        part / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(InputError, match="not finite"):
        load_encoder(part).encode(["a"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_name_or_path": "nowhere/at-all"}, "config cannot be loaded"),
        ({"pooling": "max"}, "choose"),
        ({"dtype": "int8"}, "dtype"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_seq_length": 100_000}, "64 at most"),
        ({"pooling": "pooler_output"}, "pools no sentence vector"),
    ],
)
def test_a_mistake_is_one_sentence(folders, options, message):
    with pytest.raises(InputError, match=message) as caught:
        load_encoder(**{"model_name_or_path": folders / "bert", **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("texts", "message"), [([], "no texts"), (["a", None], r"texts\[1\]"), ("a", "one string")])
def test_what_is_no_list_of_texts_is_refused(folders, texts, message):
    with pytest.raises(InputError, match=message):
        load_encoder(folders / "bert").encode(texts)


def test_what_it_takes_to_repeat_is_described(folders):
    described = load_encoder(folders / "retromae", max_seq_length=32).describe()
    assert described["weights_sha256"] == weights_hash(folders / "retromae")
    assert described["max_seq_length"] == 32 and described["vector_size"] == 32 and described["revision"] is None
    assert json.loads(json.dumps(described)) == described
