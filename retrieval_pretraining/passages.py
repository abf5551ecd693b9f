"""Documents -> tokenised passages, with the word that every token belongs to.

A document is cut into chunks of at most `max_seq_length` tokens, each between [CLS] and [SEP], at ends of sentences
where these fit. No chunk holds text of two documents and no token is lost. Whole words are masked together later on,
so each token carries the id of its word.
"""

from __future__ import annotations

import itertools
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval_pretraining.chunking import check_chunking, cut_at_sentences, cut_evenly, sentence_ends
from retrieval_pretraining.errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset
    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerFast

WordSegmenter = Callable[[str], list[str]]

logger = logging.getLogger(__name__)

# Blocks of the scripts written without spaces between words, first and last code point.
_THAI_LAO_MYANMAR_KHMER = ((0xE00, 0xEFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F))
_KANA = ((0x3040, 0x30FF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F), (0x1B000, 0x1B16F))
_HAN = ((0x3005, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
_SPACELESS = tuple(sorted(_THAI_LAO_MYANMAR_KHMER + _KANA + _HAN))
_WHITESPACE = tuple((code, code) for code in range(0x3001) if chr(code).isspace())
SPACELESS_LETTER = "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _SPACELESS) + "]"
_HAS_SPACELESS = re.compile(SPACELESS_LETTER)

# UMT5 has 300, T5 and mT5 have 100.
_MOST_SENTINELS = 1000

# The tokenizer holds offsets and strings for every token of a batch: bounded in characters, not in documents. Small
# ones, so that one is read while the one before is cut.
_CHARACTERS_PER_BATCH = 100_000


def check_tokenizer(tokenizer: Any, max_seq_length: int | None = None) -> None:
    """Refuses a tokenizer that masked pre-training cannot use.

    Raises:
        InputError: the tokenizer is slow, lacks one of the cls, sep, mask and pad tokens, or was made for texts
            shorter than `max_seq_length`.
    """
    _require_fast(tokenizer)
    missing = [name for name in ("cls", "sep", "mask", "pad") if getattr(tokenizer, f"{name}_token_id") is None]
    if missing:
        raise InputError(
            f"tokenizer {_name(tokenizer)}: has no {', '.join(missing)} token; add it with add_special_tokens "
            "or choose another tokenizer"
        )
    if max_seq_length is not None and max_seq_length > tokenizer.model_max_length:
        raise InputError(
            f"tokenizer {_name(tokenizer)}: max_seq_length is {max_seq_length}; "
            f"use at most {tokenizer.model_max_length}"
        )


def check_pair_tokenizer(tokenizer: Any) -> None:
    """Refuses a tokenizer that span corruption cannot use.

    Raises:
        InputError: the tokenizer lacks the eos or the pad token, or sentinels.
    """
    missing = [f"{name} token" for name in ("eos", "pad") if getattr(tokenizer, f"{name}_token_id") is None]
    if not sentinel_ids(tokenizer):
        missing.append("sentinels <extra_id_0>, <extra_id_1> ...")
    if missing:
        raise InputError(
            f"tokenizer {_name(tokenizer)}: has no {' and no '.join(missing)}; use that of a T5 model, add them with "
            "add_special_tokens, or train one from the text"
        )


def sentinel_ids(tokenizer: Any) -> list[int]:
    """The ids of <extra_id_0>, <extra_id_1> and so on, up to the first that is not in the vocabulary.

    mT5's vocabulary spells them with a "▁" before.
    """
    for spelling in ("<extra_id_{}>", "▁<extra_id_{}>"):
        if tokenizer.convert_tokens_to_ids(spelling.format(0)) not in (None, tokenizer.unk_token_id):
            known = tokenizer.convert_tokens_to_ids([spelling.format(number) for number in range(_MOST_SENTINELS)])
            return list(itertools.takewhile(lambda token_id: token_id not in (None, tokenizer.unk_token_id), known))
    return []


def _require_fast(tokenizer: Any) -> None:
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"tokenizer {_name(tokenizer)}: is slow and cannot say which tokens make a word; "
            "save a fast one (tokenizer.json) beside the model"
        )


def _name(tokenizer: Any) -> str:
    return getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__


# --- words of scripts without spaces ---


def chinese_segmenter() -> WordSegmenter | None:
    """Text -> words by rjieba; None, with one warning, where it is not installed: a character is a word then."""
    try:
        import rjieba  # noqa: F401
    except ImportError:
        _warn_once("Chinese words are not known, single characters are masked instead; for words: pip install rjieba")
        return None
    return _cut_with_rjieba


def _cut_with_rjieba(text: str) -> list[str]:
    # A function of our own: `rjieba.cut` itself cannot be sent to the worker processes of `datasets`.
    import rjieba

    return rjieba.cut(text)


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=3)


def _in_ranges(codes: np.ndarray, ranges: tuple[tuple[int, int], ...]) -> np.ndarray:
    bounds = np.array([bound for first, last in ranges for bound in (first, last + 1)])
    return np.searchsorted(bounds, codes, side="right") % 2 == 1


def _segment_of_characters(text: str, word_segmenter: WordSegmenter) -> np.ndarray:
    words = word_segmenter(text)
    if "".join(words) != text:
        raise InputError("the words of word_segmenter do not join to the text; it must return every character")
    return np.repeat(np.arange(len(words)), [len(word) for word in words])


def _refine_words(
    new_word_T: np.ndarray, text: str, offsets_T2: np.ndarray, word_segmenter: WordSegmenter | None
) -> np.ndarray:
    """Word starts of the tokenizer -> word starts that also hold where it sees no words. T tokens, boolean.

    Where the tokenizer puts everything into one word (no pre-tokeniser), a word starts after a space. Around
    characters of scripts without spaces, a token is a word of its own, or shares the word of `word_segmenter`.
    """
    begin, end = offsets_T2.T
    # One character more, as a token without characters may stand at the end of the text.
    codes = np.frombuffer((text + "\0").encode("utf-32-le", "surrogatepass"), dtype=np.uint32)

    def count_before(is_kind: np.ndarray) -> np.ndarray:
        return np.concatenate(([0], np.cumsum(is_kind)))

    is_space = _in_ranges(codes, _WHITESPACE)
    spaces = count_before(is_space)
    is_blank = spaces[end] - spaces[begin] == end - begin  # also where offsets leave spaces out
    refined = new_word_T.copy()
    if not new_word_T[1:].any():
        after_space = is_space[begin[1:] - 1] & (begin[1:] > 0) & ~is_blank[:-1]
        refined[1:] = is_space[begin[1:]] | after_space
    # The space that a lone "▁" or "Ġ" stands for belongs to the word that it begins.
    glued = is_blank[:-1] & ~refined[1:]

    spaceless = count_before(_in_ranges(codes, _SPACELESS))
    holds_spaceless = spaceless[end] > spaceless[begin]
    touches = holds_spaceless[1:] | holds_spaceless[:-1]
    if touches.any():
        # Pieces of one character (byte-level tokenizers) overlap in the text and stay together.
        apart = (begin[1:] >= end[:-1]) & ~glued
        if word_segmenter is not None:
            segment = np.append(_segment_of_characters(text, word_segmenter), -1)
            last = np.maximum(end - 1, begin)
            apart &= segment[begin[1:]] != segment[last[:-1]]
        refined[1:] = np.where(touches, apart, refined[1:])
    return refined


# --- text -> ids ---


@contextmanager
def _plain_text(tokenizer: PreTrainedTokenizerFast) -> Iterator[Tokenizer]:
    """The backend without truncation, padding and special tokens read from text; on the way out as it was before."""
    backend = tokenizer.backend_tokenizer
    truncation, padding, encode_special_tokens = backend.truncation, backend.padding, backend.encode_special_tokens
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    try:
        yield backend
    finally:
        backend.encode_special_tokens = encode_special_tokens
        if truncation is not None:
            backend.enable_truncation(**truncation)
        if padding is not None:
            backend.enable_padding(**padding)


def _encode_ahead(backend: Tokenizer, texts: list[str]) -> Iterator[Encoding]:
    """The encodings of the texts; while those of a batch are used, a thread makes the next ones."""
    batches = _batches(texts)
    with ThreadPoolExecutor(1) as thread:

        def begin():
            batch = next(batches, None)
            return None if batch is None else thread.submit(backend.encode_batch, batch, add_special_tokens=False)

        job = begin()
        while job is not None:
            encodings = job.result()
            job = begin()
            yield from encodings


def _batches(texts: list[str]) -> Iterator[list[str]]:
    batch, characters = [], 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= _CHARACTERS_PER_BATCH:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _membership(members: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """`np.isin(ids, members)`, which would sort for every text. Ids may be larger: vocabularies have gaps."""
    table = np.zeros(int(members.max(initial=-1)) + 2, dtype=bool)
    table[members] = True
    return lambda ids: table[np.minimum(ids, len(table) - 1)]


def _spell_out(encoding: Encoding, is_forged: Callable[[int, tuple[int, int]], bool], backend: Tokenizer):
    """A Unigram model takes "</s>" in the text for a piece of its vocabulary: spell such tokens letter by letter."""
    ids, words, offsets = [], [], []
    for token_id, word, offset in zip(encoding.ids, encoding.word_ids, encoding.offsets, strict=True):
        if is_forged(token_id, offset):
            pieces = [piece.id for letter in backend.id_to_token(token_id) for piece in backend.model.tokenize(letter)]
        else:
            pieces = [token_id]
        ids += pieces
        words += [word] * len(pieces)
        offsets += [offset] * len(pieces)
    return ids, words, offsets


def encode_documents(
    texts: list[str],
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_seq_length: int,
    overflow: str = "chunk",
    chunk_boundary: str = "sentence",
    overlap: int = 0,
    word_segmenter: WordSegmenter | None = None,
) -> dict[str, list]:
    """Texts -> chunks of token ids between cls and sep, with word ids.

    Text is text: a "[SEP]" written in it becomes the tokens of its letters, never the special token. Where the
    tokenizer has no cls token (T5) there is none, and its eos stands in for a missing sep. `overflow` is "chunk" (all
    of the text is kept) or "truncate" (its first `max_seq_length` tokens). A text without tokens gives no chunk.

    `chunk_boundary` "sentence" makes chunks of whole sentences, and of whole words of a sentence that is too long for
    one; "token" fills each to the last token. The next chunk begins with the last `overlap` tokens of the one before
    (`chunking.cut_at_sentences`).

    `word_segmenter` splits a text into words (their join is the text); it is only asked for texts in a script without
    spaces, and only there decides which tokens belong together. Without it each such token is a word.

    Returns:
        input_ids (`list[list[int]]`), of at most `max_seq_length` tokens;
        word_ids (`list[list[int]]`), of the same shape: equal for the tokens of a word, rising from word to word,
        0 <= id < length of the chunk, and -1 for every special token, unk included;
        document (`list[int]`), the text each chunk comes from;
        discarded_tokens (`list[int]`), of each text.

    Raises:
        InputError: a slow tokenizer, `max_seq_length` without room for a token, an unknown `overflow` or
            `chunk_boundary`, an `overlap` of more than half a chunk.
    """
    arrays = _encode_as_arrays(
        texts,
        tokenizer,
        max_seq_length=max_seq_length,
        overflow=overflow,
        chunk_boundary=chunk_boundary,
        overlap=overlap,
        word_segmenter=word_segmenter,
    )
    return {**arrays, **{name: [row.tolist() for row in arrays[name]] for name in ("input_ids", "word_ids")}}


def _encode_as_arrays(
    texts: list[str],
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_seq_length: int,
    overflow: str,
    chunk_boundary: str,
    overlap: int,
    word_segmenter: WordSegmenter | None,
) -> dict[str, list]:
    """As `encode_documents`, the ids as int32 arrays: a tenth of the memory of Python's numbers."""
    _require_fast(tokenizer)
    if overflow not in ("chunk", "truncate"):
        raise InputError(f"overflow '{overflow}' is not known; use chunk or truncate")
    last_id = tokenizer.sep_token_id if tokenizer.sep_token_id is not None else tokenizer.eos_token_id
    prefix, suffix = ([token] if token is not None else [] for token in (tokenizer.cls_token_id, last_id))
    prefix_ids, suffix_ids = np.array(prefix, dtype=np.int32), np.array(suffix, dtype=np.int32)
    prefix_words, suffix_words = np.full_like(prefix_ids, -1), np.full_like(suffix_ids, -1)
    room = max_seq_length - len(prefix) - len(suffix)
    if room < 1:
        raise InputError(f"max_seq_length is {max_seq_length}, which leaves no room for text; use more")
    check_chunking(chunk_boundary, overlap, room)

    unk_id, unk_token = tokenizer.unk_token_id, tokenizer.unk_token or "\0"
    # Sentinels are special, whether the tokenizer has them among its special tokens (T5) or its pieces (mT5).
    special_ids = np.union1d(tokenizer.all_special_ids, sentinel_ids(tokenizer)).astype(np.int32)
    # unk is what unknown text rightly becomes, unless the text spells it.
    unforgeable = special_ids[special_ids != unk_id] if unk_id is not None else special_ids

    is_special, is_unforgeable = _membership(special_ids), _membership(unforgeable)

    result = {"input_ids": [], "word_ids": [], "document": [], "discarded_tokens": []}
    # Closed before the tokenizer is as it was: its thread may still read with it.
    with _plain_text(tokenizer) as backend, closing(_encode_ahead(backend, texts)) as encodings:
        for document, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
            ids, words, offsets = np.array(encoding.ids, dtype=np.int32), encoding.word_ids, None
            if is_unforgeable(ids).any() or unk_token in text:

                def is_forged(token_id, offset, text=text):
                    return token_id in unforgeable or (token_id == unk_id and unk_token in text[slice(*offset)])

                ids, words, offsets = _spell_out(encoding, is_forged, backend)
                ids = np.array(ids, dtype=np.int32)
            total = len(ids)
            kept = total if overflow == "chunk" else min(total, room)
            result["discarded_tokens"].append(total - kept)
            if not total:
                continue
            words = np.array(words, dtype=np.int32)
            new_word = np.concatenate(([True], words[1:] != words[:-1]))
            is_cut = kept > room and chunk_boundary == "sentence"
            has_hidden_words = _HAS_SPACELESS.search(text) or not new_word[1:].any()
            if is_cut or has_hidden_words:
                flat = itertools.chain.from_iterable(offsets or encoding.offsets)
                offsets_T2 = np.fromiter(flat, dtype=np.int64, count=2 * total).reshape(-1, 2)
            if has_hidden_words:
                new_word = _refine_words(new_word, text, offsets_T2, word_segmenter)
            words = np.cumsum(new_word, dtype=np.int32)
            special = is_special(ids)
            if is_cut:
                ends = sentence_ends(text, offsets_T2[:, 0])
                chunks = cut_at_sentences(ends, np.flatnonzero(new_word), room, overlap=overlap)
            else:
                chunks = cut_evenly(kept, room, overlap=overlap)
            for start, end in chunks:
                piece = slice(start, end)
                chunk_words = np.where(special[piece], -1, words[piece] - words[start])
                result["input_ids"].append(np.concatenate([prefix_ids, ids[piece], suffix_ids]))
                result["word_ids"].append(np.concatenate([prefix_words, chunk_words, suffix_words]))
                result["document"].append(document)
    return result


def tokenize_documents(
    dataset: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_seq_length: int,
    overflow: str = "chunk",
    chunk_boundary: str = "sentence",
    overlap: int = 0,
    num_proc: int | None = None,
    word_segmenter: WordSegmenter | str | None = None,
    text_column_name: str = "text",
    desc: str = "Tokenizing",
) -> Dataset | IterableDataset:
    """A dataset of texts -> a dataset of passages with the columns input_ids and word_ids (see `encode_documents`).

    `word_segmenter` is a function, None, or "auto" for Chinese words by rjieba. How many tokens "truncate" lost is
    logged as a warning, except for a stream, which nobody has counted. `num_proc` has no effect on a stream.

    Raises:
        InputError: as `encode_documents`; not one text has a token.
    """
    import datasets

    _require_fast(tokenizer)
    if word_segmenter == "auto":
        word_segmenter = chinese_segmenter()
    elif isinstance(word_segmenter, str):
        raise InputError(f"word_segmenter '{word_segmenter}' is not known; use auto, a function or None")
    features = {name: datasets.Sequence(datasets.Value("int32")) for name in ("input_ids", "word_ids")}
    streaming = isinstance(dataset, datasets.IterableDataset)
    count_discarded = overflow == "truncate" and not streaming
    if count_discarded:
        features["discarded_tokens"] = datasets.Value("int32")
    options = {
        "batched": True,
        "batch_size": 1000,
        "remove_columns": dataset.column_names or [text_column_name],
        "features": datasets.Features(features),
        "fn_kwargs": {
            "tokenizer": tokenizer,
            "text_column_name": text_column_name,
            "count_discarded": count_discarded,
            "max_seq_length": max_seq_length,
            "overflow": overflow,
            "chunk_boundary": chunk_boundary,
            "overlap": overlap,
            "word_segmenter": word_segmenter,
        },
    }
    if streaming:
        return dataset.map(partial(_encode_batch, encode=encode_documents), **options)
    passages = dataset.map(_encode_batch, num_proc=num_proc, desc=desc, **options)
    if not len(passages):
        raise InputError(
            f"0 usable passages: none of the {len(dataset)} documents has a token for {_name(tokenizer)}; "
            "check text and tokenizer"
        )
    if count_discarded:
        discarded = passages.data.column("discarded_tokens").to_numpy()
        if discarded.any():
            logger.warning(
                "max_seq_length %d with overflow='truncate' discarded %s tokens of %s documents; 'chunk' keeps them",
                max_seq_length,
                f"{discarded.sum():,}",
                f"{np.count_nonzero(discarded):,}",
            )
        passages = passages.remove_columns("discarded_tokens")
    return passages


def _encode_batch(
    batch: dict[str, list], *, tokenizer, text_column_name, count_discarded, encode=_encode_as_arrays, **options
) -> dict[str, list]:
    encoded = encode(batch[text_column_name], tokenizer, **options)
    columns = {name: encoded[name] for name in ("input_ids", "word_ids")}
    if count_discarded:
        columns["discarded_tokens"] = [encoded["discarded_tokens"][document] for document in encoded["document"]]
    return columns
