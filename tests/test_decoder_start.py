"""The decoder of a new GUR model starts as the least squares guess at what a mask held."""

import numpy as np
import pytest
import torch
from toy_models import gur_batch, gur_config

from modeling_gur import GURForPreTraining
from retrieval_pretraining.decoder_start import FREQUENCY_POWER, RIDGE, SHARPNESS, can_start, start_decoder
from retrieval_pretraining.gur_start import quiet_layers


def toy_model(**changes) -> GURForPreTraining:
    torch.manual_seed(0)
    model = GURForPreTraining(gur_config(**changes)).eval()
    quiet_layers(model, scale=0.0)  # nothing but the embeddings, so that what is fitted is all there is
    return model


def batches(count: int = 4) -> list[dict[str, torch.Tensor]]:
    """Masked pairs; of a label, the next one is the token 7 above, so that there is something to learn."""
    made = [gur_batch(seed=seed) for seed in range(count)]
    for batch in made:
        labels = batch["labels"]
        for place in (1, 2, 4, 5):
            before = labels[:, place - 1]
            follows = (before - 10 + 7) % 80 + 10
            labels[:, place] = torch.where(
                (labels[:, place] >= 10) & (labels[:, place] < 90), follows, labels[:, place]
            )
    return made


def lm_loss(model, batch) -> float:
    with torch.no_grad():
        return model(**batch).lm_loss.item()


def expected_maps(model, made) -> np.ndarray:
    """(A B) by ordinary least squares over rows that stand for ridge and weights, in float64."""
    table = model.shared.weight.detach().double().numpy()
    inputs, targets, labels_seen = [], [], []
    for batch in made:
        with torch.no_grad():
            states = model.encoder(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
        for row in range(len(states)):
            context = states[row][batch["attention_mask"][row] == 1].double().numpy().mean(0)
            before = model.config.decoder_start_token_id
            for label in batch["labels"][row].tolist():
                if label == -100:
                    continue
                token = table[before] / np.sqrt((table[before] ** 2).mean() + 1e-6)
                inputs.append(np.concatenate([context, token]))
                targets.append(table[label])
                labels_seen.append(label)
                before = label
    counts = np.bincount(labels_seen)
    weights = counts[labels_seen].astype(float) ** -FREQUENCY_POWER
    weights = np.sqrt(weights / weights.mean())[:, None]
    size = len(inputs[0])
    ridge = np.sqrt(RIDGE * len(inputs)) * np.eye(size)
    left = np.concatenate([np.array(inputs) * weights, ridge])
    right = np.concatenate([np.array(targets) * weights, np.zeros((size, len(targets[0])))])
    return np.linalg.lstsq(left, right, rcond=None)[0]


def test_the_state_is_the_least_squares_guess_from_context_and_token_before():
    model, made = toy_model(), batches()
    maps = expected_maps(model, made[:-1])
    report = start_decoder(model, made)
    batch = gur_batch(seed=9)
    with torch.no_grad():
        states = model.encoder(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
        shifted = torch.cat([torch.zeros(len(states), 1, dtype=torch.long), batch["labels"][:, :-1]], 1).clamp(min=0)
        decoded = model.decoder(
            input_ids=shifted, encoder_hidden_states=states, encoder_attention_mask=batch["attention_mask"]
        ).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    context = ((states * mask).sum(1) / mask.sum(1)).unsqueeze(1).expand(-1, shifted.shape[1], -1)
    token = model.shared.weight[shifted]
    token = token / token.pow(2).mean(-1, keepdim=True).sqrt()
    raw = (
        model.shared.weight[shifted]
        - token
        + torch.cat([context, token], -1) @ torch.tensor(maps, dtype=torch.float32)
    )
    cosine = torch.cosine_similarity(decoded, raw.detach(), dim=-1)
    assert cosine.min() > 0.98  # attention is nearly even, and nearly on the token alone
    assert report["labels"] == sum((each["labels"] != -100).sum().item() for each in made[:-1])


def test_the_loss_falls_below_that_of_an_even_guess():
    model, made = toy_model(), batches(8)
    before = lm_loss(model, made[-1])
    report = start_decoder(model, made)
    assert report["lm_loss_before"] == pytest.approx(before)
    assert report["lm_loss"] == pytest.approx(lm_loss(model, made[-1]))
    assert report["lm_loss"] < np.log(99) - 1.0 < before  # 99 tokens


def test_the_sharpness_is_the_best_of_the_tried_ones():
    model, made = toy_model(), batches()
    report = start_decoder(model, made)
    norm = model.decoder.final_layer_norm.weight
    losses = {}
    for sharpness in SHARPNESS:
        with torch.no_grad():
            norm.fill_(sharpness)
        losses[sharpness] = lm_loss(model, made[-1])
    assert report["lm_loss"] == min(losses.values())


def test_nothing_but_the_last_layer_and_the_norm_of_the_decoder_changes():
    model = toy_model(num_decoder_layers=2).train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    start_decoder(model, batches())
    changed = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    own = [f"decoder.block.1.layer.0.SelfAttention.{part}.weight" for part in "qvo"]
    own += [f"decoder.block.1.layer.1.EncDecAttention.{part}.weight" for part in "qvo"]
    bias = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    assert changed == {*own, bias, "decoder.final_layer_norm.weight"}
    assert model.training


def test_attention_wider_than_the_states_starts_as_well():
    model, made = toy_model(num_heads=6), batches(8)  # 6 heads of 8 for 32
    assert start_decoder(model, made)["lm_loss"] < np.log(99)


@pytest.mark.parametrize("changes", [{"tie_word_embeddings": False}, {"num_heads": 2}])
def test_what_cannot_start_so_is_said(changes):
    model = toy_model(**changes)
    assert not can_start(model)
    with pytest.raises(ValueError, match="cannot start as a linear guess"):
        start_decoder(model, batches())


def test_one_batch_is_not_enough():
    with pytest.raises(ValueError, match="1 batches"):
        start_decoder(toy_model(), batches(1))
