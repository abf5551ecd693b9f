"""The rows that a model has for its tokens, when it gets another vocabulary (`vocabulary.py`).

Whatever has a row for each token follows: token embeddings, the MLM head and so RetroMAE's decoder and bag of words,
T5's LM head, tied or not, GUR's token weights, and the ids in the configuration. How the rows of new tokens start:

- "pieces": the mean of the old rows of the token's pieces;
- "statistics": which tokens of the training text stand together gives each token a vector (`corpus_start.py`), and a
  linear map, fitted by least squares on the tokens that kept their rows, takes it into the space of those rows.

Shapes: V tokens of the new vocabulary, U of the old one, E size of a row.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import sparse
from torch import nn

from retrieval_pretraining.corpus_start import cooccurrence_embeddings, token_counts
from retrieval_pretraining.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from retrieval_pretraining.vocabulary import VocabularyChange

DEFAULT_INIT = "statistics"

_CONFIG_IDS = [f"{role}_token_id" for role in ("pad", "bos", "eos", "cls", "sep", "mask", "decoder_start")]
_RIDGE = 1e-5


@torch.no_grad()
def move_rows(model: PreTrainedModel, change: VocabularyChange):
    """Gives the model the new vocabulary, in place: kept rows move to their new ids, the others start from pieces.

    A model that has more rows than its tokenizer has tokens keeps them where the vocabulary is only extended.

    Raises:
        InputError: a model that counts positions from its padding id on would get another one.
    """
    padding_id = _padding_of_positions(model)
    if padding_id is not None and change.moved is not None and change.moved.get(padding_id) != padding_id:
        raise InputError(
            "--tokenizer_vocab_size is too small for this model's padding id, which cannot change; use more."
        )
    old = {name: table.detach().clone() for name, table in _tables(model).items()}
    pieces = _pieces(change, rows=model.config.vocab_size)
    _resize(model, pieces.shape[0], _moved_ids(model.config, change.moved))
    for name, table in _tables(model).items():
        table.copy_(_started(name, old[name], pieces))


def _tables(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    """All that has a row for each token, [V, E] or [V]."""
    tokens, head = model.get_input_embeddings(), model.get_output_embeddings()
    tables = {"embeddings": tokens.weight}
    if head is not None and head.weight is not tokens.weight:
        tables["head"] = head.weight
    if getattr(head, "bias", None) is not None:
        tables["bias"] = head.bias
    if hasattr(model, "token_weights"):
        tables["token_weights"] = model.token_weights.weight
    return tables


def _pieces(change: VocabularyChange, *, rows: int) -> sparse.csr_matrix:
    """The pieces of each token, for a model of so many rows: more or fewer than its tokenizer has tokens."""
    pieces = sparse.csr_matrix(change.pieces_VU[:, :rows])
    pieces.resize(pieces.shape[0], rows)
    if change.moved is None and rows > pieces.shape[0]:
        pieces = sparse.vstack([pieces, sparse.eye(rows, format="csr")[pieces.shape[0] :]], format="csr")
    return pieces


def _started(name: str, old: torch.Tensor, pieces: sparse.csr_matrix) -> torch.Tensor:
    """A table for the new vocabulary; a token without pieces gets what tokens have on average."""
    table = old.float().cpu().numpy().reshape(len(old), -1)
    count = np.asarray(pieces.sum(axis=1))
    some, one = count[:, 0] > 0, count[:, 0] == 1
    started = np.empty((pieces.shape[0], table.shape[1]), dtype=np.float32)
    started[:] = table.mean(0)
    if name == "bias":
        # New tokens are rare ones, however frequent their pieces are (`fit_rows` knows better).
        started[:] = np.quantile(table, 0.25)
    elif name == "token_weights":
        # Logarithms: in the mean over a text, a token counts as all its pieces did.
        started[some] = np.log(pieces[some] @ np.exp(table))
    else:
        started[some] = pieces[some] @ table / count[some]
    started[one] = pieces[one] @ table
    return torch.from_numpy(started).to(old).reshape(-1, *old.shape[1:])


def _padding_of_positions(model: PreTrainedModel) -> int | None:
    """The padding id that an encoder of RoBERTa's family counts its positions from."""
    embeddings = getattr(getattr(model.base_model, "encoder", None), "embeddings", None)
    return getattr(embeddings, "padding_idx", None)


def _special_ids(config) -> dict[str, int | list[int] | None]:
    config = getattr(config, "encoder_config", config)
    return {name: getattr(config, name, None) for name in _CONFIG_IDS}


def _moved_ids(config, moved: dict[int, int] | None) -> dict[str, int | list[int] | None]:
    ids = _special_ids(config)
    if moved is None:
        return ids
    for name, before in ids.items():
        several = isinstance(before, list)
        ids[name] = [moved[number] for number in before if number in moved] if several else moved.get(before)
    return ids


def _resize(model: PreTrainedModel, rows: int, ids: dict[str, int | list[int] | None]):
    """Other rows, and other ids of special tokens in the configurations of the model and its parts."""
    has_padding = model.get_input_embeddings().padding_idx is not None
    model.resize_token_embeddings(rows, mean_resizing=False)
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    configs = [getattr(config, "encoder_config", config) for config in configs]
    for config in filter(None, [*configs, getattr(model, "generation_config", None)]):
        for name, number in ids.items():
            if getattr(config, name, None) is not None:
                setattr(config, name, number)
    if has_padding:  # which a smaller table may have lost
        model.get_input_embeddings().padding_idx = model.config.pad_token_id


# --- What the training text says ---


@torch.no_grad()
def fit_rows(
    model: PreTrainedModel,
    change: VocabularyChange,
    sequences: Sequence[Sequence[int]],
    *,
    init: str = DEFAULT_INIT,
    seed: int = 0,
    max_tokens: int = 20_000_000,
    show_progress: bool = True,
) -> str:
    """Improves the rows of new tokens by statistics of the training text, in place; one sentence on what was done.

    In any case the output biases of new tokens follow from their counts, as those of kept tokens do. With `init`
    "statistics" the rows of all new tokens that the text shows are predicted too, by

        W = argmin sum_t c_t^0.5 |[x_t, 1] W - e_t|^2 + ridge |W|^2

    over the kept tokens t, with x_t the token's vector from the text, e_t its row and c_t its count; the predictions
    are scaled to the length that rows of kept tokens have at this count. New tokens that the text does not show keep
    the mean of their pieces.

    Args:
        sequences: token ids of the passages in the new vocabulary; gone through twice, so not a generator.
        max_tokens: of a longer text every n-th passage is used for the vectors.
    """
    tables = _tables(model)
    size = model.config.vocab_size
    counts = token_counts(sequences, size)
    counts[change.special_ids] = 0
    kept = np.zeros(size, dtype=bool)
    kept[: len(change.kept_V)] = change.kept_V >= 0
    new = np.zeros(size, dtype=bool)
    new[: len(change.kept_V)] = change.kept_V < 0
    new[change.special_ids] = False
    shared, wanted = kept & (counts > 0), new & (counts > 0)
    said = f"{int(wanted.sum()):,} of {int(new.sum()):,} new tokens are in the text"
    if "bias" in tables and shared.sum() > 1:
        _set(tables["bias"], new, _line(counts, tables["bias"].float().cpu().numpy(), shared)[new])
    if init != "statistics" or not wanted.any():
        return f"{said}; their rows are the mean of their pieces."
    embedding_size = tables["embeddings"].shape[1]
    if shared.sum() <= 2 * embedding_size:
        return f"{said}; too few kept tokens are, so that the rows of new ones are the mean of their pieces."
    vectors = cooccurrence_embeddings(
        itertools.islice(sequences, 0, None, -(-int(counts.sum()) // max_tokens)),
        vocab_size=size,
        hidden_size=embedding_size,
        excluded_ids=change.special_ids,
        seed=seed,
        standard_deviation=1.0,
        show_progress=show_progress,
    )
    for name in ("embeddings", "head"):
        if name in tables:
            rows = tables[name].float().cpu().numpy()
            _set(tables[name], wanted, _predicted(vectors, rows, counts, shared)[wanted])
    return f"{said}; their rows follow from {int(counts.sum()):,} tokens of text and {int(shared.sum()):,} kept rows."


def _set(table: nn.Parameter, where: np.ndarray, values: np.ndarray):
    table[torch.from_numpy(where).to(table.device)] = torch.from_numpy(values).to(table)


def _line(counts: np.ndarray, values: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """`values` [V] as a line in the logarithm of the count, fitted where `shared`."""
    logs = np.log(counts + 0.5)
    return np.polyval(np.polyfit(logs[shared], values[shared], 1), logs)


def _predicted(vectors: np.ndarray, rows: np.ndarray, counts: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """The weighted least squares of `fit_rows`, [V, E]."""
    weight = np.sqrt(counts[shared].astype(np.float64))[:, None]
    design = np.concatenate([vectors, np.ones((len(vectors), 1))], axis=1).astype(np.float64)
    gram = design[shared].T @ (weight * design[shared])
    gram += _RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
    predicted = design @ np.linalg.solve(gram, design[shared].T @ (weight * rows[shared]))
    lengths = np.linalg.norm(rows, axis=1)
    wanted = np.exp(_line(counts, np.log(np.maximum(lengths, 1e-6)), shared))
    return predicted * (wanted / np.maximum(np.linalg.norm(predicted, axis=1), 1e-6))[:, None]


# --- A run ---


def fit_vocabulary(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    change: VocabularyChange | None = None,
    *,
    checkpoint: str | None = None,
):
    """Gives a model the vocabulary of its run's tokenizer, in place.

    With a `checkpoint`, whose weights will be loaded into the model, it gets as many rows and the same special ids.
    Without `change` the model's own tokenizer is not known, and new rows are drawn around the mean of the others.
    """
    size = model.config.vocab_size
    if checkpoint is not None:
        saved = type(model.config).from_pretrained(checkpoint)
        _resize(model, saved.vocab_size, _special_ids(saved))
    elif change is not None:
        move_rows(model, change)
    elif len(tokenizer) > size:
        model.resize_token_embeddings(len(tokenizer))
