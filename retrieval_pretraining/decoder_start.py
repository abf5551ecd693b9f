r"""How the decoder of a new GUR model starts: as the best linear guess at what a mask held.

A T5 with tied embeddings reads the state h of its decoder as `logits = E h / sqrt(H)`. Where all layers pass on what
they get, h is the embedding of the token before: the model is sure that every word comes twice, at a loss far above
that of an even guess, and its first gradients undo that. Here h starts as

    h = A c + B x

with x the embedding of the token before and c the mean of the encoder's states, and A and B such that h is nearest to
the embedding of the token that comes, by least squares over masked texts (`sum_t w_t |e_t - A c_t - B x_t|^2`),
with a ridge, and `w_t = p(t)^-f`, which keeps the frequent tokens from drowning the others. Both are in reach of one
layer: its self-attention looks at the token itself alone (the relative bias of distance 0) and adds `(B - 1) x`; its
cross-attention looks at all states alike and adds `A c`. One factor, the weight of the last norm, fits how sure the
guess is.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

FREQUENCY_POWER = 0.2  # f; of 0, .2, .3, .4 and .6 the one with the lowest loss on SciFact
SHARPNESS = (0.5, 0.7, 1.0, 1.4, 2.0)
RIDGE = 1e-2
# Of the softmax, so that no other position counts: e^8 is 3,000 times as much as a bias of 0.
ITSELF_ALONE = 8.0
# Queries are scaled by this: random keys then make attention nearly even, and can still be learned.
EVEN = 0.1

IGNORED = -100


def can_start(model: nn.Module) -> bool:
    """Whether the decoder is such that one layer reaches h: tied embeddings, attention as wide as the states."""
    config = model.config
    return config.tie_word_embeddings and config.num_heads * config.d_kv >= config.d_model


@torch.no_grad()
def start_decoder(model: nn.Module, batches: Iterable[dict[str, torch.Tensor]]) -> dict[str, float]:
    """Sets the last layer of the decoder of a new `GURForPreTraining`, in place; the others should be quiet.

    Args:
        batches: as `PairCollator` makes them, gone through once and kept; the last one is not fitted to, but used to
            choose the sharpness.

    Returns `labels`, how many were fitted to, and `lm_loss_before` and `lm_loss` on the last batch, in nats.

    Raises `ValueError` where `can_start` says no, or for fewer than 2 batches.
    """
    if not can_start(model):
        raise ValueError("The decoder has untied embeddings or narrow attention: it cannot start as a linear guess.")
    batches = list(batches)
    if len(batches) < 2:
        raise ValueError(f"There are {len(batches)} batches; one is to fit to, and one to choose by.")
    training = model.training
    model.eval()
    *fitted, held_out = batches
    before = _lm_loss(model, held_out)
    context_map, token_map, labels = _fit(model, fitted)
    _set_last_layer(model, context_map, token_map)
    norm = model.decoder.final_layer_norm.weight
    losses = {}
    for sharpness in SHARPNESS:
        norm.fill_(sharpness)
        losses[sharpness] = _lm_loss(model, held_out)
    best = min(losses, key=losses.__getitem__)
    norm.fill_(best)
    model.train(training)
    return {"labels": labels, "lm_loss_before": before, "lm_loss": losses[best]}


def _fit(model, batches) -> tuple[torch.Tensor, torch.Tensor, int]:
    """A and B, [H, H] each, and the number of labels."""
    table_VH = model.get_input_embeddings().weight
    contexts, before, labels = [], [], []
    for batch in batches:
        states_BLH = model.encoder(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
        mask_BL1 = batch["attention_mask"].unsqueeze(-1).to(states_BLH.dtype)
        context_BH = (states_BLH * mask_BL1).sum(1) / mask_BL1.sum(1)
        labels_BT = batch["labels"]
        start_B1 = torch.full_like(labels_BT[:, :1], model.config.decoder_start_token_id)
        before_BT = torch.cat([start_B1, labels_BT[:, :-1]], dim=1)
        real_BT = labels_BT != IGNORED
        contexts.append(context_BH[real_BT.nonzero()[:, 0]])
        before.append(_normalised(table_VH[before_BT[real_BT]]))
        labels.append(labels_BT[real_BT])
    labels_n = torch.cat(labels)
    inputs_n = torch.cat([torch.cat(contexts), torch.cat(before)], dim=1).double()
    counts_V = torch.bincount(labels_n, minlength=len(table_VH)).double()
    weights_n = counts_V[labels_n].pow(-FREQUENCY_POWER).unsqueeze(1)
    weights_n = weights_n / weights_n.mean()
    size = inputs_n.shape[1]
    gram = inputs_n.T @ (inputs_n * weights_n) + RIDGE * len(labels_n) * torch.eye(size, dtype=torch.double)
    maps = torch.linalg.solve(gram, inputs_n.T @ (table_VH[labels_n].double() * weights_n)).to(table_VH.dtype)
    return maps[: size // 2].T, maps[size // 2 :].T, len(labels_n)


def _set_last_layer(model, context_map: torch.Tensor, token_map: torch.Tensor):
    last = model.decoder.block[-1]
    itself, encoder = last.layer[0].SelfAttention, last.layer[1].EncDecAttention
    # The bias belongs to the first layer and holds for all of them (of UMT5 each has its own).
    bias = next(
        attention.relative_attention_bias
        for attention in (itself, model.decoder.block[0].layer[0].SelfAttention)
        if getattr(attention, "has_relative_attention_bias", False)
    )
    bias.weight[0] += ITSELF_ALONE
    identity = torch.eye(model.config.d_model)
    for attention, added in ((itself, token_map - identity), (encoder, context_map)):
        attention.q.weight.mul_(EVEN)
        size = len(identity)
        attention.v.weight[:size] = identity
        attention.v.weight[size:] = 0.0
        attention.o.weight[:, :size] = added
        attention.o.weight[:, size:] = 0.0


def _lm_loss(model, batch) -> float:
    names = ("input_ids", "attention_mask", "labels")
    return model(**{name: batch[name] for name in names}).lm_loss.item()


def _normalised(vectors: torch.Tensor) -> torch.Tensor:
    """As T5's norm makes them: of mean square 1."""
    return vectors * torch.rsqrt(vectors.pow(2).mean(-1, keepdim=True) + 1e-6)
