"""Prompts with masks: given text -> token ids with sentinels; what the decoder wrote -> the text with its gaps filled.

Given text comes back letter by letter: it is never decoded from tokens, which lose upper case or unknown letters.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retrieval_pretraining.encoding import check_texts, text_sequences
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.passages import SPACELESS_LETTER

_STARTS_SPACELESS, _ENDS_SPACELESS = re.compile(SPACELESS_LETTER).match, re.compile(f"{SPACELESS_LETTER}$").search
_CLOSING = tuple(",.;:!?)]}%，。；：！？、）】》”’")
_ANCHORS = ("1", "一")  # characters to tokenise a piece behind


@dataclass(frozen=True)
class Prompt:
    """Given text around masks, `pieces[0] mask pieces[1] mask ...`, and a context that is only read."""

    pieces: tuple[str, ...]
    context: str = ""


def keyword_prompts(keywords: Sequence[str], count: int, seed: int, place: str) -> list[Prompt]:
    """The keywords with masks: in the first prompt before, between and behind them all; in the others at random ones
    of these places, no two alike.

    There are `count` prompts, or `2 ** (len(keywords) + 1) - 1` if that is less. `InputError`, which names `place`, if
    there are no keywords or an empty one.
    """
    check_texts(keywords, place)
    keywords = [keyword.strip() for keyword in keywords]
    if not all(keywords):
        raise InputError(f"{place} has an empty keyword; leave it out.")
    places = len(keywords) + 1
    chosen = {(True,) * places: None}
    generator = random.Random(f"{seed} {keywords}")  # seeded by the text of it: the same in every process
    while len(chosen) < min(count, 2**places - 1):
        masked = tuple(generator.random() < 0.5 for _ in range(places))
        if any(masked):
            chosen[masked] = None
    return [Prompt(_pieces(keywords, masked)) for masked in chosen]


def _pieces(keywords: Sequence[str], masked: Sequence[bool]) -> tuple[str, ...]:
    """The given text around the masks, with spaces as the scripts of the keywords want them."""
    items = [
        item for mask, keyword in zip(masked, [*keywords, ""], strict=True) for item in (None if mask else "", keyword)
    ]
    pieces = [""]
    for item in items:
        if item is None:
            if pieces[-1] and not _ENDS_SPACELESS(pieces[-1]):
                pieces[-1] += " "
            pieces.append("")
        elif item:
            begins = pieces == [""]
            spaceless = _STARTS_SPACELESS(item) and (not pieces[-1] or _ENDS_SPACELESS(pieces[-1]))
            pieces[-1] += item if begins or spaceless else f" {item}"
    return tuple(pieces)


def prompt_ids(prompt: Prompt, tokenizer, sentinels: list[int], max_seq_length: int) -> np.ndarray:
    """The prompt's tokens with sentinels for masks, and as much of the context as there is room for, int32 [L].

    `InputError` if there are too few sentinels, or if the prompt without its context is too long.
    """
    masks = len(prompt.pieces) - 1
    if masks > len(sentinels):
        raise InputError(f"A text has {masks} masks, but the tokenizer only {len(sentinels)} sentinels; use fewer.")
    ids, begin, end = _tokens(prompt.pieces[0].strip(), tokenizer)
    for sentinel, piece in zip(sentinels, prompt.pieces[1:], strict=False):
        ids = [*ids, sentinel, *_tokens_behind_mask(piece, tokenizer)]
    room = max_seq_length - len(ids) - len(begin) - len(end)
    if room < 0:
        raise InputError(f"A prompt has {max_seq_length - room} tokens, more than max_seq_length {max_seq_length}.")
    context = _tokens(prompt.context, tokenizer)[0] if prompt.context else []
    return np.array([*begin, *ids, *context[:room], *end], dtype=np.int32)


def _tokens(text: str, tokenizer) -> tuple[list[int], list[int], list[int]]:
    """The tokens of a text, and what stands before and behind those of every text, as in pre-training."""
    [ids], _ = text_sequences([text], tokenizer, max_seq_length=10**9, progress=False)
    before, behind = int(tokenizer.cls_token_id is not None), 1  # sep, or eos
    return ids[before:-behind].tolist(), ids[:before].tolist(), ids[-behind:].tolist()


def _tokens_behind_mask(piece: str, tokenizer) -> list[int]:
    """The tokens of a piece that stands within a text.

    By itself it would be tokenised as after a space ("▁." and not "."). Where there is none, it is tokenised behind a
    character that it does not merge with; where it merges with all that are tried, by itself after all.
    """
    text = piece.strip()
    if not text or piece[0].isspace():
        return _tokens(text, tokenizer)[0] if text else []
    for anchor in _ANCHORS:
        alone, together = _tokens(anchor, tokenizer)[0], _tokens(anchor + text, tokenizer)[0]
        if together[: len(alone)] == alone:
            return together[len(alone) :]
    return _tokens(text, tokenizer)[0]


def read_spans(ids: list[int], masks: int, tokenizer, sentinels: list[int]) -> tuple[str, ...]:
    """What was written for each mask: the tokens behind its sentinel, up to the next one or the end.

    Tokens before any sentinel belong to the first mask. A sentinel that comes again, or has no mask, is left out with
    its tokens.
    """
    number = {token: index for index, token in enumerate(sentinels)}
    special = set(tokenizer.all_special_ids)
    spans: dict[int, list[int]] = {}
    current: list[int] = []
    first = current
    for token in ids:
        if token == tokenizer.eos_token_id:
            break
        if token in number:
            current = []
            if number[token] not in spans and not (number[token] == 0 and first):
                spans[number[token]] = current
        elif token not in special:
            current.append(token)
    if first:
        spans[0] = first
    decode = tokenizer.decode
    return tuple(" ".join(decode(spans[i]).split()) if spans.get(i) else "" for i in range(masks))


def put_back(pieces: tuple[str, ...], spans: tuple[str, ...]) -> str:
    """The text with spans for masks; a space goes before a closing mark, or where an empty span leaves two."""
    text = pieces[0]
    for span, piece in zip(spans, pieces[1:], strict=True):
        if (span or piece).startswith(_CLOSING):
            text = text.rstrip()
        elif not span and (not text or text[-1].isspace()):
            piece = piece.lstrip()
        text += span + piece
    return text.strip()
