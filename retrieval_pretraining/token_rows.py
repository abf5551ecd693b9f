"""The rows that a model has for its tokens, when it gets another vocabulary (`vocabulary.py`).

Whatever has a row for each token follows: token embeddings, the MLM head and so RetroMAE's decoder and bag of words,
T5's LM head, tied or not, GUR's token weights, and the ids in the configuration. How the rows of new tokens start:

- "pieces": the mean of the old rows of the token's pieces;
- "statistics": predicted from that mean and from the company that the token keeps in the training text
  (`cooccurrence_embeddings`), by a linear map that is fitted on the tokens that keep their rows.

Shapes: V rows of the new vocabulary, U of the old one, E size of a row.
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
_RIDGE = 0.1


@torch.no_grad()
def move_rows(
    model: PreTrainedModel,
    change: VocabularyChange,
    sequences: Sequence[Sequence[int]] | None = None,
    *,
    init: str = DEFAULT_INIT,
    seed: int = 0,
    max_tokens: int = 20_000_000,
    show_progress: bool = True,
) -> str:
    """Gives the model the new vocabulary, in place; one sentence on how new tokens start.

    Kept rows move to their new ids. A model that has more rows than its tokenizer has tokens keeps them where the
    vocabulary is only extended.

    Args:
        sequences: token ids of the training text in the new vocabulary; gone through twice, so not a generator. With
            them the output biases of new tokens follow from their counts, as those of kept tokens do.
        init: "pieces", or "statistics", which needs `sequences`.
        max_tokens: of a longer text every n-th passage is used for the statistics.

    Raises:
        InputError: a model that counts positions from its padding id on would get another one.
    """
    padding_id = _padding_of_positions(model)
    if padding_id is not None and change.moved is not None and change.moved.get(padding_id) != padding_id:
        raise InputError(
            "--tokenizer_vocab_size is too small for this model's padding id, which cannot change; use more."
        )
    old = {name: _array(table) for name, table in _tables(model).items()}
    kept_V, pieces_VU = _fitted_to(change, rows=model.config.vocab_size)
    counts_V = vectors_VE = None
    said = "new tokens start from the mean of their pieces"
    if sequences is not None:
        counts_V = token_counts(sequences, len(kept_V))
        counts_V[change.special_ids] = 0
        new = np.setdiff1d(np.flatnonzero(kept_V < 0), change.special_ids)
        said = f"the text has {np.count_nonzero(counts_V[new]):,} of {len(new):,} new tokens; they start from "
        enough = np.count_nonzero(_learnable(kept_V, pieces_VU, counts_V)) > 2 * old["embeddings"].shape[1]
        if init == "statistics" and enough:
            vectors_VE = cooccurrence_embeddings(
                itertools.islice(sequences, 0, None, -(-int(counts_V.sum()) // max_tokens)),
                vocab_size=len(kept_V),
                hidden_size=old["embeddings"].shape[1],
                excluded_ids=change.special_ids,
                seed=seed,
                standard_deviation=1.0,
                show_progress=show_progress,
            )
            said += "their pieces and its statistics"
        else:
            too_few = ", as it has too few kept ones for statistics" if init == "statistics" else ""
            said += f"the mean of their pieces{too_few}"

    _resize(model, len(kept_V), _moved_ids(model.config, change.moved))
    for name, table in _tables(model).items():
        rows = _new_rows(name, old[name], kept_V, pieces_VU, counts_V, vectors_VE)
        rows[kept_V >= 0] = old[name][kept_V[kept_V >= 0]]
        table.copy_(torch.from_numpy(rows).reshape(table.shape))
    return said


def _array(table: torch.Tensor) -> np.ndarray:
    return table.detach().float().cpu().numpy().reshape(len(table), -1).copy()


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


def _fitted_to(change: VocabularyChange, *, rows: int) -> tuple[np.ndarray, sparse.csr_matrix]:
    """`kept_V` and `pieces_VU` for a model of so many rows: more or fewer than its tokenizer has tokens."""
    kept_V, pieces_VU = change.kept_V.copy(), sparse.csr_matrix(change.pieces_VU[:, :rows])
    if change.moved is None:
        kept_V = np.concatenate([kept_V, np.arange(len(kept_V), rows)])
    kept_V[kept_V >= rows] = -1
    pieces_VU.resize(len(kept_V), rows)
    return kept_V, pieces_VU


def _new_rows(
    name: str,
    old: np.ndarray,
    kept_V: np.ndarray,
    pieces_VU: sparse.csr_matrix,
    counts_V: np.ndarray | None,
    vectors_VE: np.ndarray | None,
) -> np.ndarray:
    """A table as if all tokens were new; a token without pieces gets what tokens have on average."""
    number_V1 = np.asarray(pieces_VU.sum(axis=1))
    some = number_V1[:, 0] > 0
    rows = np.repeat(old.mean(0, keepdims=True), len(kept_V), axis=0)
    if name == "bias":
        # New tokens are rare ones, however frequent their pieces are.
        rows[:] = np.quantile(old, 0.25)
        seen = None if counts_V is None else (kept_V >= 0) & (counts_V > 0)
        if seen is not None and np.unique(counts_V[seen]).size > 1:
            logs = np.log(counts_V + 0.5)
            rows[:, 0] = np.polyval(np.polyfit(logs[seen], old[kept_V[seen], 0], 1), logs)
    elif name == "token_weights":
        # Logarithms: in the mean over a text, a token counts as all its pieces did.
        rows[some] = np.log(pieces_VU[some] @ np.exp(old))
    else:
        rows[some] = pieces_VU[some] @ old / number_V1[some]
        if vectors_VE is not None:
            learnable = _learnable(kept_V, pieces_VU, counts_V)
            predicted = _predicted(old, rows, vectors_VE, kept_V, counts_V, learnable)
            rows[counts_V > 0] = predicted[counts_V > 0]
    return rows.astype(np.float32)


def _learnable(kept_V: np.ndarray, pieces_VU: sparse.csr_matrix, counts_V: np.ndarray) -> np.ndarray:
    """The tokens that show how rows follow from pieces and text: kept, in the text, and with pieces."""
    return (kept_V >= 0) & (counts_V > 0) & (np.diff(pieces_VU.indptr) > 0)


def _predicted(
    old: np.ndarray,
    pieces_VE: np.ndarray,
    vectors_VE: np.ndarray,
    kept_V: np.ndarray,
    counts_V: np.ndarray,
    learnable: np.ndarray,
) -> np.ndarray:
    """Rows by weighted least squares, [V, E]:

        W = argmin sum_t c_t^0.5 |[x_t, p_t] W - (e_t - e)|^2 + ridge |W|^2

    over the tokens t that can be learned from, with c_t their count, e_t their row and e the mean of such rows, x_t
    their vector from the text and p_t the mean of their pieces, both centred and of length 1 on average. Each
    prediction is scaled to the distance that rows have from e on average: a fit that explains little is short.
    """
    truth = old[kept_V[learnable]].astype(np.float64)
    mean = truth.mean(0)
    distance = np.linalg.norm(truth - mean, axis=1).mean()
    features = []
    for each in (vectors_VE, pieces_VE):
        centred = each - each[learnable].mean(0, dtype=np.float64)
        features.append(centred / max(np.linalg.norm(centred[learnable], axis=1).mean(), 1e-12))
    features = np.concatenate(features, axis=1)
    weighted = features[learnable] * np.sqrt(counts_V[learnable])[:, None]
    gram = weighted.T @ features[learnable]
    gram += _RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
    predicted = features @ np.linalg.solve(gram, weighted.T @ (truth - mean))
    return mean + predicted * (distance / np.maximum(np.linalg.norm(predicted, axis=1, keepdims=True), 1e-12))


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


def fit_vocabulary(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    change: VocabularyChange | None = None,
    sequences: Sequence[Sequence[int]] | None = None,
    *,
    checkpoint: str | None = None,
    **options,
) -> str | None:
    """Gives a model the vocabulary of its run's tokenizer, in place; a sentence, if there is something to say.

    With a `checkpoint`, whose weights will be loaded into the model, it gets as many rows and the same special ids.
    Without `change` the model's own tokenizer is not known, and new rows are drawn around the mean of the others.
    `options` are those of `move_rows`.
    """
    if checkpoint is not None:
        saved = type(model.config).from_pretrained(checkpoint)
        _resize(model, saved.vocab_size, _special_ids(saved))
    elif change is not None:
        return move_rows(model, change, sequences, **options)
    elif len(tokenizer) > model.config.vocab_size:
        said = f"vocabulary: {model.config.vocab_size:,} -> {len(tokenizer):,} tokens"
        model.resize_token_embeddings(len(tokenizer))
        return said
    return None
