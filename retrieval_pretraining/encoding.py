"""Texts -> vectors, in batches of like length: any encoder for `encode_texts`, and the models of this project as they
were trained, where text that spells a special token is text.

Shapes: B texts of a batch, L positions, H size of a vector.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.passages import encode_documents

OUR_MODELS = ("gur", "retromae")  # model types whose `pooler_output` is the sentence vector
POOLINGS = ("cls", "mean", "eos", "pooler_output")
PROGRESS_BAR_FROM = 1000  # texts or queries; fewer are done in seconds

_TEXTS_AT_ONCE = 1000  # tokenised; what a tokenizer returns takes far more memory than the ids

# On a CPU a batch holds so many tokens at most, padding included: the states of more do not stay in its caches.
# Its threads take a batch each, as those of one batch wait for the slowest after every operation. Only for models that
# are known to keep no state from call to call.
_TOKENS_AT_ONCE_ON_CPU = 4096
_BATCHES_AT_ONCE_ON_CPU = 8
_STATELESS_MODELS = (
    *OUR_MODELS,
    *("bert", "roberta", "xlm-roberta", "distilbert", "electra", "albert", "deberta-v2", "mpnet", "modernbert"),
    *("t5", "mt5", "umt5"),
)


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
    token), "mean" (over the attention mask), "eos" (last token of the attention mask) or "pooler_output" (the sentence
    vector of the models of this project, and their default; that of others is "cls"). Texts are cut at
    `max_seq_length` tokens; by default at what model and tokenizer take, 512 at most. `batch_size` is the most texts
    that run at once; on a CPU, long ones run in smaller batches, which is faster. With `device` the model moves there;
    its training flags stay as they were. `progress` None shows a bar for many texts only. `InputError` if the pooling
    or the length does not suit the model.
    """
    pooling = check_pooling(model, pooling)
    sequences, _ = model_sequences(model, tokenizer, texts, max_seq_length=max_seq_length, progress=progress)
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


def model_sequences(
    model,
    tokenizer,
    texts: Sequence[str],
    *,
    max_seq_length: int | None = None,
    overflow: str = "truncate",
    progress: bool | None = None,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Texts -> token ids as the model was trained on them, and the text that each sequence is of.

    The models of this project get `text_sequences`, others what their tokenizer makes of a text. `overflow` and what
    is returned are as there. `InputError` if the length does not suit the model.
    """
    encoder = model.base_model
    max_seq_length = check_length(encoder, tokenizer, max_seq_length)
    options = dict(max_seq_length=max_seq_length, progress=progress)
    if encoder.config.model_type in OUR_MODELS:
        return text_sequences(texts, tokenizer, overflow=overflow, **options)
    prefix, suffix = ([], []) if overflow == "truncate" else _special_ids(tokenizer)
    room = max_seq_length - len(prefix) - len(suffix)
    known = (tokenizer.eos_token_id, tokenizer.cls_token_id, tokenizer.pad_token_id)
    empty = [next((each for each in known if each is not None), 0)]  # where nothing is put around a text
    sequences: list[np.ndarray] = []
    counts: list[int] = []
    for block in _blocks(texts, progress):
        if overflow == "truncate":
            chunks = [[ids] for ids in tokenizer(block, truncation=True, max_length=max_seq_length)["input_ids"]]
        else:  # not by the tokenizer: tokenizers 0.23.1 drops what is behind the second chunk
            whole = tokenizer(block, add_special_tokens=False, verbose=False)["input_ids"]
            starts = [range(0, max(1, len(ids)), room) for ids in whole]
            chunks = [[[*prefix, *ids[i : i + room], *suffix] for i in own] for ids, own in zip(whole, starts)]
        sequences += [np.array(ids or empty, dtype=np.int32) for own in chunks for ids in own]
        counts += map(len, chunks)
    return sequences, np.repeat(np.arange(len(texts)), counts)


def _special_ids(tokenizer) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and behind a text."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    raise InputError("The tokenizer makes other tokens of a text that it puts special ones around; leave chunks out.")


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
        # Full chunks, as other models get: where they are cut is no difference between models.
        options = {"overflow": overflow, "chunk_boundary": "token"}
        encoded = encode_documents(block, tokenizer, max_seq_length=max_seq_length, **options)
        of_text: list[list[np.ndarray]] = [[] for _ in block]
        for number, ids in zip(encoded["document"], encoded["input_ids"], strict=True):
            of_text[number].append(np.array(ids, dtype=np.int32))
        for own in of_text:
            sequences += own or [empty]
            counts.append(len(own) or 1)
    return sequences, np.repeat(np.arange(len(texts)), counts)


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
    if not len(sequences):
        return np.empty((0, 0), dtype=np.float32)

    @torch.no_grad()  # not inference_mode: what a module caches here must still serve the training that goes on
    def encode_batch(rows: list[int]) -> np.ndarray:
        ids_BL, mask_BL = pad_right([sequences[i] for i in rows], pad_token_id, device)
        # no token_type_ids: one text is one segment, the default, and not every backbone takes them
        pooled_BH = _pool(encoder(input_ids=ids_BL, attention_mask=mask_BL), mask_BL, pooling)
        if normalize:
            pooled_BH = torch.nn.functional.normalize(pooled_BH, dim=-1)
        return pooled_BH.cpu().numpy()

    vectors = None
    for rows, pooled_BH in map_batches(encoder, sequences, encode_batch, batch_size=batch_size, progress=progress):
        if vectors is None:
            vectors = np.empty((len(sequences), pooled_BH.shape[1]), dtype=np.float32)
        vectors[rows] = pooled_BH
    return vectors


def map_batches(
    model,
    sequences: Sequence[np.ndarray],
    encode_batch: Callable[[list[int]], Any],
    *,
    batch_size: int,
    tokens_at_once: int | None = None,
    progress: bool | None = None,
) -> Iterator[tuple[list[int], Any]]:
    """Which sequences run together, and what `encode_batch` makes of them, in evaluation mode; the longest come first.

    A batch holds `batch_size` sequences at most, and with `tokens_at_once` so many tokens, padding included, unless it
    is one sequence; on a CPU long ones run in smaller batches in any case, several in threads of their own.
    """
    device = next(model.parameters()).device
    longest, *batches = _batches(sequences, batch_size, device, tokens_at_once)
    with evaluation_mode(model), progress_bar(len(sequences), "Encoding", "text", progress) as bar:
        yield longest, encode_batch(longest)  # alone: too large a batch fails at once
        bar.update(len(longest))
        with _map_in_threads(_threads(model, len(batches))) as run:
            for rows, encoded in zip(batches, run(encode_batch, batches), strict=True):
                yield rows, encoded
                bar.update(len(rows))


def _batches(
    sequences: Sequence[np.ndarray], batch_size: int, device: torch.device, tokens_at_once: int | None = None
) -> list[list[int]]:
    """Which sequences run together, the longest first: of like length, so that little is padding."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]), reverse=True)
    limits = [_TOKENS_AT_ONCE_ON_CPU] if device.type == "cpu" else []
    limits += [] if tokens_at_once is None else [tokens_at_once]
    batches, start = [], 0
    while start < len(order):
        length = max(1, len(sequences[order[start]]))
        size = min([batch_size, *(max(1, limit // length) for limit in limits)])
        batches.append(order[start : start + size])
        start += size
    return batches


def _threads(encoder, batches: int) -> int:
    """How many batches to run at once: on a CPU, if there are enough to keep all of its threads busy."""
    on_cpu = next(encoder.parameters()).device.type == "cpu"
    if not on_cpu or encoder.config.model_type not in _STATELESS_MODELS:
        return 1
    return max(1, min(torch.get_num_threads(), _BATCHES_AT_ONCE_ON_CPU, batches // 4))


@contextmanager
def _map_in_threads(threads: int) -> Iterator[Callable]:
    """`map`, with so many calls at once; each gets its share of torch's threads, and afterwards all are as before."""
    if threads == 1:
        yield map
        return
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // threads))
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool.map
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


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


def check_pooling(model, pooling: str | None) -> str:
    """The pooling, or the model's own for None; `InputError` for an unknown one, or one that the model lacks."""
    encoder = model.base_model
    if pooling is None:
        return "pooler_output" if encoder.config.model_type in OUR_MODELS else "cls"
    if pooling not in POOLINGS:
        raise InputError(f'pooling is "{pooling}"; choose "cls", "mean", "eos" or "pooler_output".')
    if pooling == "pooler_output" and type(encoder).__module__.startswith("transformers.models."):
        # theirs is a layer for next-sentence prediction, often not even in the checkpoint
        raise InputError(f'{type(encoder).__name__} pools no sentence vector; use pooling="cls", "mean" or "eos".')
    return pooling


def check_length(encoder, tokenizer, max_seq_length: int | None, *, most: int = 512) -> int:
    """The length at which texts are cut, for None what model and tokenizer take, `most` at most; `InputError` if it is
    more than the model has positions for, or leaves no room for text."""
    reach = []
    for name, table in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(table, torch.nn.Embedding):
            # RoBERTa and its kin count positions from padding_idx + 1
            reach.append(table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1))
    if max_seq_length is None:
        configured = getattr(encoder.config, "max_position_embeddings", None) or most
        return min(tokenizer.model_max_length, configured, most, *reach)
    if max_seq_length <= tokenizer.num_special_tokens_to_add():
        raise InputError(f"max_seq_length is {max_seq_length}, which leaves no room for text; use more.")
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
            raise InputError('The model gives no pooler_output; use pooling="cls", "mean" or "eos".')
        return output.pooler_output.float()
    states_BLH = output.last_hidden_state.float()
    if pooling == "cls":
        return states_BLH[:, 0]
    if pooling == "eos":
        last_B = (mask_BL.sum(dim=1) - 1).clamp(min=0)
        return states_BLH[torch.arange(len(states_BLH), device=states_BLH.device), last_B]
    mask_BL1 = mask_BL.unsqueeze(-1).float()
    return (states_BLH * mask_BL1).sum(dim=1) / mask_BL1.sum(dim=1).clamp(min=1)
