"""Models that are pushed while they train and at the end: every commit is whole, and nothing else goes along."""

import json
import re
import shlex

import pytest
import torch
from hub_clients import ROOT, hub_environment
from hub_runs import PUSH, TOKEN, assert_whole, train
from safetensors.torch import load, load_file
from two_processes import run_two_processes


def test_every_commit_is_whole(pushed):
    assert [commit.message for commit in pushed[:3]] == [f"Training in progress, step {step}" for step in (2, 4, 6)]
    assert [commit.message for commit in pushed[3:]] == ["End of training"]
    weights = []
    for commit in pushed:
        assert_whole(commit.files)
        assert not any(name.endswith((".bin", ".pt", ".pth")) for name in commit.files)
        plain = load(commit.files["encoder/model.safetensors"].content)["bert.embeddings.word_embeddings.weight"]
        whole = load(commit.files["model.safetensors"].content)
        assert torch.equal(plain, whole["retromae.encoder.embeddings.word_embeddings.weight"])
        weights.append(plain)
    assert not torch.equal(weights[0], weights[1]) and torch.equal(weights[2], weights[3])


def test_the_card_of_each_commit_is_ours_and_says_the_step(pushed):
    for commit, step in zip(pushed, (2, 4, 6, 6)):
        card = commit.files["README.md"].content.decode()
        assert 'SentenceTransformer("me/x", trust_remote_code=True)' in card
        assert f"| steps | {step} |" in card and "encoder_mlm_loss" in card and "generated_from_trainer" not in card


def test_pushing_does_not_change_the_run(workshop, pushed, folder):
    assert train(workshop, folder, "me/x", push=False, output="unpushed").status == 0
    alone = load_file(folder / "unpushed/model.safetensors")
    for name, weight in load(pushed[-1].files["model.safetensors"].content).items():
        assert torch.equal(weight, alone[name]), name
    assert not (folder / "me-x/_push").exists()


@pytest.mark.parametrize(
    ("strategy", "place"), [("checkpoint", "last-checkpoint"), ("all_checkpoints", "checkpoint-2")]
)
def test_a_checkpoint_goes_along_where_it_is_asked_for(hub, workshop, folder, strategy, place, tmp_path):
    name = f"me/{strategy}"
    flags = ["--hub_strategy", strategy, "--eval_strategy", "steps", "--eval_steps", "2"]
    flags += ["--validation_split_percentage", "10", "--load_best_model_at_end", "True"]
    outcome = train(workshop, folder, name, "--max_steps", "2", *flags)
    assert outcome.status == 0, outcome.err[-3000:]
    first = hub.repository(name).pushed()[0]
    assert_whole(first.files)
    assert {f"{place}/optimizer.pt", f"{place}/scheduler.pt", f"{place}/model.safetensors"} <= first.files.keys()
    state = json.loads(first.files[f"{place}/trainer_state.json"].content)
    assert state["best_model_checkpoint"] == "checkpoint-2"
    for path, file in first.files.items():  # what was pushed is enough to go on from
        if path.startswith(place):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(file.content)
    resumed = train(workshop, folder, name, "--resume_from_checkpoint", tmp_path / place, push=False, output=strategy)
    assert resumed.status == 0, resumed.err[-3000:]


def test_at_the_end_only(hub, workshop, folder):
    outcome = train(workshop, folder, "me/end", "--hub_strategy", "end", "--hub_private_repo", "True")
    assert outcome.status == 0, outcome.err[-3000:]
    repository = hub.repository("me/end")
    assert repository.private and [commit.message for commit in repository.pushed()] == ["End of training"]


def test_gur_is_whole_as_well(pushed_gur):
    assert len(pushed_gur) == 3
    for commit in pushed_gur:
        assert_whole(commit.files, "gur")
        assert {"modeling_gur.py", "backbone/model.safetensors", "backbone/config.json"} <= commit.files.keys()
        assert '"me/gur"' in commit.files["README.md"].content.decode()


def test_a_branch_and_a_pull_request(hub, workshop, folder):
    outcome = train(workshop, folder, "me/branched", "--hub_revision", "dev")
    assert outcome.status == 0, outcome.err[-3000:]
    repository = hub.repository("me/branched")
    assert not repository.pushed("main") and repository.pushed("dev")[-1].message == "End of training"
    assert list(repository.at("main").files) == [".gitattributes"]

    outcome = train(workshop, folder, "me/proposed", "--hub_create_pr", "True", "--hub_always_push", "True")
    assert outcome.status == 0, outcome.err[-3000:]
    repository = hub.repository("me/proposed")
    assert {commit.branch for commit in repository.pushed()} == {"refs/pr/1"} and len(repository.pushed()) == 4
    assert f"pushed: {hub.url}/me/proposed" in outcome.out
    for commit in repository.pushed():
        assert_whole(commit.files)


def test_weights_of_an_earlier_model_do_not_stay(hub, workshop, folder, pushed):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from retrieval_pretraining.hub import open_repository\n"
        "repository = open_repository('me/resharded')\n"
        "files = {name: b'x' for name in ('model-00001-of-00002.safetensors', 'model.safetensors.index.json')}\n"
        "repository.push({**files, 'notes.safetensors': b'y'}, 'before')\n"
    )
    workshop.check(code)
    outcome = workshop.run(PUSH, argv=["hub", folder / "me-x", "--hub_model_id", "me/resharded"])
    assert outcome.status == 0, outcome.err
    files = hub.repository("me/resharded").at("main").files
    assert_whole(files)
    assert {name for name in files if "model-0" in name or name.endswith("index.json")} == set()
    assert "notes.safetensors" in files


# --- What goes wrong ----------------------------------------------------------------------------------------------


def test_a_failing_push_while_training_does_not_end_it(hub, workshop, folder):
    hub.fail("POST", "me/bumpy/commit/", 403)
    outcome = train(workshop, folder, "me/bumpy", "--hub_always_push", "True")
    assert outcome.status == 0, outcome.err[-3000:]
    assert outcome.err.count("The push at step 2 failed, the training goes on") == 1
    assert "warning: 1 of the pushes while training failed, the first at step 2" in outcome.out
    assert "the last push holds the whole model" in outcome.out
    steps = [commit.message for commit in hub.repository("me/bumpy").pushed()]
    assert steps == ["Training in progress, step 4", "Training in progress, step 6", "End of training"]


def test_a_failure_at_the_end_keeps_the_model_and_gives_the_command(hub, workshop, folder):
    hub.fail("POST", "me/refused/commit/", 403, times=9)
    outcome = train(workshop, folder, "me/refused", "--hub_strategy", "end", "--hub_token", TOKEN)
    hub.faults.clear()
    assert outcome.status == 1 and "Traceback" not in outcome.err
    error, _, command = outcome.err.strip().splitlines()[-3:]
    assert "me/refused was not pushed, but the model is whole in" in error and "may not write to me/refused" in error
    assert (folder / "me-refused/model.safetensors").is_file() and not hub.repository("me/refused").pushed()
    assert TOKEN not in outcome.out + outcome.err
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "retrieval_pretraining.hub"]
    module = "import runpy; runpy.run_module('retrieval_pretraining.hub', run_name='__main__')"
    retried = workshop.run(module, argv=["hub", *words[3:]])
    assert retried.status == 0 and f"pushed: {hub.url}/me/refused/commit/" in retried.out, retried.err
    assert_whole(hub.repository("me/refused").at("main").files)


@pytest.mark.parametrize(
    ("method", "path", "status", "more"),
    [
        ("POST", "preupload", 500, {}),
        ("POST", "/commit/", 503, {}),
        ("POST", "/commit/", 429, {"Retry_After": 2}),
        ("PUT", "lfs-upload", None, {}),
        ("POST", "/commit/", None, {}),
        ("POST", "/commit/", None, {"late": True}),
        ("POST", "validate-yaml", 502, {}),
        ("GET", "tree/main", 500, {}),
    ],
)
def test_what_passes_is_tried_again(hub, workshop, folder, pushed, method, path, status, more):
    name = f"me/again-{method}-{path.strip('/').replace('/', '-')}-{status}-{len(more)}"
    hub.known.clear()
    hub.fail(method, path, status, times=2 if not more else 1, **more)
    outcome = workshop.run(PUSH, argv=["hub", folder / "me-x", "--hub_model_id", name, "--commit_message", "once"])
    left = [fault.times for fault in hub.faults]
    hub.faults.clear()
    assert outcome.status == 0 and left == [0], outcome.err
    commits = hub.repository(name).pushed()
    assert [commit.message for commit in commits] == ["once"]  # not twice, where the answer was lost
    assert_whole(commits[0].files)


def test_what_does_not_pass_leaves_nothing_half_written(hub, workshop, folder, pushed):
    for method, path, status in (("PUT", "lfs-upload", None), ("POST", "/commit/", 500), ("POST", "preupload", 429)):
        hub.known.clear()
        hub.fail(method, path, status, times=10_000)
        outcome = workshop.run(PUSH, argv=["hub", folder / "me-x", "--hub_model_id", "me/never"], longest_sleep=0.0)
        hub.faults.clear()
        assert outcome.status == 1 and "Traceback" not in outcome.err
        reason = f"the Hub ({hub.url}) cannot be reached" if status is None else f"the Hub answered {status}"
        assert reason in outcome.err and "python -m retrieval_pretraining.hub" in outcome.err
        assert not hub.repository("me/never").pushed()


def test_a_folder_that_is_not_whole_is_not_pushed(workshop, folder, pushed, tmp_path):
    code = (
        "import sys, shutil\n"
        "from pathlib import Path\n"
        "from retrieval_pretraining.hub import main\n"
        "whole, spoilt = map(Path, sys.argv[1:3])\n"
        "def refused(spoil):\n"
        "    shutil.rmtree(spoilt, ignore_errors=True)\n"
        "    shutil.copytree(whole, spoilt, ignore=shutil.ignore_patterns('checkpoint-*'))\n"
        "    spoil()\n"
        "    print(main([str(spoilt), '--hub_model_id', 'me/spoilt']), flush=True)\n"
        "config = spoilt / 'config.json'\nshutil.copytree(whole, spoilt)\n"
        "refused(lambda: (spoilt / 'linear_cross_entropy.py').unlink())\n"
        "refused(lambda: (spoilt / 'model.safetensors').unlink())\n"
        "refused(lambda: (spoilt / 'README.md').unlink())\n"
        "text = config.read_text().replace('modeling_retromae.', '../../x.')\n"
        "refused(lambda: config.write_text(text))\n"
    )
    outcome = workshop.run(code, argv=["", folder / "me-x", tmp_path / "spoilt"])
    assert outcome.out.split() == ["2"] * 4, outcome.err
    missing = ("no linear_cross_entropy.py, which its auto_map", "no model.safetensors", "no README.md", "'../../x.")
    for line, said in zip(outcome.err.strip().splitlines(), missing, strict=True):
        assert said in line, line


def test_a_file_that_holds_the_token_is_not_pushed(hub, workshop, folder, pushed, tmp_path):
    code = (
        "import sys, shutil, os\n"
        "from retrieval_pretraining.hub import main\n"
        "shutil.copytree(sys.argv[1], 'leaky', ignore=shutil.ignore_patterns('checkpoint-*'))\n"
        "open('leaky/README.md', 'a').write(os.environ['HF_TOKEN'])\n"
        "sys.exit(main(['leaky', '--hub_model_id', 'me/leaky']))\n"
    )
    outcome = workshop.run(code, argv=["", folder / "me-x"], folder=tmp_path)
    assert outcome.status == 1 and "README.md holds the access token" in outcome.err and TOKEN not in outcome.err
    assert not hub.repository("me/leaky").pushed()


def test_files_of_the_user_stay_at_home(hub, workshop, folder, pushed, tmp_path):
    code = (
        "import sys, shutil, pathlib\n"
        "import retrieval_pretraining.hub as hub\n"
        "shutil.copytree(sys.argv[1], 'home')\n"
        "for name in ('notes.txt', 'secret.py', '.env', 'train.log', 'encoder/x.pt', 'pytorch_model.bin'):\n"
        "    pathlib.Path('home', name).write_text('mine')\n"
        "sys.exit(hub.main(['home', '--hub_model_id', 'me/home']))\n"
    )
    outcome = workshop.run(code, argv=["", folder / "me-x"], folder=tmp_path)
    assert outcome.status == 0, outcome.err
    assert hub.repository("me/home").at("main").files.keys() == pushed[-1].files.keys()


@pytest.mark.slow
def test_of_two_processes_one_pushes(hub, workshop, folder, tmp_path):
    environment = hub_environment(hub.url, workshop.home, TOKEN)
    flags = ["--model_name_or_path", folder / "backbone", "--train_file", folder / "text.txt", "--use_cpu"]
    flags += ["--ddp_backend", "gloo", "--disable_tqdm", "True", "--max_steps", "2", "--save_steps", "1"]
    flags += ["--push_to_hub", "True", "--hub_model_id", "me/two", "--hub_always_push", "True"]
    words = [str(ROOT / "run_pretrain.py"), *map(str, flags), "--output_dir", str(tmp_path / "out")]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HF_HUB_OFFLINE", raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        result = run_two_processes(words, output=tmp_path / "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("pushed:") == 1 and hub.count("POST", "me/two/commit/") == 3
    assert_whole(hub.repository("me/two").at("main").files)


def test_the_token_is_nowhere(workshop, folder, pushed):
    """Runs last: neither in what the runs above left on disk, nor in what they said."""
    files = [path for root in (folder, workshop.home) for path in root.rglob("*") if path.is_file()]
    assert len(files) > 50
    for path in files:
        assert TOKEN.encode() not in path.read_bytes(), path


def test_the_snippets_of_a_card_load_from_the_hub(stranger, pushed, pushed_gur):
    for commit, name in ((pushed[-1], "me/x"), (pushed_gur[-1], "me/gur")):
        snippets = re.findall(r"```python\n(.*?)```", commit.files["README.md"].content.decode(), flags=re.DOTALL)
        assert len(snippets) == 3 and all(f'"{name}"' in snippet for snippet in snippets)
        for snippet in snippets[1:]:  # test_hub_loading.py has that of sentence-transformers
            stranger.check(snippet)
