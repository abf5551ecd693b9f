"""The tokenizer of a run: the model's own, another one, or one that is trained on the text; and what changes by it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from transformers import AutoTokenizer

from retrieval_pretraining.added_terms import Terms, add_terms
from retrieval_pretraining.arguments import ModelArguments
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.objectives import Run, first_line
from retrieval_pretraining.tokenizer_training import train_tokenizer
from retrieval_pretraining.vocabulary import VocabularyChange, replacement_tokenizer, vocabulary_change

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Texts whose tokens are counted before and after.
_COUNTED_TEXTS = 1000


def load_tokenizer(
    objective, train_texts, *, checkpoint: str | None = None, terms: Terms | None = None
) -> tuple[PreTrainedTokenizerFast, VocabularyChange | None]:
    """The tokenizer of a run, and how it differs from that of the model, if the run starts from one.

    Of a run that goes on it is the checkpoint's: its ids are what the weights know, whatever the text is now.
    """
    if checkpoint is not None:
        return AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False), None
    run, own, tokenizer = objective.run, None, None
    model = run.model
    if model.tokenizer_name is not None:
        tokenizer = _from_pretrained(model, "tokenizer_name")
    if model.model_name_or_path is not None:
        try:
            own = _from_pretrained(model, "model_name_or_path")
        except InputError:
            if tokenizer is None:
                raise
            # A model without a tokenizer has to be believed.
    if tokenizer is not None and own is not None:
        _check_same_vocabulary(tokenizer, own, model)
    if model.tokenizer_vocab_size is not None:
        tokenizer = _trained(objective, train_texts, own)
    tokenizer = own if tokenizer is None else tokenizer
    if terms is not None:
        tokenizer = _with_terms(tokenizer, terms, run)
    if own is None or tokenizer.get_vocab() == own.get_vocab():
        return tokenizer, None
    if model.new_token_init == "statistics" and run.data.streaming:
        raise InputError("--new_token_init statistics reads all text first: leave out --streaming, or use pieces.")
    change = vocabulary_change(own, tokenizer, itertools.islice(objective.texts(train_texts), _COUNTED_TEXTS))
    run.say(str(change))
    return tokenizer, change


def _from_pretrained(model: ModelArguments, option: str) -> PreTrainedTokenizerFast:
    name = getattr(model, option)
    hub = {"revision": model.model_revision, "token": model.token, "cache_dir": model.cache_dir}
    try:
        return AutoTokenizer.from_pretrained(name, use_fast=True, trust_remote_code=False, **hub)
    except (OSError, ValueError) as error:
        raise InputError(f"No tokenizer could be loaded from --{option} {name}: {first_line(error)}") from error


def _check_same_vocabulary(tokenizer, own, model: ModelArguments):
    """Another tokenizer may add tokens to the model's, but not give its rows another meaning."""
    given, known = tokenizer.get_vocab(), own.get_vocab()
    moved = sum(given.get(token) != number for token, number in known.items())
    if moved:
        raise InputError(
            f"--tokenizer_name {model.tokenizer_name} gives {moved:,} of the model's {len(known):,} tokens another id:"
            " its embeddings would mean other words. Use the model's own tokenizer, or replace it with "
            "--tokenizer_vocab_size, or train from scratch."
        )


def _trained(objective, train_texts, own: PreTrainedTokenizerFast | None) -> PreTrainedTokenizerFast:
    size = objective.run.model.tokenizer_vocab_size
    if not hasattr(train_texts, "__len__"):
        raise InputError(
            "--tokenizer_vocab_size reads all text first: leave out --streaming or give --tokenizer_name."
        )
    objective.run.say(f"training a tokenizer of at most {size:,} tokens")
    texts, kind = objective.texts(train_texts), objective.tokenizer_kind
    try:
        if own is not None:
            return replacement_tokenizer(own, texts, vocab_size=size, kind=kind)
        trained = train_tokenizer(texts, vocab_size=size, kind=kind)
    except InputError as error:
        raise InputError(f"--tokenizer_vocab_size {size}: {error}") from error
    if len(trained) < size:
        objective.run.say(f"the text gives {len(trained):,} tokens and no more")
    return trained


def _with_terms(tokenizer, terms: Terms, run: Run) -> PreTrainedTokenizerFast:
    path = run.model.add_tokens
    result = add_terms(tokenizer, terms.terms)
    if not result.added:
        run.say(f"warning: --add_tokens {path} adds nothing: each of its terms is one token already")
        return tokenizer
    left_out = {
        "one token already": result.known,
        "repeated": terms.repeated + result.repeated,
        "blank lines": terms.blank,
    }
    said = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items() if count)
    run.say(f"{path}: {len(result.added):,} terms become tokens" + (f" ({said})" if said else ""))
    if result.never_found:
        run.say(
            f"warning: {len(result.never_found):,} of them are not found as one token, such as "
            f"{result.never_found[0]!r}: another term is found in their place"
        )
    return result.tokenizer
