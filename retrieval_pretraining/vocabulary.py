"""From a trained model's tokenizer to another: one with the terms of a domain, or one that is trained on its text.

`vocabulary_change` says for each token of the new tokenizer which old rows it starts from; `token_rows.py` moves them.
A token that stands for the same letters keeps its row, however the two tokenizers write it, and so does a special
token under another name or id. A new one starts from the pieces that the old tokenizer makes of its letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse
from tokenizers import decoders, models

from retrieval_pretraining.added_terms import own_pieces, space_style
from retrieval_pretraining.passages import SPACELESS_LETTER, sentinel_ids
from retrieval_pretraining.tokenizer_training import train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Which special token of the old tokenizer lends its row where it has none of the same role.
_ROLES = {
    **{role: (role,) for role in ("pad", "unk", "mask")},
    **{"cls": ("cls", "bos"), "bos": ("bos", "cls"), "sep": ("sep", "eos"), "eos": ("eos", "sep")},
}


def replacement_tokenizer(
    old: PreTrainedTokenizerFast, texts: Iterable[str], *, vocab_size: int, kind: str
) -> PreTrainedTokenizerFast:
    """A tokenizer of `kind` (see `train_tokenizer`), trained on the texts, that takes the place of `old`.

    It reads in lower case if `old` does. Special tokens keep their ids where there is room: RoBERTa's family counts
    its positions from the padding id on.
    """
    rules = old.backend_tokenizer.normalizer
    lowercase = rules is not None and "a" in rules.normalize_str("A")
    new = train_tokenizer(texts, vocab_size=vocab_size, kind=kind, lowercase=lowercase)
    if kind == "t5":  # the special tokens of all its relatives have the same ids
        return new
    tokens = new.convert_ids_to_tokens(range(len(new)))
    at = {row: tokens[number] for number, row in _special_rows(old, new).items() if row < len(new)}
    others = (token for token in tokens if token not in at.values())
    vocabulary = {at[number] if number in at else next(others): number for number in range(len(tokens))}
    return type(new)(vocab=vocabulary, do_lower_case=lowercase)


def _special_rows(old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast) -> dict[int, int]:
    """For each special id of the new tokenizer, that of the old one with the same role, if there is one."""
    rows = dict(zip(sentinel_ids(new), sentinel_ids(old)))
    for role, lenders in _ROLES.items():
        number = getattr(new, f"{role}_token_id")
        lent = [getattr(old, f"{lender}_token_id") for lender in lenders]
        lent = [row for row in lent if row is not None]
        if number is not None and lent:
            rows.setdefault(number, lent[0])
    return rows


@dataclass
class VocabularyChange:
    """Where the rows of a new vocabulary of V tokens come from, in an old one of U.

    Args:
        kept_V: the old id whose row a token keeps, or -1.
        pieces_VU: sparse; how often each old token is among the pieces of a token. Some have none: special tokens, and
            letters that the old tokenizer does not know. The pieces of a kept token are those that it would have if it
            were none: what a new one's pieces say about its row is learned from them.
        special_ids: tokens that carry no meaning, in the new vocabulary.
        moved: for each old special id the new one of the same role; None where all ids stay as they are.
        tokens_before, tokens_after: tokens of a text, the mean over `texts_counted`; 0 where no text was counted.
    """

    kept_V: np.ndarray
    pieces_VU: sparse.csr_matrix
    special_ids: list[int]
    moved: dict[int, int] | None = None
    texts_counted: int = 0
    tokens_before: float = 0.0
    tokens_after: float = 0.0

    def __str__(self) -> str:
        kept = int((self.kept_V >= 0).sum())
        before, after = self.pieces_VU.shape[1], len(self.kept_V)
        dropped = before - len(np.unique(self.kept_V[self.kept_V >= 0]))
        said = f"vocabulary: {before:,} -> {after:,} tokens ({kept:,} kept, {after - kept:,} new, {dropped:,} dropped)"
        if self.texts_counted:
            said += f"; a text takes {self.tokens_before:.1f} -> {self.tokens_after:.1f} tokens"
            said += f" (mean of {self.texts_counted:,})"
        return said


def vocabulary_change(
    old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast, texts: Iterable[str] = ()
) -> VocabularyChange:
    """Compares two tokenizers; `texts` are those whose tokens are counted."""
    old_ids = old.get_vocab()
    size = _size(new)
    kept = np.full(size, -1, dtype=np.int64)
    extended = all(new.convert_tokens_to_ids(token) == number for token, number in old_ids.items())
    if extended:
        kept[list(old_ids.values())] = list(old_ids.values())
    else:
        _keep_equal_tokens(kept, old, new)
    special_ids = sorted({*new.all_special_ids, *sentinel_ids(new)})
    rows, columns = [], []
    special, reader, pieces = set(special_ids), _Reader(new), _Pieces(old)
    for token, number in new.get_vocab().items():
        if number not in special:
            own = pieces.without(*reader.read(token)) if kept[number] >= 0 else pieces.of(*reader.read(token))
            rows += [number] * len(own)
            columns += own
    change = VocabularyChange(
        kept,
        sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(size, _size(old))),
        special_ids,
        moved=None if extended else {row: number for number, row in _special_rows(old, new).items()},
    )
    texts = list(texts)
    if texts:
        change.texts_counted = len(texts)
        change.tokens_before, change.tokens_after = (
            sum(map(len, tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"])) / len(texts)
            for tokenizer in (old, new)
        )
    return change


def _size(tokenizer: PreTrainedTokenizerFast) -> int:
    return max(tokenizer.get_vocab().values()) + 1


def _keep_equal_tokens(kept: np.ndarray, old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast):
    special = {*old.all_special_ids, *sentinel_ids(old)}
    old_reader, new_reader = _Reader(old), _Reader(new)
    known: dict[tuple, int] = {}
    for token, number in sorted(old.get_vocab().items(), key=lambda pair: pair[1]):
        if number not in special:
            known.setdefault(old_reader.key(token), number)
    special_rows = _special_rows(old, new)
    special = {*new.all_special_ids, *sentinel_ids(new)}
    for token, number in new.get_vocab().items():
        if number in special:
            kept[number] = special_rows.get(number, -1)
        else:
            text, usual = new_reader.key(token)
            kept[number] = known.get((text, usual), -1)
            if kept[number] < 0 and re.search(SPACELESS_LETTER, text):
                kept[number] = known.get((text, not usual), -1)


class _Reader:
    """Which letters a token stands for, and whether a word begins with it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.style = space_style(tokenizer)
        self.inner_prefix = getattr(tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None) or None
        self.added = {token.content for token in tokenizer.added_tokens_decoder.values()}
        self.bytes = decoders.ByteLevel()

    def read(self, token: str) -> tuple[str, bool]:
        if token in self.added:
            return token, True
        if self.style == "Ġ":
            text = self.bytes.decode([token])
            if "\ufffd" in text:  # part of a letter, which no other kind of token can be
                return "\ufffd" + token, False
            return text.removeprefix(" "), text.startswith(" ")
        if self.style:
            return token.removeprefix(self.style), token.startswith(self.style)
        inner = self.inner_prefix is not None and token.startswith(self.inner_prefix)
        return (token.removeprefix(self.inner_prefix), False) if inner else (token, True)

    def key(self, token: str) -> tuple[str, bool]:
        """The same for a token of the same meaning, whatever the tokenizer."""
        text, begins_word = self.read(token)
        if self.style and re.search(SPACELESS_LETTER, text):
            # In running Chinese, WordPiece begins a word with each letter; the others have no space before one.
            return text, not begins_word
        return text, begins_word


class _Pieces:
    """The ids that a tokenizer makes of some letters, at the begin of a word or inside one, without unknown ones."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer
        reader = _Reader(tokenizer)
        self.known = {reader.read(token): number for token, number in tokenizer.get_vocab().items()}
        self.style = space_style(tokenizer)
        self.inner = backend = tokenizer.backend_tokenizer.model
        if isinstance(backend, models.WordPiece):
            prefix, unknown = backend.continuing_subword_prefix, backend.unk_token
            vocabulary = tokenizer.get_vocab()
            inner = {token: number for token, number in vocabulary.items() if token.startswith(prefix)}
            inner |= {token.removeprefix(prefix): number for token, number in inner.items()}
            self.inner = models.WordPiece({unknown: vocabulary[unknown], **inner}, unk_token=unknown)

    def of(self, text: str, begins_word: bool) -> list[int]:
        if begins_word:
            ids = own_pieces(self.tokenizer, text)
        elif self.style == "Ġ":
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            ids = [piece.id for piece in self.inner.tokenize(text)]
        return [number for number in ids if number != self.tokenizer.unk_token_id]

    def without(self, text: str, begins_word: bool) -> list[int]:
        """The pieces of a token's letters if it were no token: the longest that they begin with, and the rest."""
        for end in range(len(text) - 1, 0, -1):
            if (text[:end], begins_word) in self.known:
                return [self.known[text[:end], begins_word], *self.of(text[end:], False)]
        return []
