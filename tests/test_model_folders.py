"""Where a model is: on the Hub or in a folder, and folders that hold none."""

import numpy as np
import pytest
import torch
from huggingface_hub import errors as hub_errors
from safetensors.torch import load_file
from saved_models import change, copy_to, save, save_all, sentence_transformers_folder
from tokenizers_for_tests import CHINESE, ENGLISH, t5_tokenizer
from toy_models import toy_t5

from retrieval_pretraining import model_folders
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.systems import load_encoder

TEXTS = ENGLISH[:5]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return save_all(tmp_path_factory.mktemp("models"))


@pytest.fixture
def bert(folders, tmp_path):
    """A folder of its own to spoil."""
    return copy_to(folders["bert"], tmp_path)


# --- The Hub ---------------------------------------------------------------------------------------------------------


def test_a_model_of_the_hub_has_its_commit(folders, tmp_path, monkeypatch):
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = save("bert", tmp_path / "snapshots" / commit)
    asked = []

    def download(repo_id, *, revision, allow_patterns, **options):
        asked.append((repo_id, revision))
        assert not any("bin" in pattern for pattern in allow_patterns)
        return str(snapshot)

    monkeypatch.setattr(model_folders, "snapshot_download", download)
    encoder = load_encoder("me/mine", revision="v1")
    assert asked == [("me/mine", "v1")]
    assert (encoder.name, encoder.revision, encoder.model_name_or_path) == ("mine", commit, "me/mine")
    np.testing.assert_allclose(encoder.encode(TEXTS), load_encoder(folders["bert"]).encode(TEXTS), atol=1e-6)
    assert load_encoder(snapshot).revision == commit  # a folder of the cache


def not_found(kind):
    return kind.__new__(kind)  # what its `__init__` takes differs between the versions of the client


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (lambda: not_found(hub_errors.RepositoryNotFoundError), "no such model on the Hub that you may read"),
        (lambda: not_found(hub_errors.GatedRepoError), "ask for access"),
        (lambda: not_found(hub_errors.RevisionNotFoundError), "no revision v1"),
        (lambda: hub_errors.LocalEntryNotFoundError("offline"), r"the Hub cannot be reached \(LocalEntryNotFound"),
        (lambda: ConnectionError("no route"), r"at revision v1 .* the Hub cannot be reached \(ConnectionError"),
    ],
)
def test_what_the_hub_does_not_give_is_an_error_in_a_sentence(monkeypatch, raised, said):
    def download(*args, **options):
        raise raised()

    monkeypatch.setattr(model_folders, "snapshot_download", download)
    with pytest.raises(InputError, match=f"me/mine: .*{said}"):
        load_encoder("me/mine", revision="v1")


# --- Bad folders and options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtype": "int8"}, 'dtype is "int8"; choose'),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"pooling": "max"}, 'pooling is "max"; choose'),
        ({"pooling": "pooler_output"}, "BertModel pools no sentence vector"),
        ({"max_seq_length": 65}, "the model takes 64 at most"),
        ({"max_seq_length": 2}, "leaves no room for text"),
        ({"device": "cuda:77"}, 'device "cuda:77" cannot be used here'),
        ({"device": "gpu"}, 'device "gpu" cannot be used here'),
        ({"revision": "v1"}, "is a folder and has no revision v1"),
    ],
)
def test_options_that_do_not_suit_are_errors_in_a_sentence(folders, options, said):
    with pytest.raises(InputError, match=said):
        load_encoder(folders["bert"], **options)


def test_a_batch_size_below_1_is_an_error_in_a_call_too(folders):
    with pytest.raises(InputError, match="batch_size is 0"):
        load_encoder(folders["bert"]).encode(["cat"], batch_size=0)


def test_paths_that_hold_no_model_are_errors_in_a_sentence(folders, tmp_path):
    root = folders["bert"].parent
    for path, said in (
        (root / "nowhere", "there is no such folder; check the path"),
        (folders["bert"] / "config.json", "is a file; give the folder"),
        (root, "no config.json; give a folder in it, such as bert, gur"),
        (tmp_path, "no config.json; give the folder of a model"),
    ):
        with pytest.raises(InputError, match=said):
            load_encoder(path)


def remove_tokenizer(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def pickle_weights(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def cut_weights(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (remove_tokenizer, "there is no tokenizer; copy tokenizer.json"),
        (pickle_weights, "pickle, such as pytorch_model.bin, can run code"),
        (cut_weights, "cannot be loaded: .*incomplete metadata"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be read as JSON"),
        (lambda folder: (folder / "config.json").write_text("{}"), "names no model_type"),
        (lambda folder: change(folder / "config.json", model_type="nosuch"), "cannot be loaded: .*nosuch"),
        (
            lambda folder: t5_tokenizer().save_pretrained(folder),
            r"tokenizer has token id \d+, but the model knows",
        ),
        (lambda folder: (folder / "modules.json").write_text("[]"), "names no module"),
        (lambda folder: (folder / "modules.json").write_text("?"), "modules.json: cannot be read as JSON"),
    ],
)
def test_folders_that_cannot_be_used_are_errors_in_a_sentence(bert, spoil, said):
    spoil(bert)
    with pytest.raises(InputError, match=said):
        load_encoder(bert)


def test_the_pickle_of_a_module_is_refused(folders, tmp_path):
    sentence_transformers_folder(folders, tmp_path, dense=True)
    dense = next(tmp_path.glob("*_Dense"))
    (dense / "model.safetensors").rename(dense / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"Dense/pytorch_model\.bin can run code"):
        load_encoder(tmp_path)


def test_a_t5_of_another_tokenizer_or_without_one_is_refused(folders, tmp_path):
    toy_t5().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="tokenizer"):
        load_encoder(tmp_path)


CUSTOM_MODEL = """
from transformers import BertConfig, BertModel

class CustomConfig(BertConfig):
    model_type = "custom"

class CustomModel(BertModel):
    config_class = CustomConfig
"""


def test_custom_code_runs_only_if_it_is_trusted(bert):
    (bert / "custom.py").write_text(CUSTOM_MODEL)
    change(
        bert / "config.json",
        model_type="custom",
        auto_map={"AutoConfig": "custom.CustomConfig", "AutoModel": "custom.CustomModel"},
    )
    with pytest.raises(InputError, match="runs only with trust_remote_code"):
        load_encoder(bert)
    encoder = load_encoder(bert, trust_remote_code=True)
    assert encoder.model_type == "custom" and encoder.encode(CHINESE[:2]).shape == (2, 32)
