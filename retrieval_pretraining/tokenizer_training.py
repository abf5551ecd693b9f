"""A tokenizer from one's own text, for a model that is trained from scratch: BERT's kind, or T5's for GUR.

The same texts give the same tokenizer in every process: ids and ties never depend on the order of a hash map.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.passages import SPACELESS_LETTER

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer
    from transformers import PreTrainedTokenizerFast

KINDS = ("bert", "t5")

_BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_T5_SPECIALS = ["<pad>", "</s>", "<unk>"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_SENTINELS = [f"<extra_id_{number}>" for number in range(100)]
_SPACE = "▁"
_LONGEST_PIECE = 16
_LONGEST_SPACELESS_PIECE = 4
_LONGEST_WORD = 100  # letters that are seen together while a tokenizer is trained; WordPiece takes no longer word


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int, kind: str = "bert", lowercase: bool = True
) -> PreTrainedTokenizerFast:
    """Texts -> a tokenizer that AutoTokenizer loads everywhere, the same for the same texts.

    The texts are gone through twice (an iterator, which cannot be, is held in memory). The vocabulary has at most
    `vocab_size` tokens, and fewer where the texts do not hold that many.

    `kind` "bert" is WordPiece; [PAD], [UNK], [CLS], [SEP], [MASK] are 0 to 4. "t5" is BPE with 100 sentinels, the last
    ids, <extra_id_0> the very last; <pad>, </s>, <unk> are 0 to 2, and a text ends with </s>. Its pieces of a script
    without spaces, such as Chinese, have up to four letters; a letter it does not know becomes its bytes, so that
    nothing is unknown and decoding gives the text back (in lower case, and with single spaces).

    Raises:
        InputError: no text, an unknown `kind`, or a `vocab_size` without room for letters.
    """
    if kind not in KINDS:
        raise InputError(f"a tokenizer of kind '{kind}' is not known; use {' or '.join(KINDS)}")
    smallest = 2 * len(_BERT_SPECIALS) if kind == "bert" else 512
    if vocab_size < smallest:
        raise InputError(f"vocab_size is {vocab_size}; use at least {smallest}, better some thousands")
    texts = list(texts) if isinstance(texts, Iterator) else texts
    return (_train_bert if kind == "bert" else _train_t5)(texts, vocab_size, lowercase)


def _train_bert(texts: Iterable[str], vocab_size: int, lowercase: bool) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import BertTokenizerFast

    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    trained.pre_tokenizer = _with_short_words(pre_tokenizers.BertPreTokenizer())
    # A letter may need two tokens, x and ##x; the rarest Han characters beyond this number become [UNK].
    letters = _most_frequent_letters(texts, trained, (vocab_size - len(_BERT_SPECIALS)) // 2)
    # The trainer numbers the ##x in the order of a hash map, and breaks ties between merges by these numbers: two runs
    # would give two vocabularies. Numbered by us, as "special" tokens of the trainer alone, they are always the same.
    inner = [f"##{letter}" for letter in letters if len(trained.pre_tokenizer.pre_tokenize_str(f"a{letter}")) == 1]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=_BERT_SPECIALS + inner,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=True,
    )
    trained.train_from_iterator(texts, trainer)
    return BertTokenizerFast(vocab=trained.get_vocab(), do_lower_case=lowercase)


def _train_t5(texts: Iterable[str], vocab_size: int, lowercase: bool) -> PreTrainedTokenizerFast:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    trained = Tokenizer(models.BPE())
    # Not stripped on the left: what follows a sentinel in a prompt is normalised by itself and may begin with a space.
    steps = [normalizers.NFC(), *([normalizers.Lowercase()] if lowercase else [])]
    steps += [normalizers.Replace(Regex(r"[\s\p{Cc}]+"), " "), normalizers.Strip(left=False, right=True)]
    trained.normalizer = normalizers.Sequence(steps)
    # The space before a word is part of it, but a run of a script without spaces has the same pieces everywhere.
    apart = Regex(rf"{SPACELESS_LETTER}+|{_SPACE}?(?!{_SPACE})[\p{{P}}\p{{S}}]")
    words = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(_SPACE, prepend_scheme="first"), pre_tokenizers.Split(apart, "isolated")]
    )
    trained.pre_tokenizer = _with_short_words(words)
    fixed = [*_T5_SPECIALS, *_BYTES]
    room = vocab_size - len(fixed) - len(_SENTINELS)
    letters = [_SPACE, *_most_frequent_letters(texts, trained, room // 2)]
    trainer = trainers.BpeTrainer(
        # An eighth more than wanted, as the long pieces are taken out again.
        vocab_size=len(letters) + (room - len(letters)) * 9 // 8,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        max_token_length=_LONGEST_PIECE,
        min_frequency=2,
        show_progress=True,
    )
    trained.train_from_iterator(texts, trainer)
    pieces, merges = _short_pieces(json.loads(trained.to_str())["model"]["merges"], letters, room)

    tokens = [*fixed, *pieces, *reversed(_SENTINELS)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    trained.pre_tokenizer = words
    trained.model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True)
    trained.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", vocabulary["</s>"])]
    )
    trained.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=trained,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=_SENTINELS,
        model_input_names=["input_ids", "attention_mask"],
    )


def _with_short_words(words: PreTokenizer) -> PreTokenizer:
    """For the training alone, whose time grows with the square of a word: base64 can be one word of megabytes."""
    from tokenizers import Regex, pre_tokenizers

    pieces = pre_tokenizers.Split(Regex(f"[\\s\\S]{{{_LONGEST_WORD}}}"), "isolated")
    return pre_tokenizers.Sequence([words, pieces])


def _short_pieces(merges: list[list[str]], letters: list[str], room: int) -> tuple[list[str], list[tuple[str, str]]]:
    """The first `room` pieces, letters included, without the long ones of scripts without spaces; and their merges."""
    pieces, kept = dict.fromkeys(letters), []
    for left, right in merges:
        if left in pieces and right in pieces and len(pieces) < room:
            if len(re.findall(SPACELESS_LETTER, left + right)) <= _LONGEST_SPACELESS_PIECE:
                pieces[left + right] = None
                kept.append((left, right))
    return list(pieces), kept


def _most_frequent_letters(texts: Iterable[str], tokenizer: Tokenizer, limit: int) -> list[str]:
    """The letters that are left of the texts after normalisation, the most frequent ones, sorted."""
    from tqdm import tqdm

    raw, letters = Counter(), Counter()
    for text in tqdm(texts, desc="Counting letters"):
        raw.update(text)
    for letter, count in raw.items():
        for normal in tokenizer.normalizer.normalize_str(letter):
            if not normal.isspace() and tokenizer.pre_tokenizer.pre_tokenize_str(normal):
                letters[normal] += count
    if not letters:
        raise InputError("no tokenizer can be trained: the texts hold no visible character")
    return sorted(sorted(letters, key=lambda letter: (-letters[letter], letter))[:limit])
