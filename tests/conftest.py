"""The loopback Hub and its clients, which start slowly: once a session, and only for tests that ask for them."""

import pytest
from hub_clients import Client
from hub_server import HubServer

TOKEN = "hf_" + "secretTokenOfMe" * 2


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
    modules = "import torch, transformers, datasets\nfrom transformers import AutoModel"
    with Client(hub.url, tmp_path_factory.mktemp("stranger"), modules, token=None, ours=False) as client:
        yield client
