"""What an encoder is loaded from: our checkpoints, transformers, sentence-transformers; no weight left to chance."""

import hashlib
import json
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from saved_models import KINDS, change, copy_to, save, save_all, sentence_transformers_folder, toy
from tokenizers_for_tests import ENGLISH, SENTENCES
from transformers.utils import logging as library_logging

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.export import write_sentence_transformers_files, write_sentence_vector_files
from retrieval_pretraining.systems import TextEncoder, load_encoder

TEXTS = [*SENTENCES[:13], "", "  \n", "的", " ".join(ENGLISH[:9])]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return save_all(tmp_path_factory.mktemp("models"))


@pytest.fixture
def bert(folders, tmp_path):
    """A folder of its own to spoil."""
    return copy_to(folders["bert"], tmp_path)


# --- sentence-transformers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "pooling"),
    [
        ({"pooling": "mean"}, "mean"),
        ({"pooling": "lasttoken", "normalize": False}, "eos"),
        ({"pooling": "max"}, "sentence-transformers"),
        ({"dense": True}, "sentence-transformers"),
    ],
)
def test_a_sentence_transformers_folder_gives_its_own_vectors(folders, tmp_path, options, pooling):
    model = sentence_transformers_folder(folders, tmp_path, **options)
    encoder = load_encoder(tmp_path)
    assert (encoder.pooling, encoder.max_seq_length) == (pooling, 20)
    assert (encoder.query_prompt, encoder.document_prompt) == ("query: ", "text: ")
    theirs = {"normalize_embeddings": True, "batch_size": 5}
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), model.encode_query(TEXTS, **theirs), atol=1e-5)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS), model.encode_document(TEXTS, **theirs), atol=1e-5)
    np.testing.assert_allclose(encoder.encode(TEXTS), model.encode(TEXTS, **theirs), atol=1e-5)
    assert encoder.describe()["vector_size"] == (8 if "dense" in options else 32)
    assert not any(parameter.isnan().any() for parameter in encoder.model.parameters())


def test_plain_folders_need_no_sentence_transformers(folders, tmp_path, monkeypatch):
    sentence_transformers_folder(folders, tmp_path / "plain")
    sentence_transformers_folder(folders, tmp_path / "dense", dense=True)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    assert load_encoder(tmp_path / "plain").encode(["cat"]).shape == (1, 32)
    with pytest.raises(InputError, match=r'pip install "retromae-gur\[sentence-transformers\]"'):
        load_encoder(tmp_path / "dense")


def test_options_win_over_what_the_folder_says(folders, tmp_path):
    sentence_transformers_folder(folders, tmp_path, dense=True)
    options = dict(pooling="cls", query_prompt="", document_prompt="", max_seq_length=32)
    encoder = load_encoder(tmp_path, **options)
    expected = load_encoder(folders["bert"], max_seq_length=32).encode(TEXTS)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), expected, atol=1e-6)
    assert encoder.encode_document_chunks([TEXTS[-1]], chunk_size=8)[0].shape[1] == 32


def test_modules_of_sentence_transformers_are_drawn_anew_as_well(folders, tmp_path):
    sentence_transformers_folder(folders, tmp_path, dense=True)
    trained = load_encoder(tmp_path).encode(TEXTS)
    first, again, other = (load_encoder(tmp_path, random_weights=True, seed=seed).encode(TEXTS) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert min(np.abs(first - other).max(), np.abs(first - trained).max()) > 0.1


def test_one_vector_a_text_is_all_that_other_modules_give(folders, tmp_path):
    sentence_transformers_folder(folders, tmp_path, dense=True)
    with pytest.raises(InputError, match="leave chunks out, or name a pooling"):
        load_encoder(tmp_path).encode_document_chunks(["cat"])


def test_what_the_folder_of_a_run_says_holds_for_our_models(folders, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    for kind, write in (("retromae", write_sentence_transformers_files), ("gur", write_sentence_vector_files)):
        save(kind, tmp_path / kind)
        write(tmp_path / kind, max_seq_length=24)
        encoder = load_encoder(tmp_path / kind)
        assert encoder.max_seq_length == 24 and type(encoder) is TextEncoder
        expected = load_encoder(folders[kind], max_seq_length=24).encode(TEXTS)
        np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)


def test_a_folder_that_compares_by_dot_products_is_a_warning(folders, tmp_path, caplog):
    sentence_transformers_folder(folders, tmp_path, normalize=False)
    change(tmp_path / "config_sentence_transformers.json", similarity_fn_name="dot")
    load_encoder(tmp_path)
    assert "compares by dot products" in caplog.text


def test_missing_weights_are_found_in_a_folder_that_sentence_transformers_loads(folders, tmp_path):
    sentence_transformers_folder(folders, tmp_path, dense=True)
    change(tmp_path / "config.json", num_hidden_layers=3)
    with pytest.raises(InputError, match=r"16 of .* weights of BertModel are missing"):
        load_encoder(tmp_path)


# --- Random and missing weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_random_weights_are_those_of_their_seed_and_leave_the_generators_alone(folders, kind):
    torch.manual_seed(7)
    state = torch.get_rng_state()
    options = dict(random_weights=True, max_seq_length=32)
    first, again, other = (load_encoder(folders[kind], seed=seed, **options) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(first.encode(TEXTS), again.encode(TEXTS))
    trained = load_encoder(folders[kind], max_seq_length=32)
    for each in (other, trained):
        assert np.abs(first.encode(TEXTS) - each.encode(TEXTS)).max() > 0.05
    ours, theirs = first.describe(), trained.describe()
    assert ours["random_weights"] and ours["weights_sha256"] is None
    assert {key for key in ours if ours[key] != theirs[key]} == {"random_weights", "weights_sha256"}


def test_missing_weights_are_an_error_that_names_them(bert):
    change(bert / "config.json", num_hidden_layers=3)
    with pytest.raises(InputError, match=r"16 of .* weights .* would be random: encoder\.layer\.2\.") as caught:
        load_encoder(bert)
    assert "pooler" not in str(caught.value)
    assert load_encoder(bert, random_weights=True).encode(["cat"]).shape == (1, 32)


def test_weights_of_another_size_are_an_error_that_names_them(bert):
    change(bert / "config.json", intermediate_size=40)
    with pytest.raises(InputError, match=r"of another size .* encoder\.layer\.0\.intermediate"):
        load_encoder(bert)


def test_weights_under_other_names_are_an_error(bert):
    weights = {f"wrapped.{name}": tensor for name, tensor in load_file(bert / "model.safetensors").items()}
    save_file(weights, bert / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="are missing"):
        load_encoder(bert)


def test_a_pooler_that_nothing_reads_may_be_missing(folders):
    weights = load_file(folders["bert"] / "model.safetensors")
    assert not any("pooler" in name for name in weights)
    encoder = load_encoder(folders["bert"])
    assert not any("pooler" in name for name, _ in encoder.model.named_parameters())  # nor is it counted


def test_the_head_of_a_gur_checkpoint_is_needed_only_for_its_vector(folders, tmp_path):
    save("gur", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("projection.")}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"would be random: projection\."):
        load_encoder(tmp_path)
    expected = load_encoder(folders["gur"], pooling="mean").encode(TEXTS)
    np.testing.assert_allclose(load_encoder(tmp_path, pooling="mean").encode(TEXTS), expected, atol=1e-6)


def test_loading_says_nothing_and_leaves_the_library_as_talkative_as_before(folders, caplog, capfd):
    library_logging.set_verbosity_info()
    try:
        load_encoder(folders["bert"])
        assert library_logging.get_verbosity() == library_logging.INFO
    finally:
        library_logging.set_verbosity_warning()
    assert library_logging.is_progress_bar_enabled()
    assert not caplog.records and capfd.readouterr().err == ""


# --- What is said about it -------------------------------------------------------------------------------------------


def test_a_description_is_the_entry_of_a_dense_system(folders):
    options = dict(query_prompt="q: ", max_seq_length=30, batch_size=7)
    described = load_encoder(f"{folders['retromae']}/", **options).describe()
    digest = hashlib.sha256((folders["retromae"] / "model.safetensors").read_bytes()).hexdigest()
    parameters = sum(parameter.numel() for parameter in toy("retromae")[0].base_model.parameters())
    assert described == {
        "name": "retromae",
        "kind": "dense",
        "model_name_or_path": f"{folders['retromae']}/",
        "revision": None,
        "model_type": "retromae",
        "weights_sha256": digest,
        "pooling": "pooler_output",
        "query_prompt": "q: ",
        "document_prompt": "",
        "max_seq_length": 30,
        "dtype": "float32",
        "vector_size": 32,
        "parameters": parameters,
        "random_weights": False,
        "chunk_size": None,
        "chunk_score": None,
        "batch_size": 7,
    }
    json.dumps(described)


def test_several_files_of_weights_have_one_hash(folders, tmp_path):
    model, tokenizer = toy("bert")
    model.save_pretrained(tmp_path, max_shard_size="30KB")
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "optimizer.safetensors").write_bytes(b"not of the model")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    encoder = load_encoder(tmp_path)
    assert encoder.weights_sha256 == hashlib.sha256(b"".join(map(lambda path: path.read_bytes(), shards))).hexdigest()
    np.testing.assert_allclose(encoder.encode(TEXTS), load_encoder(folders["bert"]).encode(TEXTS), atol=1e-6)
    shards[-1].unlink()
    with pytest.raises(InputError, match=f"{shards[-1].name} of its weights are missing"):
        load_encoder(tmp_path)
