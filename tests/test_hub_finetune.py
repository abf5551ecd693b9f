"""Fine-tuned models on the Hub: whole commits of ordinary folders, also of those with further layers."""

import json

import numpy as np
import pytest
import torch
from hub_runs import FINETUNE, PUSH, SECRET_PATH, TOKEN
from saved_models import save, sentence_transformers_folder
from tokenizers_for_tests import ENGLISH, t5_tokenizer
from toy_models import gur_config

from modeling_gur import GURForPreTraining
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.hub_files import model_files

pytest.importorskip("sentence_transformers")

QUERY = "import sys, json\nfrom sentence_transformers import SentenceTransformer\n" + (
    "model = SentenceTransformer(sys.argv[1], device='cpu')\n"
    "print(json.dumps(model.encode_query(['the cat sat'])[0].tolist()))\n"
)


def finetune(workshop, folder, model, name: str, *flags):
    rows = [{"text": " ".join(text.split()[:4]), "text_pair": text} for text in ENGLISH[:8]]
    pairs = folder / "finetune-pairs.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    argv = ["run_finetune.py", "--model_name_or_path", model, "--train_file", pairs, "--use_cpu", "True"]
    argv += ["--output_dir", folder / name.replace("/", "-"), "--max_steps", 4, "--save_steps", 2]
    argv += ["--per_device_train_batch_size", 4, "--disable_tqdm", "True", "--query_prompt", "query: "]
    argv += ["--push_to_hub", "True", "--hub_model_id", name, "--hub_always_push", "True"]
    return workshop.run(FINETUNE, argv=[*argv, *flags])


@pytest.fixture(scope="module")
def pushed_tuned(hub, workshop, folder):
    outcome = finetune(workshop, folder, folder / "backbone", "me/tuned", "--learning_rate", "1e-3")
    assert outcome.status == 0, outcome.err[-3000:]
    assert (
        f"will be pushed to {hub.url}/me/tuned" in outcome.out and f"pushed: {hub.url}/me/tuned/commit/" in outcome.out
    )
    return hub.repository("me/tuned").pushed()


def test_every_commit_is_a_whole_sentence_transformers_folder(pushed_tuned):
    messages = [commit.message for commit in pushed_tuned]
    assert messages == ["Training in progress, step 2", "Training in progress, step 4", "End of training"]
    for commit, step in zip(pushed_tuned, (2, 4, 4), strict=True):
        names = {"model.safetensors", "config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json"}
        names |= {"README.md", "config_sentence_transformers.json", "sentence_bert_config.json"}
        assert names <= commit.files.keys(), names - commit.files.keys()
        assert not any(name.endswith((".py", ".bin", ".pt", "state.json")) for name in commit.files)
        card = commit.files["README.md"].content.decode()
        assert f"| steps | {step} |" in card and 'SentenceTransformer("me/tuned")' in card
        for name, file in commit.files.items():
            assert SECRET_PATH.encode() not in file.content and TOKEN.encode() not in file.content, name


def test_a_stranger_loads_it_by_its_name_and_gets_its_vectors(pushed_tuned, stranger, workshop, folder):
    theirs = json.loads(stranger.check(QUERY, argv=["", "me/tuned"]).splitlines()[-1])
    ours = json.loads(workshop.check(QUERY, argv=["", folder / "me-tuned"]).splitlines()[-1])
    np.testing.assert_allclose(theirs, ours, atol=1e-6)


def test_it_can_be_fine_tuned_again_from_the_hub(pushed_tuned, hub, workshop, folder):
    outcome = finetune(workshop, folder, "me/tuned", "me/again", "--max_steps", 1, "--save_strategy", "no")
    assert outcome.status == 0, outcome.err[-3000:]
    (commit,) = hub.repository("me/again").pushed()
    assert "base_model: me/tuned" in commit.files["README.md"].content.decode()


def test_a_failed_push_leaves_the_model_and_the_command(hub, workshop, folder):
    hub.fail("POST", "models/me/refused-tuned/commit/", 403, times=9)
    outcome = finetune(workshop, folder, folder / "backbone", "me/refused-tuned", "--save_strategy", "no")
    hub.faults.clear()
    assert outcome.status == 1 and "Traceback" not in outcome.err
    assert "me/refused-tuned was not pushed, but the model is whole in" in outcome.err
    again = workshop.run(PUSH, argv=["hub", folder / "me-refused-tuned", "--hub_model_id", "me/refused-tuned"])
    assert again.status == 0, again.err


def test_the_layers_of_gur_are_pushed_with_it(tmp_path):
    """The Dense layers of its head, and the weights of the words."""
    from retrieval_pretraining.gur_export import write_plain_layers

    torch.manual_seed(0)
    size = {"vocab_size": len(t5_tokenizer())}
    model = GURForPreTraining(gur_config(**size, pooling="weighted_mean", tie_word_embeddings=False))
    model.set_token_weights(torch.rand(len(t5_tokenizer())))
    write_plain_layers(model.base_model, t5_tokenizer(), tmp_path, max_seq_length=32)
    (tmp_path / "README.md").write_text("# x\n")
    named = {place for place in (module["path"] for module in json.loads((tmp_path / "modules.json").read_text()))}
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(named) == 6 and files == model_files(tmp_path).keys()
    assert "3_Dense/model.safetensors" in files and any("WordWeights" in name for name in files)


def test_only_the_folders_of_layers_go_along(tmp_path):
    sentence_transformers_folder({"bert": save("bert", tmp_path / "bert")}, tmp_path / "st", dense=True)
    folder = tmp_path / "st"
    (folder / "README.md").write_text("# x\n")
    (folder / "private").mkdir()
    (folder / "private/notes.json").write_text("{}")
    (folder / "2_Dense/pytorch_model.bin").write_bytes(b"pickle")
    assert {"2_Dense/model.safetensors", "2_Dense/config.json"} <= model_files(folder).keys()
    assert not any("private" in name or name.endswith(".bin") for name in model_files(folder))
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([{**modules[0], "path": "../bert"}, *modules[1:]]))
    with pytest.raises(InputError, match=r"names '\.\./bert', which is no folder beside it"):
        model_files(folder)
    (folder / "modules.json").write_text(json.dumps([*modules, {**modules[2], "path": "9_Dense"}]))
    with pytest.raises(InputError, match="has no 9_Dense, which its modules"):
        model_files(folder)
