"""Pairs of texts -> pairs of token ids, a row for each pair: what `PairCollator` takes."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

import numpy as np

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.passages import WordSegmenter, check_pair_tokenizer, chinese_segmenter, encode_documents

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger(__name__)

UNKNOWN_DOCUMENT = -1
_TEXTS = ("text", "text_pair")
_SIDES = ("input_ids", "word_ids", "input_ids_pair", "word_ids_pair")


def document_key(document_id: object) -> int:
    """The same 63 bits for the same id in every process; -1 for None, a document that is not known."""
    if document_id is None:
        return UNKNOWN_DOCUMENT
    digest = hashlib.blake2b(str(document_id).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def tokenize_pairs(
    dataset: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_seq_length: int,
    num_proc: int | None = None,
    word_segmenter: WordSegmenter | str | None = None,
    desc: str = "Tokenizing pairs",
) -> Dataset | IterableDataset:
    """A dataset with `text`, `text_pair` and perhaps `document_id` -> one with the columns input_ids, word_ids,
    input_ids_pair, word_ids_pair and perhaps document_key (see `encode_documents` and `document_key`).

    A text is cut off at `max_seq_length` tokens, its eos included. Text is text: no eos, padding or sentinel comes
    from it. A pair with a text that is blank or has no token is dropped. How many were dropped and cut off is logged,
    except for a stream, which nobody has counted. `word_segmenter`, `num_proc` and `desc` are as in
    `tokenize_documents`.

    Raises:
        InputError: a column is missing, the tokenizer is slow or lacks eos, padding or sentinels, `max_seq_length` has
            no room for a token, or no pair is left.
    """
    import datasets

    check_pair_tokenizer(tokenizer)
    if word_segmenter == "auto":
        word_segmenter = chinese_segmenter()
    elif isinstance(word_segmenter, str):
        raise InputError(f"word_segmenter '{word_segmenter}' is not known; use auto, a function or None")
    names = list(dataset.column_names or next(iter(dataset), {}))
    if missing := [name for name in _TEXTS if name not in names]:
        raise InputError(f"Pairs need the columns text and text_pair, and {missing[0]} is not among {names}.")

    columns = {name: datasets.Sequence(datasets.Value("int32")) for name in _SIDES}
    if "document_id" in names:
        columns["document_key"] = datasets.Value("int64")
    streaming = isinstance(dataset, datasets.IterableDataset)
    if not streaming:
        columns["is_cut_off"] = datasets.Value("bool")
    options = {
        "batched": True,
        "batch_size": 256,
        "remove_columns": names,
        "features": datasets.Features(columns),
        "fn_kwargs": {
            "tokenizer": tokenizer,
            "columns": list(columns),
            "max_seq_length": max_seq_length,
            "word_segmenter": word_segmenter,
        },
    }
    if streaming:
        return dataset.map(_encode_batch, **options)
    pairs = dataset.map(_encode_batch, num_proc=num_proc, desc=desc, **options)
    if not len(pairs):
        raise InputError(
            f"0 usable pairs: none of the {len(dataset)} pairs has two texts with a token; check text and tokenizer"
        )
    if dropped := len(dataset) - len(pairs):
        logger.warning("dropped %s of %s pairs, in which a text is empty", f"{dropped:,}", f"{len(dataset):,}")
    if cut_off := np.count_nonzero(pairs.data.column("is_cut_off").to_numpy()):
        logger.warning(
            "max_seq_length %d cuts off a text in %s of %s pairs", max_seq_length, f"{cut_off:,}", f"{len(pairs):,}"
        )
    return pairs.remove_columns("is_cut_off")


def _encode_batch(batch: dict[str, list], *, tokenizer, columns: list[str], **options) -> dict[str, list]:
    first, second = ([text if text and not text.isspace() else "" for text in batch[side]] for side in _TEXTS)
    # A sentence is in several pairs, which follow each other: it is tokenised once.
    texts = list(dict.fromkeys([*first, *second]))
    encoded = encode_documents(texts, tokenizer, overflow="truncate", **options)
    number = {text: place for place, text in enumerate(texts)}
    place_of = {text: place for place, text in enumerate(encoded["document"])}
    first, second = ([number[text] for text in side] for side in (first, second))
    kept = [row for row, both in enumerate(zip(first, second, strict=True)) if place_of.keys() >= set(both)]
    lost = [encoded["discarded_tokens"][first[row]] + encoded["discarded_tokens"][second[row]] for row in kept]
    first, second = ([place_of[side[row]] for row in kept] for side in (first, second))
    made = {
        "input_ids": [encoded["input_ids"][place] for place in first],
        "word_ids": [encoded["word_ids"][place] for place in first],
        "input_ids_pair": [encoded["input_ids"][place] for place in second],
        "word_ids_pair": [encoded["word_ids"][place] for place in second],
        "is_cut_off": [tokens > 0 for tokens in lost],
    }
    if "document_key" in columns:
        made["document_key"] = [document_key(batch["document_id"][row]) for row in kept]
    return {name: made[name] for name in columns}
