"""How a GUR model from scratch starts: as the IDF-weighted bag of its words."""

import copy

import numpy as np
import pytest
import torch
from toy_models import gur_config

from modeling_gur import GURForPreTraining
from retrieval_pretraining.corpus_start import cooccurrence_embeddings
from retrieval_pretraining.gur_start import identity_projection, inverse_document_frequency, quiet_layers, start_gur


def toy_model(**changes) -> GURForPreTraining:
    torch.manual_seed(0)
    return GURForPreTraining(gur_config(**{"projection_dim": 32, "projection_hidden_dim": 64, **changes})).eval()


def to_unit_root_mean_square(vectors: torch.Tensor) -> torch.Tensor:
    return vectors / vectors.pow(2).mean(-1, keepdim=True).sqrt()


# --- The head --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "hidden"), [(32, 64), (32, 100), (16, 32), (16, 64), (48, 64), (48, 80)])
def test_without_noise_the_head_is_exactly_the_identity(size, hidden):
    projection = toy_model(projection_dim=size, projection_hidden_dim=hidden).projection
    identity_projection(projection, noise=0.0)
    states = torch.randn(5, 7, 32)
    expected = torch.zeros(5, 7, size)
    expected[..., : min(size, 32)] = states[..., :size]  # the first coordinates, or all and nothing beside them
    torch.testing.assert_close(projection(states), to_unit_root_mean_square(expected), atol=1e-5, rtol=0)


def test_the_noise_is_small_seeded_and_everywhere():
    def weights(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        projection = toy_model(projection_hidden_dim=100).projection
        torch.manual_seed(seed + 17)  # the global generator has no part in it
        identity_projection(projection, noise=0.02, seed=seed)
        return projection.wi.weight.detach(), projection.wo.weight.detach()

    both = torch.cat([torch.eye(32), -torch.eye(32), torch.zeros(36, 32)])
    first, second, again = weights(0), weights(1), weights(0)
    for number, start in enumerate((both, both.T)):
        noise = first[number] - start
        assert noise.std().item() == pytest.approx(0.02 * start.shape[1] ** -0.5, rel=0.1)
        assert (noise != 0).all() and torch.equal(first[number], again[number])
        assert not torch.equal(first[number], second[number])
    projection = toy_model().projection
    identity_projection(projection)
    states = torch.randn(20, 32)
    assert torch.cosine_similarity(projection(states), states).min() > 0.99


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"projection_hidden_dim": 63}, "`projection_hidden_dim` of 64, not 63"),
        ({"projection_hidden_dim": 31, "projection_dim": 16}, "`projection_hidden_dim` of 32, not 31"),
        ({"feed_forward_proj": "gated-gelu"}, "gated projection cannot start as the identity"),
    ],
)
def test_a_head_that_cannot_be_the_identity_is_refused_and_left_alone(changes, message):
    model = toy_model(**changes)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        identity_projection(model.projection)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# --- Layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"feed_forward_proj": "gated-gelu"}, {"backbone_type": "umt5"}])
def test_every_sublayer_becomes_quiet_and_nothing_else_changes(changes):
    model = toy_model(**changes)
    before = copy.deepcopy(model.state_dict())
    quiet_layers(model, scale=0.25)
    quiet = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    # Two layers of the encoder with two sublayers each, two of the decoder with three.
    assert len(quiet) == 2 * 2 + 2 * 3
    assert all(name.endswith(("Attention.o.weight", "DenseReluDense.wo.weight")) for name in quiet)
    assert all(torch.equal(model.state_dict()[name], 0.25 * before[name]) for name in quiet)


def test_silent_layers_pass_their_input_on():
    model = toy_model()
    quiet_layers(model, scale=0.0)
    ids = torch.randint(3, 99, (4, 9))
    states = model.encoder(ids).last_hidden_state
    torch.testing.assert_close(states, to_unit_root_mean_square(model.shared(ids)), atol=1e-5, rtol=0)
    quiet_layers(model.base_model)  # without a decoder


# --- Token weights ---------------------------------------------------------------------------------------------------


def test_inverse_document_frequency_by_hand():
    passages = [[5, 6, 1], np.array([5, 5, 5, 7, 1], dtype=np.int32), [5, 8, 1]]
    weights = inverse_document_frequency(iter(passages), 10, special_ids=[0, 1])
    assert weights.dtype == np.float32 and weights.shape == (10,)
    assert weights[5] == pytest.approx(np.log(4 / 3.5))  # in all three, however often
    assert weights[[6, 7, 8]] == pytest.approx(np.log(4 / 1.5))
    assert weights[[2, 9]] == pytest.approx(np.log(4 / 0.5))  # not seen
    assert weights[[0, 1]].tolist() == [0.0, 0.0]


def test_no_weight_is_negative_and_no_text_gives_no_error():
    assert inverse_document_frequency([[3]], 5, special_ids=[])[3] == pytest.approx(np.log(2 / 1.5))
    assert (inverse_document_frequency([], 5, special_ids=[0]) >= 0.0).all()


# --- All of it -------------------------------------------------------------------------------------------------------


def passages() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [np.append(generator.integers(10, 90, 12), 1) for _ in range(60)]


def test_a_new_model_starts_from_the_statistics_of_its_text():
    model = toy_model(pooling="weighted_mean")
    identity_projection(model.projection)
    head = copy.deepcopy(model.projection.state_dict())
    before = copy.deepcopy(model.state_dict())
    # Ids beyond the vocabulary, of a tokenizer with more tokens than the model, are passed over.
    report = start_gur(model, passages(), special_ids=[0, 1, 2, 500], seed=3, show_progress=False)
    assert "token embeddings, quiet layers, token weights" in report and "720 tokens" in report, report
    expected = inverse_document_frequency(passages(), 99, special_ids=[0, 1, 2])
    weights = model.token_weights.weight.detach()[:, 0].exp()
    torch.testing.assert_close(weights, torch.from_numpy(expected).clamp(min=1e-4))
    after = model.state_dict()
    assert not torch.equal(after["shared.weight"], before["shared.weight"])
    name = "encoder.block.0.layer.0.SelfAttention.o.weight"
    torch.testing.assert_close(after[name], 0.05 * before[name])
    assert all(torch.equal(value, head[name]) for name, value in model.projection.state_dict().items())

    again, other = toy_model(pooling="weighted_mean"), toy_model(pooling="weighted_mean")
    start_gur(again, passages(), special_ids=[0, 1, 2], seed=3, show_progress=False)
    start_gur(other, passages(), special_ids=[0, 1, 2], seed=4, show_progress=False)
    assert torch.equal(again.shared.weight, model.shared.weight)
    assert not torch.equal(other.shared.weight, model.shared.weight)


def test_another_pooling_gets_no_token_weights():
    model = toy_model(pooling="mean")
    report = start_gur(model, passages(), special_ids=[0, 1], show_progress=False)
    assert "token weights" not in report and not hasattr(model, "token_weights")


@pytest.mark.parametrize(
    ("d_model", "options"), [(511, {}), (512, {"identity_share": 0.5, "singular_value_power": 0.25})]
)
def test_half_of_a_wide_models_dimensions_are_for_the_token_itself(d_model, options):
    model = toy_model(d_model=d_model)
    start_gur(model, passages(), special_ids=[0, 1], seed=3, show_progress=False)
    expected = cooccurrence_embeddings(
        passages(),
        vocab_size=model.config.vocab_size,
        hidden_size=d_model,
        excluded_ids=[0, 1],
        seed=3,
        standard_deviation=model.config.initializer_factor,
        show_progress=False,
        **options,
    )
    torch.testing.assert_close(model.get_input_embeddings().weight.detach(), torch.from_numpy(expected))
