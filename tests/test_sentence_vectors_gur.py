"""Sentence vectors of GUR: each pooling, on either side of the padding, in any batch, and the weights of tokens."""

import math

import pytest
import torch
from toy_models import gur_batch, gur_config

from modeling_gur import GURForPreTraining, GURModel, pooling_weights


@pytest.mark.parametrize(
    "pooling, expected",
    [
        ("eos", [[0, 0, 0, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]),
        ("first", [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]),
        ("mean", [[0.25, 0.25, 0.25, 0.25, 0], [0, 0.25, 0.25, 0.25, 0.25], [0.2] * 5, [0] * 5]),
    ],
)
def test_each_pooling_weighs_the_positions_that_it_says(pooling, expected):
    ids = torch.tensor([[5, 1, 7, 1, 1], [1, 5, 1, 7, 8], [5, 6, 7, 8, 9], [1, 1, 1, 1, 1]])
    mask = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    weights = pooling_weights(gur_config(pooling=pooling), ids, mask)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize("eos, position", [(None, 3), ([1, 7], 2), (7, 2), (5, 1)])
def test_eos_is_one_id_or_several_or_none(eos, position):
    ids, mask = torch.tensor([[1, 5, 7, 8, 1]]), torch.tensor([[1, 1, 1, 1, 0]])
    weights = pooling_weights(gur_config(eos_token_id=eos), ids, mask)
    assert weights.argmax(1).tolist() == [position]


def test_token_weights_weigh_the_states_and_are_trained():
    torch.manual_seed(0)
    config = gur_config(pooling="weighted_mean")
    model, mean = GURForPreTraining(config), GURForPreTraining(gur_config(pooling="mean"))
    mean.load_state_dict(model.state_dict(), strict=False)
    batch = gur_batch()
    vectors = model(**batch).sentence_embedding
    torch.testing.assert_close(vectors, mean(**batch).sentence_embedding)  # equal weights at the start

    idf = torch.rand(99, generator=torch.Generator().manual_seed(1)) * 5.0
    idf[20] = 0.0
    model.set_token_weights(idf)
    states = model.encoder(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    weights = (idf.clamp(min=1e-4)[batch["input_ids"]] * batch["attention_mask"])[..., None]
    pooled = (weights * states).sum(1) / weights.sum(1)
    output = model(**batch)
    expected = torch.nn.functional.normalize(model.projection(pooled), dim=-1)
    torch.testing.assert_close(output.sentence_embedding, expected, atol=1e-6, rtol=0)
    model.set_token_weights(100.0 * idf.numpy())  # only the ratios matter
    torch.testing.assert_close(model(**batch).sentence_embedding[0], expected[0], atol=1e-4, rtol=0)

    output.loss.backward()
    gradient = model.token_weights.weight.grad[:, 0]
    seen = batch["input_ids"][batch["attention_mask"].bool()].unique()
    assert (gradient[seen] != 0).any() and gradient[0] == 0 and gradient.isfinite().all()


@pytest.mark.parametrize("power", [0.0, 0.5])
@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_a_repeated_token_counts_as_a_power_of_how_often_it_occurs(power, padding_side):
    config = gur_config(pooling="weighted_mean", repeated_token_power=power)
    texts, pad = [[7, 5, 7, 7, 9, 7, 1], [5, 1]], config.pad_token_id
    padding = [[pad] * (8 - len(text)) for text in texts]
    rows = [p + t if padding_side == "left" else t + p for t, p in zip(texts, padding, strict=True)]
    ids = torch.tensor(rows)
    weights = pooling_weights(config, ids, (ids != pad).long(), torch.arange(1.0, 100.0).log())
    for text, row, row_weights in zip(texts, rows, weights.tolist(), strict=True):
        # A token's share: its weight, id + 1, times how often it occurs to the power.
        share = {token: (token + 1) * text.count(token) ** power for token in text}
        assert sum(row_weights) == pytest.approx(1.0)
        for token in range(10):
            found = sum(weight for other, weight in zip(row, row_weights, strict=True) if other == token)
            assert found == pytest.approx(share.get(token, 0.0) / sum(share.values()))


@pytest.mark.parametrize(
    "pooling, weights, said",
    [
        ("mean", torch.ones(99), 'belong to `pooling` "weighted_mean"'),
        ("weighted_mean", torch.ones(98), "each of the 99 token ids"),
        ("weighted_mean", -torch.ones(99), "finite numbers of 0 or more"),
        ("weighted_mean", torch.full((99,), math.nan), "finite numbers of 0 or more"),
    ],
)
def test_wrong_token_weights_are_refused(pooling, weights, said):
    with pytest.raises(ValueError, match=said):
        GURModel(gur_config(pooling=pooling)).set_token_weights(weights)


@pytest.mark.parametrize("pooling", ["eos", "mean", "first", "weighted_mean"])
@pytest.mark.parametrize("backbone_type", ["t5", "umt5"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_vectors_depend_neither_on_the_batch_nor_on_the_side_of_the_padding(pooling, backbone_type, attention):
    torch.manual_seed(0)
    config = gur_config(pooling=pooling, backbone_type=backbone_type)
    config._attn_implementation = attention
    model = GURModel(config).eval()
    assert model.encoder.config._attn_implementation == attention
    if pooling == "weighted_mean":
        model.set_token_weights(torch.rand(99))
    right, left = gur_batch(), gur_batch(left=True)
    vectors = model(right["input_ids"], right["attention_mask"]).pooler_output
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(6))
    moved = model(left["input_ids"], left["attention_mask"]).pooler_output
    torch.testing.assert_close(moved, vectors, atol=1e-5, rtol=0)
    for row, length in enumerate((12, 9, 12, 5, 7, 3)):
        alone = model(right["input_ids"][row : row + 1, :length]).pooler_output
        torch.testing.assert_close(alone[0], vectors[row], atol=1e-5, rtol=0)
    assert (vectors[0] - vectors[1]).norm() > 0.1


def test_a_text_without_any_token_gives_numbers():
    for pooling in ("eos", "mean", "first", "weighted_mean"):
        model = GURForPreTraining(gur_config(pooling=pooling))
        batch = gur_batch()
        batch["attention_mask"][1] = 0
        batch["labels"][:] = -100
        output = model(**batch)
        output.loss.backward()
        assert output.lm_loss == 0.0 and torch.isfinite(output.loss)
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_more_outputs_come_when_asked_for():
    config = gur_config()
    config._attn_implementation = "eager"
    output = GURModel(config)(gur_batch()["input_ids"], output_hidden_states=True, output_attentions=True)
    assert len(output.hidden_states) == 3 and len(output.attentions) == 2
    plain = GURModel(config)(gur_batch()["input_ids"], return_dict=False)
    assert isinstance(plain, tuple) and plain[1].shape == (6, 16)
