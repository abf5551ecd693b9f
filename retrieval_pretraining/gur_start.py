"""How a GUR model from scratch starts: as the bag of its words, which training then refines.

With token embeddings from the statistics of the text (`corpus_start.py`), layers that at first pass their input on,
pooling by inverse document frequency, and a projection that starts as the identity, the sentence vector of a new model
is the IDF-weighted mean of its token vectors: a strong baseline, and a better place to start from than noise.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import nn

from retrieval_pretraining.corpus_start import corpus_start
from retrieval_pretraining.decoder_start import can_start, start_decoder
from retrieval_pretraining.document_start import document_rows
from retrieval_pretraining.spelling import spelling_features

# From so many dimensions on, they are shared: the sentence vector is a sum of token vectors, and some dimensions say
# which token it is, others what documents differ in; with fewer, the company that tokens keep needs them all. This and
# all that follows is chosen on development queries (docs/experiments.md).
WIDE_FROM = 512
COMPANY_DIMENSIONS = 256  # at most, and half of what the documents leave; identity has the rest
SINGULAR_VALUE_POWER = 0.25
DOCUMENT_SHARE = 2 / 3
DOCUMENTS_PER_DIRECTION = 4  # or they tell the few documents apart and nothing else
DOCUMENT_WEIGHT_POWER = 0.75
# How long the documents' part of a text is beside the rest.
DOCUMENT_GAIN = 3.0
# Share and gain are for documents of so many tokens or more; less in proportion for shorter ones, whose words say
# little of each other.
FULL_LENGTH = 100
# How much tokens that are spelt alike count as the same, as which token it is and in the documents.
IDENTITY_SPELLING, DOCUMENT_SPELLING = 0.5, 0.3
MAX_DOCUMENTS = 100_000  # of more, every n-th is used


@torch.no_grad()
def identity_projection(projection: nn.Module, *, noise: float = 0.02, seed: int = 0):
    """Lets a projection start as the identity: `relu(x) - relu(-x) = x`, by `W_in = [I; -I]` and `W_o = [I, -I]`.

    Takes a hidden width of at least twice the smaller of input and output size; what is wider, and the noise (relative
    to the usual deviation of a row), starts small and random, for training to use. Where the output is smaller than
    the input it is the first coordinates.

    Raises `ValueError` for a gated projection or one that is too narrow.
    """
    if len(projection.names) != 1:
        raise ValueError("A gated projection cannot start as the identity: use `feed_forward_proj` relu.")
    wi, wo = projection.wi.weight, projection.wo.weight
    width = min(wi.shape[1], wo.shape[0])
    if wi.shape[0] < 2 * width:
        raise ValueError(
            f"To start as the identity, the projection needs a `projection_hidden_dim` of {2 * width}, "
            f"not {wi.shape[0]}."
        )
    generator = torch.Generator().manual_seed(seed)
    both = torch.cat([torch.eye(width), -torch.eye(width)])
    for weight, start in ((wi, both), (wo, both.T)):
        rest = torch.randn(weight.shape, generator=generator) * noise * weight.shape[1] ** -0.5
        rest[: start.shape[0], : start.shape[1]] += start
        weight.copy_(rest)


@torch.no_grad()
def quiet_layers(model: nn.Module, *, scale: float = 0.05):
    """Makes all sublayers of encoder and decoder add little to their input at first."""
    for stack in (getattr(model, name, None) for name in ("encoder", "decoder")):
        for block in stack.block if stack is not None else ():
            for layer in block.layer:
                for name in ("SelfAttention", "EncDecAttention"):
                    if hasattr(layer, name):
                        getattr(layer, name).o.weight.mul_(scale)
                if hasattr(layer, "DenseReluDense"):
                    layer.DenseReluDense.wo.weight.mul_(scale)


def inverse_document_frequency(
    sequences: Iterable[Sequence[int]], vocab_size: int, *, special_ids: Iterable[int]
) -> np.ndarray:
    """`log((n + 1) / (df + 0.5))` of each token over n passages, float32 [vocab_size]; 0 for special tokens."""
    frequency, passages = np.zeros(vocab_size), 0
    for sequence in sequences:
        frequency[np.unique(np.asarray(sequence, dtype=np.int64))] += 1
        passages += 1
    weights = np.log((passages + 1) / (frequency + 0.5))
    weights[list(special_ids)] = 0.0
    return np.maximum(weights, 0.0).astype(np.float32)


def start_gur(
    model: nn.Module,
    sequences: Sequence[Sequence[int]],
    *,
    special_ids: Iterable[int],
    tokens: Sequence[str] | None = None,
    batches: Sequence[dict[str, torch.Tensor]] = (),
    seed: int = 0,
    show_progress: bool = True,
) -> str:
    """Starts a new `GURForPreTraining` from statistics of its training text, in place; one sentence on what was done.

    `sequences` are token ids, gone through more than once. `tokens`, the names of all ids, let a wide model know which
    are spelt alike (`spelling.py`). `batches` of masked pairs start the decoder as well (`decoder_start.py`), where it
    can be. The projection stays as it is (`identity_projection`).
    """
    begin = time.perf_counter()
    config = model.config
    special_ids = [token for token in special_ids if token < config.vocab_size]
    options = {"special_ids": special_ids, "seed": seed, "show_progress": show_progress}
    weights = None
    if config.pooling == "weighted_mean":
        weights = inverse_document_frequency(sequences, config.vocab_size, special_ids=special_ids)
    if config.d_model >= WIDE_FROM:
        own_size = config.d_model
        if tokens is not None:
            options["identity_features"] = spelling_features(tokens, share=IDENTITY_SPELLING)
        if weights is not None:
            rows = options["further_rows"] = _document_part(config, sequences, weights, tokens, seed)
            own_size -= rows.shape[1]
            # The encoder's last norm makes all token vectors equally long: their length goes into the weights.
            weights = weights * np.sqrt(1.0 + np.sum(rows**2, axis=1))
        company = min(COMPANY_DIMENSIONS, own_size // 2)
        options |= {"identity_share": 1.0 - company / own_size, "singular_value_power": SINGULAR_VALUE_POWER}
    report = corpus_start(model, sequences, **options)
    quiet_layers(model)
    if weights is not None:
        model.set_token_weights(torch.from_numpy(weights))
    started = ["token embeddings", "quiet layers"] + ["token weights"] * (weights is not None)
    if "further_rows" in options:
        started.insert(1, f"directions of the documents ({options['further_rows'].shape[1]})")
    if "identity_features" in options:
        started.insert(1, "their spelling")
    if len(batches) > 1 and can_start(model):
        guess = start_decoder(model, batches)
        started.append(f"decoder (loss {guess['lm_loss_before']:.1f} -> {guess['lm_loss']:.1f})")
    return (
        f"Start from {report['tokens']:,} tokens that show {report['vocabulary_seen']:.1%} of the vocabulary: "
        f"{', '.join(started)}, {time.perf_counter() - begin:.0f} s."
    )


def _document_part(config, sequences: Sequence[Sequence[int]], weights: np.ndarray, tokens, seed: int) -> np.ndarray:
    some = list(itertools.islice(sequences, 0, None, -(-len(sequences) // MAX_DOCUMENTS)))
    extent = min(1.0, np.mean([len(sequence) for sequence in some]) / FULL_LENGTH)
    features = None if tokens is None else spelling_features(tokens, share=DOCUMENT_SPELLING)
    rows = document_rows(
        some,
        weights,
        dimensions=max(1, round(extent * min(DOCUMENT_SHARE * config.d_model, len(some) / DOCUMENTS_PER_DIRECTION))),
        repeated_token_power=config.repeated_token_power,
        weight_power=DOCUMENT_WEIGHT_POWER,
        features=features,
        seed=seed,
    )
    return rows * np.float32(DOCUMENT_GAIN * extent)
