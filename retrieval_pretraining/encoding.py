"""Texts -> vectors, in batches of like length: any encoder for `encode_texts`, and the models of this project as they
were trained, where text that spells a special token is text.

Shapes: B texts of a batch, L positions, H size of a vector.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from tqdm.auto import tqdm

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.passages import encode_documents

OUR_MODELS = ("gur", "retromae")  # model types whose `pooler_output` is the sentence vector
PROGRESS_BAR_FROM = 1000  # texts or queries; fewer are done in seconds

_TEXTS_AT_ONCE = 1000  # tokenised; what a tokenizer returns takes far more memory than the ids


def encode_texts(
    model,
    tokenizer,
    texts: Sequence[str],
    *,
    max_seq_length: int | None = None,
    batch_size: int = 64,
    pooling: str | None = None,
    normalize: bool = True,
    device: str | torch.device | None = None,
    progress: bool | None = None,
) -> np.ndarray:
    """One vector a text, float32 [len(texts), H], in the order of `texts` whatever the batch size.

    `model` is any transformers encoder; of a model with a head, `model.base_model` is used. `pooling`: "cls" (first
    token), "mean" (over the attention mask) or "pooler_output" (the sentence vector of the models of this project,
    and their default; that of others is "cls"). Texts are cut at `max_seq_length` tokens; by default at what model and
    tokenizer take, 512 at most. With `device` the model moves there; its training flags stay as they were. `progress`
    None shows a bar for many texts only. `InputError` if the pooling or the length does not suit the model.
    """
    encoder = model.base_model
    ours = encoder.config.model_type in OUR_MODELS
    if pooling is None:
        pooling = "pooler_output" if ours else "cls"
    if pooling not in ("cls", "mean", "pooler_output"):
        raise InputError(f'pooling is "{pooling}"; choose "cls", "mean" or "pooler_output".')
    if pooling == "pooler_output" and type(encoder).__module__.startswith("transformers.models."):
        # theirs is a layer for next-sentence prediction, often not even in the checkpoint
        raise InputError(f'{type(encoder).__name__} pools no sentence vector; use pooling="cls" or "mean".')
    max_seq_length = check_length(encoder, tokenizer, max_seq_length)
    if ours:
        sequences, _ = text_sequences(texts, tokenizer, max_seq_length=max_seq_length, progress=progress)
    else:
        sequences = []
        for block in _blocks(texts, progress):
            ids = tokenizer(block, truncation=True, max_length=max_seq_length)["input_ids"]
            sequences += [np.array(row, dtype=np.int32) for row in ids]
    return encode_sequences(
        model,
        sequences,
        pad_token_id=tokenizer.pad_token_id,
        batch_size=batch_size,
        pooling=pooling,
        normalize=normalize,
        device=device,
        progress=progress,
    )


def text_sequences(
    texts: Sequence[str],
    tokenizer,
    *,
    max_seq_length: int,
    overflow: str = "truncate",
    progress: bool | None = None,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Texts -> token ids as in pre-training (`passages.encode_documents`), and the text that each sequence is of.

    `overflow` is "truncate" (one sequence a text) or "chunk" (the whole text, in sequences of `max_seq_length`
    tokens). A text without tokens becomes one sequence, of special tokens alone. Returns int32 arrays and int64
    [sequences], ascending. `InputError` as `encode_documents`.
    """
    last_id = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    empty = np.array([each for each in (tokenizer.cls_token_id, last_id) if each is not None], dtype=np.int32)
    sequences: list[np.ndarray] = []
    counts: list[int] = []
    for block in _blocks(texts, progress):
        encoded = encode_documents(block, tokenizer, max_seq_length=max_seq_length, overflow=overflow)
        of_text: list[list[np.ndarray]] = [[] for _ in block]
        for number, ids in zip(encoded["document"], encoded["input_ids"], strict=True):
            of_text[number].append(np.array(ids, dtype=np.int32))
        for own in of_text:
            sequences += own or [empty]
            counts.append(len(own) or 1)
    return sequences, np.repeat(np.arange(len(texts)), counts)


@torch.no_grad()  # not inference_mode: what a module caches here must still serve the training that goes on
def encode_sequences(
    model,
    sequences: Sequence[np.ndarray],
    *,
    pad_token_id: int | None,
    batch_size: int = 64,
    pooling: str = "pooler_output",
    normalize: bool = True,
    device: str | torch.device | None = None,
    progress: bool | None = None,
) -> np.ndarray:
    """One vector a sequence of token ids, float32 [len(sequences), H]; for the rest see `encode_texts`."""
    encoder = model.base_model
    if device is not None:
        model.to(device)
    device = next(encoder.parameters()).device
    # longest first: little padding, and too large a batch fails at once
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]), reverse=True)
    vectors = np.empty((0, 0), dtype=np.float32)
    with evaluation_mode(encoder), progress_bar(len(sequences), "Encoding", "text", progress) as bar:
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            ids_BL, mask_BL = pad_right([sequences[i] for i in rows], pad_token_id, device)
            # no token_type_ids: one text is one segment, the default, and not every backbone takes them
            pooled_BH = _pool(encoder(input_ids=ids_BL, attention_mask=mask_BL), mask_BL, pooling)
            if normalize:
                pooled_BH = torch.nn.functional.normalize(pooled_BH, dim=-1)
            if start == 0:
                vectors = np.empty((len(sequences), pooled_BH.shape[-1]), dtype=np.float32)
            vectors[rows] = pooled_BH.cpu().numpy()
            bar.update(len(rows))
    return vectors


def pad_right(
    sequences: Sequence[np.ndarray], pad_token_id: int | None, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask, int64 [B, L] each; padded on the right, since "cls" reads position 0."""
    length = max(1, max(map(len, sequences)))
    ids_BL = np.full((len(sequences), length), pad_token_id or 0, dtype=np.int64)
    mask_BL = np.zeros_like(ids_BL)
    for row, ids in enumerate(sequences):
        ids_BL[row, : len(ids)], mask_BL[row, : len(ids)] = ids, 1
    return torch.from_numpy(ids_BL).to(device), torch.from_numpy(mask_BL).to(device)


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Dropout off, and on the way out each module as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def check_texts(texts: Sequence[str], what: str = "texts") -> None:
    """`InputError` unless they are one or more strings."""
    if isinstance(texts, str):
        raise InputError(f"The {what} are one string; give a list of strings.")
    if not len(texts):
        raise InputError(f"There are no {what}; give at least one.")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"{what}[{number}] is of type {type(text).__name__}; give strings.")


def check_length(encoder, tokenizer, max_seq_length: int | None) -> int:
    """The length at which texts are cut; `InputError` if it is more than the model has positions for."""
    reach = []
    for name, table in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(table, torch.nn.Embedding):
            # RoBERTa and its kin count positions from padding_idx + 1
            reach.append(table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1))
    if max_seq_length is None:
        configured = getattr(encoder.config, "max_position_embeddings", None) or 512
        return min(tokenizer.model_max_length, configured, 512, *reach)
    if reach and max_seq_length > min(reach):
        raise InputError(f"max_seq_length is {max_seq_length}, but the model takes {min(reach)} at most; lower it.")
    return max_seq_length


def progress_bar(total: int, description: str, unit: str, progress: bool | None) -> tqdm:
    """A bar that leaves no trace; `progress` None shows it where there is much to do."""
    shown = total >= PROGRESS_BAR_FROM if progress is None else progress
    return tqdm(total=total, desc=description, unit=unit, leave=False, disable=not shown)


def _blocks(texts: Sequence[str], progress: bool | None) -> Iterator[list[str]]:
    with progress_bar(len(texts), "Tokenizing", "text", progress) as bar:
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            block = list(texts[start : start + _TEXTS_AT_ONCE])
            yield block
            bar.update(len(block))


def _pool(output, mask_BL: torch.Tensor, pooling: str) -> torch.Tensor:
    if pooling == "pooler_output":
        if getattr(output, "pooler_output", None) is None:
            raise InputError('The model gives no pooler_output; use pooling="cls" or "mean".')
        return output.pooler_output.float()
    states_BLH = output.last_hidden_state.float()
    if pooling == "cls":
        return states_BLH[:, 0]
    mask_BL1 = mask_BL.unsqueeze(-1).float()
    return (states_BLH * mask_BL1).sum(dim=1) / mask_BL1.sum(dim=1).clamp(min=1)
