"""The terms of a domain, one token each: a file of terms, and the tokenizer that finds them as words of a text.

A term is an added token: it is found before the tokenizer's own rules are asked, wherever it stands as a word, and
all other text keeps its tokens. A term that begins and ends with other letters is not found inside a longer word; one
in a script without spaces, such as Chinese, is found anywhere. Where the tokenizer writes the space before a word into
its tokens ("▁the", "Ġthe"), the term takes that space with it and gives it back on decoding.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.passages import SPACELESS_LETTER

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_LONGEST_TERM = 100
_SPACE = "▁"
# Stands between letters of two scripts, and is taken out before the pieces are made: a code point for internal use.
_BORDER = "\ufdd0"
_LETTER = "[0-9A-Za-zÀ-ɏͰ-Ͽ]"
_BORDERS = f"(?<={SPACELESS_LETTER})(?={_LETTER})|(?<={_LETTER})(?={SPACELESS_LETTER})"
_CROSSES_BORDER = re.compile(_BORDERS)
_SPACELESS_EDGE = re.compile(rf"^{SPACELESS_LETTER}|{SPACELESS_LETTER}$")


@dataclass
class Terms:
    """The terms of a file, as they are written there, and how many of its lines were no new term."""

    terms: list[str]
    blank: int = 0
    repeated: int = 0


@dataclass
class TermTokens:
    """A tokenizer with terms. `added` are those that are new tokens; the others were one already, or came twice."""

    tokenizer: PreTrainedTokenizerFast
    added: list[str]
    known: int = 0
    repeated: int = 0
    never_found: tuple[str, ...] = ()


def read_terms(path: str | Path) -> Terms:
    """A UTF-8 file with one term a line -> its terms, without blank lines and repetitions.

    Spaces around a term go, several inside it become one.

    Raises:
        InputError: no such file, no UTF-8, not one term, or a line that is no term; with file and line.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"--add_tokens {path} cannot be read: {error.strerror}.") from error
    found: dict[str, None] = {}
    blank = repeated = 0
    for number, line in enumerate(lines, start=1):
        try:
            term = " ".join(line.decode("utf-8-sig" if number == 1 else "utf-8").split())
        except UnicodeDecodeError as error:
            raise InputError(
                f"--add_tokens {path}, line {number}: is not UTF-8 (byte {error.start + 1}); save the file as UTF-8."
            ) from error
        if len(term) > _LONGEST_TERM:
            raise InputError(
                f"--add_tokens {path}, line {number}: has {len(term)} characters; write one term a line, of at most "
                f"{_LONGEST_TERM}."
            )
        if term and not any(letter.isalnum() for letter in term):
            raise InputError(f"--add_tokens {path}, line {number}: {term!r} holds no letter and no digit.")
        blank += not term
        repeated += term in found
        if term:
            found[term] = None
    if not found:
        raise InputError(f"--add_tokens {path} holds no term: write one a line.")
    return Terms(list(found), blank, repeated)


def add_terms(tokenizer: PreTrainedTokenizerFast, terms: list[str]) -> TermTokens:
    """A tokenizer for which each term is one token; the one that is given stays as it is.

    All tokens keep their ids, and the terms get the next ones, in their order. Where the tokenizer reads all text in
    lower case, so are the terms. Terms that are one token already are left out.

    `never_found` are terms that do not come out as one token even where they stand alone, such as "cat fish" where the
    text is split at a shorter term that overlaps with it.

    Raises:
        InputError: a term of which the tokenizer's normalisation leaves nothing.
    """
    backend = tokenizer.backend_tokenizer
    spellings: dict[str, None] = {}
    known = repeated = 0
    for term in terms:
        spelling = _normal_spelling(backend, term)
        if not spelling:
            raise InputError(f"--add_tokens: the tokenizer's normalisation leaves nothing of the term {term!r}.")
        if len(own_pieces(tokenizer, spelling)) == 1:
            known += 1
        elif spelling in spellings:
            repeated += 1
        else:
            spellings[spelling] = None
    if not spellings:
        return TermTokens(tokenizer, [], known, repeated)
    result = _with_room_for_terms(tokenizer, list(spellings))
    result.add_tokens([_added_token(result.backend_tokenizer, term) for term in spellings])
    first = len(tokenizer)
    never_found = [term for number, term in enumerate(spellings) if own_pieces(result, term) != [first + number]]
    return TermTokens(result, list(spellings), known, repeated, tuple(never_found))


def own_pieces(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """The ids of a text that begins a word, without those that stand for the space before it and for no letter."""
    style = space_style(tokenizer)
    ids = tokenizer((" " if style == "Ġ" else "") + text, add_special_tokens=False)["input_ids"]
    while style and len(ids) > 1 and tokenizer.convert_ids_to_tokens(ids[0]) == style:
        ids = ids[1:]
    return ids


def space_style(tokenizer: PreTrainedTokenizerFast) -> str:
    """How tokens show the space before them: "▁" (SentencePiece), "Ġ" (byte-level BPE), "" not at all (WordPiece)."""
    rules = tokenizer.backend_tokenizer.pre_tokenizer
    rules = b"" if rules is None else rules.__getstate__()
    return "Ġ" if b"ByteLevel" in rules else _SPACE if b"Metaspace" in rules else ""


def _normal_spelling(backend: Tokenizer, term: str) -> str:
    """The term as the tokenizer's normalisation writes it, less the spaces that it puts around Chinese letters."""
    if backend.normalizer is None:
        return term
    words = (backend.normalizer.normalize_str(word).replace(_SPACE, " ") for word in term.split())
    return " ".join(filter(None, ("".join(word.split()) for word in words)))


def _added_token(backend: Tokenizer, term: str) -> AddedToken:
    padded = backend.normalizer is not None and backend.normalizer.normalize_str(term) != term
    other_case = term.swapcase()
    any_case = other_case != term and _normal_spelling(backend, other_case) == term
    return AddedToken(
        term,
        single_word=_SPACELESS_EDGE.search(term) is None,
        lstrip=re.match(SPACELESS_LETTER, term) is None,
        # What normalisation puts around Chinese letters would become part of the token: found in the raw text instead,
        # unless it is the text's case that is normalised.
        normalized=not padded or any_case,
    )


# --- The tokenizer's own rules, so that terms fit in ---


def _with_room_for_terms(tokenizer: PreTrainedTokenizerFast, terms: list[str]) -> PreTrainedTokenizerFast:
    """A copy of the tokenizer whose rules expect a text to be cut at terms; without them it works as before."""
    style = space_style(tokenizer)
    if not style:
        return copy.deepcopy(tokenizer)
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    normalizers = _steps(state, "normalizer", "normalizers")
    pre_tokenizers = _steps(state, "pre_tokenizer", "pretokenizers")
    decoders = _steps(state, "decoder", "decoders")
    if style == _SPACE:
        # "▁" belongs at the begin of the text and not of each part between two terms.
        for step in pre_tokenizers:
            if step["type"] == "Metaspace" and step["prepend_scheme"] == "always":
                step["prepend_scheme"] = "first"
        if {"type": "WhitespaceSplit"} in pre_tokenizers:
            pre_tokenizers.remove({"type": "WhitespaceSplit"})
            normalizers.append(_replace({"Regex": r"\s+"}, " "))
            normalizers.append({"type": "Strip", "strip_left": False, "strip_right": True})
        if not any(_CROSSES_BORDER.search(token) for token in tokenizer.get_vocab()):
            # A term is also a word beside a Chinese letter, which is a letter to `single_word`.
            normalizers.append(_replace({"Regex": _BORDERS}, _BORDER))
            pattern = {"String": _BORDER}
            pre_tokenizers.append({"type": "Split", "pattern": pattern, "behavior": "Removed", "invert": False})
            decoders.insert(0, _replace(pattern, ""))
    after_space = sorted(term for term in terms if not re.match(SPACELESS_LETTER, term))
    if after_space:
        one_of_them = "|".join(re.escape(term) for term in after_space)
        decoders.insert(0, _replace({"Regex": f"^(?=(?:{one_of_them})$)"}, _SPACE if style == _SPACE else " "))
    state["normalizer"] = {"type": "Sequence", "normalizers": normalizers} if normalizers else None
    state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": pre_tokenizers}
    state["decoder"] = {"type": "Sequence", "decoders": decoders}
    return _generic(tokenizer, Tokenizer.from_str(json.dumps(state)))


def _steps(state: dict[str, Any], name: str, key: str) -> list[dict[str, Any]]:
    component = state[name]
    if component is None:
        return []
    return list(component[key]) if component["type"] == "Sequence" else [component]


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _generic(tokenizer: PreTrainedTokenizerFast, backend: Tokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer with other rules, of the class that keeps them: those named after a model make their own anew."""
    from transformers import PreTrainedTokenizerFast

    flags = {token.content: token for token in tokenizer.added_tokens_decoder.values()}
    names = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
    special = {name: getattr(tokenizer, name) for name in names if getattr(tokenizer, name) is not None}
    options = ("model_input_names", "model_max_length", "padding_side", "truncation_side")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **{name: flags.get(token, token) for name, token in special.items()},
        extra_special_tokens=[flags.get(str(token), token) for token in tokenizer.extra_special_tokens],
        clean_up_tokenization_spaces=tokenizer.clean_up_tokenization_spaces,
        **{name: getattr(tokenizer, name) for name in options},
    )
