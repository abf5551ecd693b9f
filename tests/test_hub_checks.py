"""Whether a push can work is found out before the text is read: one sentence, exit status 2, nothing half done."""

import pytest
from hub_runs import MINE, PRETRAIN, TOKEN

NEWCOMER, READER, FINE, NARROW = ("hf_" + word * 4 for word in ("newcomer", "reader", "fine", "narrow"))


@pytest.fixture(scope="module")
def users(hub):
    hub.add_user("newcomer", token=NEWCOMER)
    hub.add_user("me", token=READER, role="read")
    hub.add_user("me", token=FINE, role="fineGrained", scopes=[("user", "me", ["repo.content.read", "repo.write"])])
    hub.add_user("me", token=NARROW, role="fineGrained", scopes=[("model", "me/only", ["repo.write"])])
    return hub


def pretrain(workshop, name: str, *flags, code: str = PRETRAIN, **options):
    """A run whose text is not there: an error about it means that the push was found to be possible."""
    argv = ["run_pretrain.py", "--config_name", "bert", "--tokenizer_vocab_size", "600", "--train_file", "no-text.txt"]
    argv += ["--output_dir", "out-" + name.replace("/", "-"), "--use_cpu", "--push_to_hub", "True"]
    return workshop.run(code, argv=[*argv, "--hub_model_id", name, *flags], **options)


def one_sentence(outcome) -> str:
    assert outcome.status == 2, outcome.err
    assert "Traceback" not in outcome.err and outcome.err.strip().count("\n") == 0
    return outcome.err.strip()


@pytest.mark.parametrize(
    ("name", "flags", "options", "said"),
    [
        ("me/t", [], {"HF_TOKEN": ""}, "needs an access token: log in (hf auth login), or set HF_TOKEN"),
        ("me/t", [], {"HF_TOKEN": "hf_unknown" * 3}, "the Hub does not accept the access token"),
        ("me/t", [], {"HF_TOKEN": READER}, "can only read: make one that can write"),
        ("me/t", [], {"HF_TOKEN": NARROW}, "--hub_model_id me/t: the fine-grained access token has no right"),
        ("me/t", ["--hub_token", NARROW], {}, "--hub_model_id me/t: the fine-grained access token has no right"),
        ("other/t", [], {}, "me is no member of other; give me/t, or propose the change with --hub_create_pr True"),
        ("club/t", [], {}, "me can only read in club; ask for the right to write"),
        ("other/t", ["--hub_create_pr", "True"], {}, "the Hub has no model other/t that this access token may see"),
        ("me/../t", [], {}, "--hub_model_id me/../t is no name on the Hub"),
        ("../../t", [], {}, "--hub_model_id ../../t is no name on the Hub"),
        ("me/a b", [], {}, "--hub_model_id me/a b is no name on the Hub"),
        ("me/t", ["--hub_revision", "0" * 40], {}, "is no branch: give the name of one, such as dev"),
        ("me/t", ["--hub_revision", "dev", "--hub_create_pr", "True"], {}, "leave out --hub_revision"),
        ("me/t", [], {"offline": True}, "HF_HUB_OFFLINE is set: unset it, or push later"),
        ("me/t", ["--push_to_hub", "False", "--hub_create_pr", "True"], {}, "no effect without --push_to_hub True"),
    ],
)
def test_a_push_that_cannot_work(users, workshop, name, flags, options, said):
    outcome = pretrain(workshop, name, *flags, **options)
    sentence = one_sentence(outcome)
    assert said in sentence and "no-text.txt" not in sentence
    assert not any(kind_and_name[1] in ("me/t", "other/t", "club/t") for kind_and_name in users.repositories)
    for token in (TOKEN, *users.users):
        assert token not in outcome.out + outcome.err


@pytest.mark.parametrize(
    ("name", "options"),
    [("me/fine", {"HF_TOKEN": FINE}), ("lab/mine", {}), ("nameless", {"HF_TOKEN": NEWCOMER})],
)
def test_a_push_that_can_work_makes_the_repository_first(users, workshop, name, options):
    assert "no-text.txt" in one_sentence(pretrain(workshop, name, **options))
    assert not users.repository(name if "/" in name else f"newcomer/{name}").private


def test_a_token_for_one_repository(users, workshop):
    """It cannot make the repository, only write to it."""
    said = one_sentence(pretrain(workshop, "me/only2", HF_TOKEN=NARROW))
    assert "no right to write there" in said
    pretrain(workshop, "me/only")
    assert "no-text.txt" in one_sentence(pretrain(workshop, "me/only", HF_TOKEN=NARROW))


def test_a_private_repository_is_not_taken_for_granted(users, workshop):
    pretrain(workshop, "me/public")
    said = one_sentence(pretrain(workshop, "me/public", "--hub_private_repo", "True"))
    assert "me/public exists and is public; make it private on its page" in said
    pretrain(workshop, "me/hidden", "--hub_private_repo", "True")
    assert users.repository("me/hidden").private
    assert "no-text.txt" in one_sentence(pretrain(workshop, "me/hidden", "--hub_private_repo", "True"))


def test_a_pull_request_for_somebody_else(users, workshop):
    pretrain(workshop, "newcomer/theirs", HF_TOKEN=NEWCOMER)
    assert "no-text.txt" in one_sentence(pretrain(workshop, "newcomer/theirs", "--hub_create_pr", "True"))


def test_what_the_hub_refuses_or_cannot_do_now(users, workshop):
    users.fail("POST", "repos/create", 403)
    assert "may not write to me/t2" in one_sentence(pretrain(workshop, "me/t2"))
    users.fail("GET", "whoami", 500, times=99)
    assert "the Hub answered 500" in one_sentence(pretrain(workshop, "me/t2"))
    users.faults.clear()
    unreachable = "import huggingface_hub; huggingface_hub.constants.ENDPOINT = 'http://127.0.0.1:9'\n" + PRETRAIN
    said = one_sentence(pretrain(workshop, "me/t2", code=unreachable))
    assert "the Hub (http://127.0.0.1:9) cannot be reached" in said
    assert ("models", "me/t2") not in users.repositories


def test_the_checks_too_are_tried_again(users, workshop):
    users.fail("GET", "whoami", 429, Retry_After=1)
    users.fail("POST", "repos/create", 502)
    users.fail("POST", "branch/dev", None)
    assert "no-text.txt" in one_sentence(pretrain(workshop, "me/patient", "--hub_revision", "dev"))
    assert "dev" in users.repository("me/patient").refs and not any(fault.times for fault in users.faults)


def test_pairs_are_checked_in_the_same_way(users, workshop):
    argv = ["mine_pairs.py", "--train_file", "no-text.txt", "--output_dir", "pairs", "--push_to_hub", "True"]
    assert "give --hub_dataset_id" in one_sentence(workshop.run(MINE, argv=argv))
    argv += ["--hub_dataset_id", "me/pairs-checked"]
    said = one_sentence(workshop.run(MINE, argv=argv, HF_TOKEN=""))
    assert "needs an access token" in said
    assert "can only read" in one_sentence(workshop.run(MINE, argv=argv, HF_TOKEN=READER))
    assert "no-text.txt" in one_sentence(workshop.run(MINE, argv=[*argv, "--hub_private_repo", "True"]))
    assert users.repository("me/pairs-checked", "datasets").private
