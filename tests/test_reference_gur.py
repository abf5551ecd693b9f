"""The slow oracle of GUR agrees with the published numbers (`tests/golden`), of the paper and of the authors' code."""

import json
from pathlib import Path

import pytest
import torch
from reference.gur_oracle import contrastive_loss, last_eos, lm_loss, project, unit
from safetensors.torch import load_file

GOLDEN = Path(__file__).parent / "golden"
PARTS = {"DenseReluDense.wi": "wi", "DenseReluDense.wi_0": "wi_0", "DenseReluDense.wi_1": "wi_1", "wo": "wo"}


@pytest.fixture(scope="module", params=["gated", "relu"])
def case(request):
    """The numbers of one case: (tensors by their names without the case, expected values)."""
    prefix = f"{request.param}/"
    tensors = load_file(GOLDEN / "golden_gur.safetensors")
    expected = json.loads((GOLDEN / "golden_gur.json").read_text(encoding="utf-8"))["cases"][request.param]["expected"]
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}, expected


def oracle_vectors(tensors) -> list[list[float]]:
    weights = {name[len("weights/projector.") : -len(".weight")]: value for name, value in tensors.items()}
    head = {ours: weights[theirs].double().tolist() for theirs, ours in PARTS.items() if theirs in weights}
    head["layer_norm"] = [weights["layer_norm"].double().tolist()]
    vectors = []
    for ids, mask, states in zip(
        tensors["in/input_ids"].tolist(),
        tensors["in/attention_mask"].tolist(),
        tensors["out/encoder_last_hidden_state"].double().tolist(),
        strict=True,
    ):
        vectors.append(project(states[last_eos(ids, mask)], head))
    return vectors


def test_vectors_are_the_published_ones(case):
    tensors, _ = case
    vectors = oracle_vectors(tensors)
    torch.testing.assert_close(torch.tensor(vectors), tensors["out/embedding"], rtol=0, atol=1e-6)
    units = torch.tensor([unit(vector) for vector in vectors])
    torch.testing.assert_close(units, tensors["out/embedding_l2"], rtol=0, atol=1e-6)


def test_losses_are_those_of_the_paper(case):
    tensors, expected = case
    logits = tensors["out/logits"].double().tolist()
    lm = lm_loss(logits, tensors["in/labels_ignore_pad"].tolist())
    contrastive = contrastive_loss(oracle_vectors(tensors), 0.1)
    assert lm == pytest.approx(expected["lm_loss_pads_ignored"], rel=0, abs=5e-6)
    assert contrastive == pytest.approx(expected["cl_loss_cosine"], rel=0, abs=5e-6)
    assert lm + contrastive == pytest.approx(expected["total_correct_alpha1"], rel=0, abs=5e-6)


def test_the_other_modes_are_those_of_the_authors_code(case):
    tensors, expected = case
    lm = lm_loss(tensors["out/logits"].double().tolist(), tensors["in/labels"].tolist(), ignored=None)
    contrastive = contrastive_loss(oracle_vectors(tensors), 0.1, similarity="dot")
    assert lm == pytest.approx(expected["lm_loss_author_pads_counted"], rel=0, abs=5e-6)
    assert contrastive == pytest.approx(expected["cl_loss_author_dot"], rel=2e-6)
    assert lm + contrastive == pytest.approx(expected["total_author"], rel=2e-6)


def test_a_pair_alone_has_no_loss_and_masked_negatives_have_no_part():
    vectors = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double().tolist()
    assert contrastive_loss(vectors[:2], 0.1) == 0.0
    nobody = [[False] * 3 for _ in range(3)]
    assert contrastive_loss(vectors, 0.1, negatives=nobody) == 0.0
    everybody = [[True] * 3 for _ in range(3)]
    assert contrastive_loss(vectors, 0.1, negatives=everybody) == contrastive_loss(vectors, 0.1) > 0.0


def test_a_text_without_eos_is_stood_for_by_its_last_token():
    assert last_eos([5, 1, 7, 1, 0], [1, 1, 1, 1, 0]) == 3
    assert last_eos([0, 5, 6, 7, 0], [0, 1, 1, 1, 0]) == 3
