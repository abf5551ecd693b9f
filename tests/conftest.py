"""The loopback Hub and its clients, which start slowly: once a session, and only for tests that ask for them."""

import pytest
import torch
from hub_clients import Client
from hub_runs import SECRET_PATH, TOKEN, train, train_gur
from hub_server import HubServer
from tokenizers_for_tests import SENTENCES, bert_tokenizer
from toy_models import encoder_config
from transformers import BertForMaskedLM


@pytest.fixture(scope="session")
def hub():
    with HubServer() as server:
        server.add_user("me", token=TOKEN, organisations=[("lab", "write"), ("club", "read")])
        yield server


@pytest.fixture(scope="session")
def workshop(hub, tmp_path_factory):
    """Somebody with this project, who is logged in."""
    modules = (
        "import run_pretrain, mine_pairs, run_evaluation, retrieval_pretraining.hub, retrieval_pretraining.evaluation"
    )
    with Client(hub.url, tmp_path_factory.mktemp("workshop"), modules, token=TOKEN) as client:
        yield client


@pytest.fixture(scope="session")
def stranger(hub, tmp_path_factory):
    """Somebody without this project, who is not logged in."""
    modules = "import torch, transformers, datasets, sentence_transformers\nfrom transformers import AutoModel"
    with Client(hub.url, tmp_path_factory.mktemp("stranger"), modules, token=None, ours=False) as client:
        yield client


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Text and a backbone."""
    folder = tmp_path_factory.mktemp(SECRET_PATH)
    torch.manual_seed(0)
    # With dropout, by which a run shows whether something else drew random numbers.
    config = encoder_config(vocab_size=len(bert_tokenizer()), hidden_dropout_prob=0.1)
    BertForMaskedLM(config).save_pretrained(folder / "backbone")
    bert_tokenizer().save_pretrained(folder / "backbone")
    (folder / "text.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def pushed(hub, workshop, folder):
    """The commits of a run that pushed me/x at every save; its output folder is `folder / "me-x"`."""
    outcome = train(workshop, folder, "me/x", "--hub_always_push", "True")
    assert outcome.status == 0, outcome.err[-3000:]
    assert f"will be pushed to {hub.url}/me/x" in outcome.out and f"pushed: {hub.url}/me/x/commit/" in outcome.out
    return hub.repository("me/x").pushed()


@pytest.fixture(scope="session")
def pushed_gur(hub, workshop, folder):
    """The same for GUR, as me/gur, from `folder / "gur"`."""
    outcome = train_gur(workshop, folder, "gur")
    assert outcome.status == 0, outcome.err[-3000:]
    return hub.repository("me/gur").pushed()
