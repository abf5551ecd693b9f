"""What was pushed is loaded by people without this project: equal vectors, any revision, offline, pushed on."""

import json
import subprocess
import sys

import huggingface_hub
import numpy as np
import pytest
import torch
from documents_for_tests import write_rows
from fresh_process import BLOCK_OURS
from hub_clients import hub_environment
from hub_runs import EVALUATE, PRETRAIN, TOKEN, assert_whole, train
from safetensors.torch import load
from tokenizers_for_tests import ENGLISH
from transformers import AutoTokenizer

from modeling_retromae import RetroMAEModel

TEXTS = ENGLISH[:4]
VECTORS = f"""
import sys
import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer
def vectors(name, **options):
    options["trust_remote_code"] = True
    tokenizer, model = AutoTokenizer.from_pretrained(name, **options), AutoModel.from_pretrained(name, **options)
    with torch.no_grad():
        inputs = tokenizer({TEXTS!r}, padding=True, return_tensors="pt")
        return torch.nn.functional.normalize(model(**inputs).pooler_output).numpy()
"""


@pytest.fixture(scope="module")
def vectors(pushed, folder):
    """Of the model as it lies in the output folder of its run."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "me-x")
    with torch.no_grad():
        inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
        model = RetroMAEModel.from_pretrained(folder / "me-x").eval()
        return torch.nn.functional.normalize(model(**inputs).pooler_output).numpy()


def test_vectors_are_those_of_the_run(hub, stranger, vectors, tmp_path):
    code = VECTORS + "np.save(sys.argv[1], vectors('me/x'))"
    stranger.check(code, argv=["", tmp_path / "v.npy"], HF_TOKEN=TOKEN)
    assert not hub.leaks  # the token goes to the Hub, not to where it keeps large files
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors, atol=1e-6)


def test_sentence_transformers_has_the_same(stranger, vectors, tmp_path):
    code = (
        "import sys\n"
        "import numpy as np\n"
        "from sentence_transformers import SentenceTransformer\n"
        "model = SentenceTransformer('me/x', trust_remote_code=True, device='cpu')\n"
        f"np.save(sys.argv[1], model.encode({TEXTS!r}))\n"
    )
    stranger.check(code, argv=["", tmp_path / "v.npy"])
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors, atol=1e-6)


def test_a_pinned_revision_is_the_model_of_its_step(stranger, pushed, tmp_path):
    code = VECTORS + (
        "pinned = dict(revision=sys.argv[1], code_revision=sys.argv[1])\n"
        "model = AutoModel.from_pretrained('me/x', trust_remote_code=True, **pinned)\n"
        "torch.save(model.get_input_embeddings().weight.detach(), sys.argv[2])\n"
    )
    stranger.check(code, argv=["", pushed[0].oid, tmp_path / "weight.pt"])
    first, last = (load(commit.files["model.safetensors"].content) for commit in (pushed[0], pushed[-1]))
    name = "retromae.encoder.embeddings.word_embeddings.weight"
    loaded = torch.load(tmp_path / "weight.pt")
    assert torch.equal(loaded, first[name]) and not torch.equal(loaded, last[name])


def test_a_snapshot_loads_from_its_folder_and_its_encoder_without_code(stranger, vectors, tmp_path):
    code = VECTORS + (
        "from huggingface_hub import snapshot_download\n"
        "folder = snapshot_download('me/x', local_dir=sys.argv[2])\n"
        "np.save(sys.argv[1], vectors(folder))\n"
        "plain = AutoModel.from_pretrained('me/x', subfolder='encoder', add_pooling_layer=False)\n"
        "print(type(plain).__name__)\n"
    )
    printed = stranger.check(code, argv=["", tmp_path / "v.npy", tmp_path / "copy"])
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors, atol=1e-6)
    assert printed.split()[-1] == "BertModel"


def test_offline_from_the_cache(hub, stranger, vectors, tmp_path):
    stranger.check(VECTORS + "vectors('me/x')")
    asked = len(hub.requests)
    code = BLOCK_OURS + VECTORS + "np.save(sys.argv[1], vectors('me/x'))"
    environment = {**hub_environment(hub.url, stranger.home, None), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "v.npy")]
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert len(hub.requests) == asked
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors, atol=1e-6)


@pytest.mark.parametrize(("name", "kind", "architecture"), [("x", "pushed", "retromae"), ("gur", "pushed_gur", "gur")])
def test_a_loaded_model_pushed_on_is_whole(hub, stranger, vectors, name, kind, architecture, request, tmp_path):
    request.getfixturevalue(kind)
    code = VECTORS + (
        "from transformers import AutoModelForPreTraining\n"
        "name, target = sys.argv[1:3]\n"
        "model = AutoModelForPreTraining.from_pretrained(name, trust_remote_code=True)\n"
        "model.push_to_hub(target)\n"
        "AutoTokenizer.from_pretrained(name, trust_remote_code=True).push_to_hub(target)\n"
    )
    stranger.check(code, argv=["", f"me/{name}", f"me/{name}-on"], HF_TOKEN=TOKEN)
    files = hub.repository(f"me/{name}-on").at("main").files
    original = hub.repository(f"me/{name}").at("main").files
    assert {file for file in files if file.endswith(".py")} == {file for file in original if file.endswith(".py")}
    config, before = (json.loads(each["config.json"].content) for each in (files, original))
    assert config["auto_map"] == before["auto_map"]
    assert not any("--" in reference for reference in config["auto_map"].values())  # not those of the first repository
    again = VECTORS + "np.save(sys.argv[2], np.stack([vectors(sys.argv[1] + end) for end in ('', '-on')]))"
    stranger.check(again, argv=["", f"me/{name}", tmp_path / "v.npy"])
    one, other = np.load(tmp_path / "v.npy")
    np.testing.assert_array_equal(one, other)


def test_a_python_user_pushes_with_the_trainer(hub, workshop, folder):
    code = (
        "import sys\n"
        "from transformers import AutoTokenizer, TrainingArguments\n"
        "from modeling_retromae import RetroMAEForPreTraining\n"
        "from retrieval_pretraining.trainer import PretrainingTrainer\n"
        "from pathlib import Path\n"
        "backbone, output, *cards = sys.argv[1:]\n"
        "arguments = TrainingArguments(output, max_steps=2, save_steps=1, per_device_train_batch_size=4,\n"
        "    use_cpu=True, report_to='none', disable_tqdm=True,\n"
        "    push_to_hub=True, hub_model_id='me/python', hub_always_push=True)\n"
        f"texts = [{{'text': text}} for text in {ENGLISH[:8]!r}]\n"
        "trainer = PretrainingTrainer(RetroMAEForPreTraining.from_backbone(backbone), arguments,\n"
        "    train_dataset=texts, processing_class=AutoTokenizer.from_pretrained(backbone))\n"
        "trainer.train()\n"
        "Path(output, 'README.md').write_text('my card')\n"
        "print(trainer.push_to_hub().commit_url)\n"
        "print(trainer.push_to_hub(revision='dev', commit_message='on a branch').oid)\n"
    )
    printed = workshop.check(code, argv=["", folder / "backbone", folder / "python"])
    repository = hub.repository("me/python")
    assert f"{hub.url}/me/python/commit/{repository.refs['main']}" in printed
    for commit in repository.pushed():
        assert_whole(commit.files)
    assert [commit.message for commit in repository.pushed("main")][-1] == "End of training"
    assert repository.at("main").files["README.md"].content == b"my card"
    assert repository.at("dev").files["README.md"].content == b"my card"


# --- Downloads that go wrong --------------------------------------------------------------------------------------


def test_a_download_that_is_cut_off_goes_on_where_it_was(hub, stranger, vectors, tmp_path):
    weights = hub.repository("me/x").at("main").files["model.safetensors"].etag
    hub.fail("GET", f"lfs-download/{weights}", None)
    hub.fail("GET", f"lfs-download/{weights}", 429, Retry_After=1)
    hub.requests.clear()
    code = "import huggingface_hub\nhuggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = 1000\n"  # how much it loses
    code += VECTORS + "np.save(sys.argv[1], vectors('me/x', cache_dir=sys.argv[2]))"
    argv = ["", tmp_path / "v.npy", tmp_path / "cache"]
    outcome = stranger.run(code, argv=argv)
    if huggingface_hub.__version__.startswith("1."):  # gives up at once, and goes on when it is asked again
        assert outcome.status != 0 and not list((tmp_path / "cache").rglob("model.safetensors"))
        outcome = stranger.run(code, argv=argv)
    assert outcome.status == 0, outcome.err
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors, atol=1e-6)
    answers = [status for method, path, status in hub.requests if method == "GET" and weights in path]
    assert answers == [None, 429, 206]


def test_a_download_that_never_ends_leaves_no_file(hub, stranger, pushed, tmp_path):
    weights = hub.repository("me/x").at("main").files["model.safetensors"].etag
    hub.fail("GET", f"lfs-download/{weights}", 500, times=99)
    code = VECTORS + "vectors('me/x', cache_dir=sys.argv[1])"
    assert stranger.run(code, argv=["", tmp_path / "cache"]).status != 0
    hub.faults.clear()
    assert not list((tmp_path / "cache").rglob("model.safetensors"))
    stranger.check(code, argv=["", tmp_path / "cache"])


# --- Through our doors --------------------------------------------------------------------------------------------


def evaluate(workshop, name: str, *flags, **options):
    rows = [{"sentence1": ENGLISH[i], "sentence2": ENGLISH[i + 1], "score": i % 5} for i in range(12)]
    write_rows(workshop.home / "similarity.jsonl", rows)
    argv = ["run_evaluation.py", "--eval_similarity_file", "similarity.jsonl", "--model_name_or_path", name, *flags]
    return workshop.run(EVALUATE, argv=[*argv, "--output_dir", f"report-{workshop.number}"], **options)


def test_a_run_goes_on_from_the_hub(workshop, folder, pushed):
    flags = ["--model_name_or_path", "me/x", "--max_steps", "1"]
    outcome = train(workshop, folder, "me/x", *flags, push=False, output="went-on")
    assert outcome.status == 0 and "encoder 100 %, MLM head loaded, decoder loaded" in outcome.out, outcome.err[-3000:]


def test_a_model_of_the_hub_is_evaluated_and_its_commit_noted(hub, workshop, pushed):
    outcome = evaluate(workshop, "me/x")
    assert outcome.status == 0, outcome.err[-3000:]
    results = (workshop.home / f"report-{workshop.number - 1}/results.json").read_text(encoding="utf-8")
    assert hub.repository("me/x").refs["main"] in results and TOKEN not in results


def test_a_private_model_without_a_token(hub, workshop, folder, pushed):
    argv = ["hub", folder / "me-x", "--hub_model_id", "me/private", "--hub_private_repo", "True"]
    workshop.check("import retrieval_pretraining.hub as hub; hub.main()", argv=argv)
    assert hub.repository("me/private").private
    outcome = evaluate(workshop, "me/private", HF_TOKEN="")
    assert outcome.status == 2 and "no such model on the Hub that you may read" in outcome.err
    argv = ["run_pretrain.py", "--model_name_or_path", "me/private", "--train_file", folder / "text.txt", "--use_cpu"]
    outcome = workshop.run(PRETRAIN, argv=[*argv, "--output_dir", "private"], HF_TOKEN="")
    assert outcome.status == 2 and "--model_name_or_path me/private" in outcome.err.splitlines()[-1]
    assert "Traceback" not in outcome.err
    assert evaluate(workshop, "me/private").status == 0


def test_the_plain_encoder_of_a_snapshot_has_its_pooling(stranger, vectors, tmp_path):
    code = (
        "import sys\n"
        "import numpy as np\n"
        "from huggingface_hub import snapshot_download\n"
        "from sentence_transformers import SentenceTransformer\n"
        "model = SentenceTransformer(snapshot_download('me/x') + '/encoder', device='cpu')\n"
        f"np.save(sys.argv[1], model.encode({TEXTS!r}))\n"
    )
    stranger.check(code, argv=["", tmp_path / "v.npy"])
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors, atol=1e-6)
