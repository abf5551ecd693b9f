"""Tokenizers from one's own text: what is in them, the same in every process, and text that stays text."""

import json
import sys
from pathlib import Path

import pytest
from fresh_process import run_ours
from tokenizers_for_tests import SENTENCES, bert_tokenizer, roberta_tokenizer, t5_tokenizer, unigram_tokenizer
from transformers import AutoTokenizer

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.passages import check_pair_tokenizer, check_tokenizer, encode_documents, sentinel_ids
from retrieval_pretraining.tokenizer_training import train_tokenizer


def test_trained_tokenizer_is_a_bert_tokenizer_that_reloads(tmp_path):
    tokenizer = train_tokenizer(SENTENCES, vocab_size=300)
    assert tokenizer.convert_ids_to_tokens(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(tokenizer) == 300
    tokenizer.model_max_length = 128
    tokenizer.save_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    check_tokenizer(reloaded, max_seq_length=128)
    ids = reloaded("The cat, 的")["input_ids"]
    assert ids == tokenizer("the CAT,的")["input_ids"] and (ids[0], ids[-1]) == (2, 3) and 1 not in ids
    assert set(reloaded("a", "b")) == {"input_ids", "token_type_ids", "attention_mask"}


def test_case_is_kept_on_request():
    assert "The" in train_tokenizer(SENTENCES, vocab_size=900, lowercase=False).tokenize("The cat")
    assert "the" in train_tokenizer(SENTENCES, vocab_size=900).tokenize("The cat")


def test_small_corpus_gives_a_smaller_vocabulary():
    assert 5 < len(train_tokenizer(["the cat"], vocab_size=30_000)) < 40


@pytest.mark.parametrize("vocab_size", [10, 50, 200])
def test_vocabulary_never_exceeds_its_size(vocab_size):
    assert len(train_tokenizer(SENTENCES, vocab_size=vocab_size)) <= vocab_size


def test_iterator_gives_the_same_tokenizer_as_a_list():
    vocabularies = [train_tokenizer(texts, vocab_size=300).get_vocab() for texts in (SENTENCES, iter(SENTENCES))]
    assert vocabularies[0] == vocabularies[1]


@pytest.mark.parametrize("kind, first", [("bert", 100), ("t5", 99)])  # T5's words begin with a mark of the space
def test_a_word_of_any_length_is_learned_from_in_pieces_and_read_whole(kind, first):
    # The time of the training would grow with the square of the word's length.
    word = "q" * first + "z" * 30
    tokenizer = train_tokenizer([word] * 50, vocab_size=600, kind=kind)
    vocabulary = " ".join(tokenizer.get_vocab())
    assert "qq" in vocabulary and "zz" in vocabulary and "qz" not in vocabulary
    assert len(tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(word)) == 1


def trained_tokenizers() -> str:
    own = [make() for make in (bert_tokenizer, roberta_tokenizer, t5_tokenizer, unigram_tokenizer)]
    own += [train_tokenizer(SENTENCES, vocab_size=size, kind="t5") for size in (520, 600, 1200)]
    states = [json.loads(tokenizer.backend_tokenizer.to_str()) for tokenizer in own]
    # How the last call padded and cut is no part of a tokenizer, and the tokenizers of the tests are shared.
    return str([[value for name, value in state.items() if name not in ("truncation", "padding")] for state in states])


def test_every_process_trains_the_same_tokenizer():
    paths = [folder for folder in sys.path if folder]
    code = f"import sys; sys.path[:0] = {paths}; import test_tokenizer_training as t; print(t.trained_tokenizers())"
    assert run_ours(code, Path(__file__).parent).splitlines()[-1] == trained_tokenizers()


@pytest.mark.parametrize("kind", ["bert", "t5"])
@pytest.mark.parametrize("texts, vocab_size", [([], 1000), ([" ", "\u3000"], 1000), (["a"], 5)])
def test_nothing_to_learn_from_is_an_input_error(texts, vocab_size, kind):
    with pytest.raises(InputError):
        train_tokenizer(texts, vocab_size=vocab_size, kind=kind)


def test_an_unknown_kind_is_refused():
    with pytest.raises(InputError, match="bert or t5"):
        train_tokenizer(SENTENCES, vocab_size=1000, kind="gpt2")


# --- T5's kind ---


def t5_of(texts=SENTENCES, **options):
    return train_tokenizer(texts, **{"vocab_size": 900, "kind": "t5", **options})


def test_a_t5_tokenizer_has_its_special_tokens_where_t5_has_them(tmp_path):
    tokenizer = t5_of()
    assert tokenizer.convert_ids_to_tokens(range(4)) == ["<pad>", "</s>", "<unk>", "<0x00>"]
    assert sentinel_ids(tokenizer) == list(range(len(tokenizer) - 1, len(tokenizer) - 101, -1))
    assert len(tokenizer) <= 900 and sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))
    check_pair_tokenizer(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "The cat <extra_id_0> 的 ☃"
    assert reloaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert reloaded(text)["input_ids"][-1] == 1 and sentinel_ids(reloaded)[0] in reloaded(text)["input_ids"]
    assert reloaded.decode(reloaded(text)["input_ids"], skip_special_tokens=True) == tokenizer.decode(
        tokenizer(text)["input_ids"], skip_special_tokens=True
    )
    assert set(reloaded("a", "b")) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize("vocab_size", [512, 600, 900, 30_000])
def test_a_t5_vocabulary_never_exceeds_its_size(vocab_size):
    assert len(t5_of(vocab_size=vocab_size)) <= vocab_size


def test_chinese_pieces_have_several_letters_but_at_most_four():
    texts = [*SENTENCES, *["无传感器永磁同步电机控制", "电机"] * 50]
    pieces = t5_of(texts, vocab_size=2000).get_vocab()
    chinese = [piece for piece in pieces if "\u4e00" <= piece[0] <= "\u9fff"]
    assert {1, 2, 3, 4} >= {len(piece) for piece in chinese} >= {1, 2, 4}
    assert len([piece for piece in chinese if len(piece) > 1]) > 20
    # English has no such limit
    assert any(len(piece) > 8 for piece in t5_of().get_vocab() if piece.startswith("\u2581"))
    # a run of Han letters has the same pieces everywhere, beside English too
    tokenizer = t5_of(texts, vocab_size=2000)
    space, *pieces = tokenizer.tokenize("永磁同步电机")
    assert len(pieces) < 4 and [space, "电机"] == tokenizer.tokenize("电机") == ["\u2581", "电机"]
    assert tokenizer.tokenize("dog永磁同步电机")[-len(pieces) :] == pieces
    assert tokenizer.tokenize("永磁同步电机，dog")[1 : 1 + len(pieces)] == pieces
    assert tokenizer.tokenize("dog 永磁同步电机")[-len(pieces) :] == pieces


def test_nothing_is_unknown_and_decoding_gives_the_text_back():
    tokenizer = t5_of()
    for text in [*SENTENCES, "龘 ☃ naïve {a} <b> don't 50%", "x  y\t z\x00", "，。「使用」", "🙂🇩🇪", "\u2028 a"]:
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == " ".join(text.replace("\x00", " ").lower().split())
    kept = t5_of(lowercase=False)
    assert kept.decode(kept("The BERT cat")["input_ids"], skip_special_tokens=True) == "The BERT cat"


def test_text_after_a_sentinel_has_the_pieces_that_it_has_in_a_masked_text():
    tokenizer = t5_of()
    prompt = tokenizer.tokenize("<extra_id_0> cat，使用<extra_id_1>模型")
    whole = tokenizer.tokenize("the cat，使用语言模型")
    assert prompt[0] == "<extra_id_0>" and whole[0] == "\u2581the"
    middle = prompt.index("<extra_id_1>")
    assert prompt[1:middle] == whole[1:middle] and prompt[middle + 1 :] == tokenizer.tokenize("模型")[1:]


def test_byte_pieces_of_a_letter_are_one_word():
    tokenizer = t5_of()
    for text in ("a cat ☃ sat", "使用☃模型", "使用龘模型"):
        encoded = encode_documents([text], tokenizer, max_seq_length=64)
        tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0])
        words = [word for token, word in zip(tokens, encoded["word_ids"][0]) if token.startswith("<0x")]
        assert len(words) == 3 and len(set(words)) == 1
