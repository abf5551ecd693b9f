"""From one tokenizer to another: which tokens stay the same, and what the others are made of."""

import numpy as np
import pytest
from test_added_terms import every_kind, roberta_of_its_own_class, t5_of_its_own_class, t5_of_ours
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers_for_tests import CHINESE, ENGLISH, SENTENCES, bert_tokenizer, roberta_tokenizer, t5_tokenizer
from transformers import PreTrainedTokenizerFast

from retrieval_pretraining.added_terms import add_terms, own_pieces
from retrieval_pretraining.passages import check_pair_tokenizer, check_tokenizer, sentinel_ids
from retrieval_pretraining.tokenizer_training import train_tokenizer
from retrieval_pretraining.vocabulary import replacement_tokenizer, vocabulary_change


def replaced(old, texts=ENGLISH, *, vocab_size=300, kind="bert"):
    return replacement_tokenizer(old, texts, vocab_size=vocab_size, kind=kind)


def sources(change, number: int) -> list[int]:
    return change.pieces_VU[number].indices.tolist()


@every_kind
def test_a_tokenizer_with_terms_keeps_all_rows_and_makes_terms_of_their_pieces(make):
    old = make()
    new = add_terms(old, ["sensorless motor", "无传感器"]).tokenizer
    change = vocabulary_change(old, new)
    assert change.moved is None and len(change.kept_V) == len(old) + 2
    assert np.array_equal(change.kept_V, [*range(len(old)), -1, -1])
    for number, term in ((len(old), "sensorless motor"), (len(old) + 1, "无传感器")):
        pieces = own_pieces(old, term)
        assert len(pieces) > 1 and sorted(sources(change, number)) == sorted(set(pieces))
        assert change.pieces_VU[number].sum() == len(pieces)


def test_tokens_of_the_same_letters_keep_their_rows():
    old, new = bert_tokenizer(), train_tokenizer(ENGLISH, vocab_size=300)
    change = vocabulary_change(old, new)
    both = old.get_vocab().keys() & new.get_vocab().keys()
    assert len(both) > 100 and any(token.startswith("##") for token in both)
    for token, number in new.get_vocab().items():
        expected = old.get_vocab().get(token, -1)
        assert change.kept_V[number] == expected, token


@pytest.mark.parametrize("make", [roberta_tokenizer, t5_of_its_own_class, t5_of_ours])
def test_a_word_keeps_its_row_however_the_tokenizers_write_it(make):
    old, new = make(), train_tokenizer([*SENTENCES, "the cat is in"] * 3, vocab_size=700, lowercase=False)
    change = vocabulary_change(old, new)
    space = "Ġ" if make is roberta_tokenizer else "▁"
    of_old, of_new = old.get_vocab(), new.get_vocab()
    assert change.kept_V[of_new["the"]] == of_old[f"{space}the"]
    # the letters inside a word are not the word
    inner = [token for token in of_new if token.startswith("##") and token[2:] in of_old and token[2:].isascii()]
    assert len(inner) > 10
    for token in inner:
        assert change.kept_V[of_new[token]] == of_old[token[2:]]


def test_a_chinese_letter_is_the_same_at_the_begin_and_inside_of_a_word():
    old, new = t5_of_ours(), train_tokenizer(CHINESE, vocab_size=700)
    change = vocabulary_change(old, new)
    letters = [letter for letter in "电机的我" if letter in old.get_vocab()]
    assert len(letters) >= 3
    for letter in letters:
        assert change.kept_V[new.get_vocab()[letter]] == old.get_vocab()[letter]


def test_a_chinese_letter_takes_the_row_of_running_text():
    """Two rows may be its: that after a space, which is rare in Chinese, and the usual one."""
    pieces = [("<unk>", 0.0), ("▁你", -2.0), ("你", -3.0), ("▁a", -3.0)]
    unigram = Tokenizer(models.Unigram(pieces, unk_id=0))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    word_piece = Tokenizer(models.WordPiece({"[UNK]": 0, "你": 1, "a": 2}, unk_token="[UNK]"))
    word_piece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    old = PreTrainedTokenizerFast(tokenizer_object=unigram, unk_token="<unk>")
    new = PreTrainedTokenizerFast(tokenizer_object=word_piece, unk_token="[UNK]")
    assert vocabulary_change(old, new).kept_V.tolist() == [0, 2, 3]
    back = vocabulary_change(new, old).kept_V.tolist()
    assert back == [0, 1, 1, 2]  # both begin as the only one that there was


@pytest.mark.parametrize("make", [bert_tokenizer, roberta_tokenizer, t5_tokenizer])
def test_a_new_token_is_made_of_the_pieces_of_its_letters(make):
    old = make()
    new = train_tokenizer([*ENGLISH, "sunmotor endonucleases in the endonucleases"] * 9, vocab_size=900)
    change = vocabulary_change(old, new)
    vocabulary = new.get_vocab()
    assert sorted(sources(change, vocabulary["sunmotor"])) == sorted(set(own_pieces(old, "sunmotor")))
    inner = [t for t in vocabulary if t.startswith("##") and len(t) > 4 and change.kept_V[vocabulary[t]] < 0]
    assert inner
    space = {"▁": "▁", "Ġ": "Ġ"}.get("▁" if make is t5_tokenizer else "Ġ" if make is roberta_tokenizer else "", "")
    for token in inner:
        pieces = old.convert_ids_to_tokens(sources(change, vocabulary[token]))
        assert pieces and all(piece.removeprefix("##") in token for piece in pieces), (token, pieces)
        # inside a word, none of them begins one
        assert (
            all(piece.startswith("##") for piece in pieces)
            if not space
            else not any(piece.startswith(space) for piece in pieces)
        )


def test_letters_that_the_old_tokenizer_does_not_know_have_no_pieces():
    old = train_tokenizer(["the cat"], vocab_size=30)
    new = train_tokenizer(["the cat Ω Ω"], vocab_size=40)
    change = vocabulary_change(old, new)
    assert sources(change, new.get_vocab()["ω"]) == []


def test_special_tokens_keep_their_rows_by_role():
    old, new = roberta_tokenizer(), train_tokenizer(ENGLISH, vocab_size=300)
    change = vocabulary_change(old, new)
    for role, lender in {"cls": "bos", "sep": "eos", "pad": "pad", "mask": "mask", "unk": "unk"}.items():
        number, row = getattr(new, f"{role}_token_id"), getattr(old, f"{lender}_token_id")
        assert change.kept_V[number] == row and change.moved[row] == number
    assert change.special_ids == sorted(new.all_special_ids)


def test_sentinels_keep_their_rows_by_their_number():
    old, new = t5_tokenizer(), t5_of_ours()  # 20 of them, and 100
    change = vocabulary_change(old, new)
    assert [change.kept_V[number] for number in sentinel_ids(new)[:20]] == sentinel_ids(old)
    assert all(change.kept_V[number] == -1 and not sources(change, number) for number in sentinel_ids(new)[20:])


def test_special_tokens_keep_their_ids_where_there_is_room():
    old = roberta_of_its_own_class()
    new = replaced(old)
    check_tokenizer(new)
    assert len(new) == 300 and sorted(new.get_vocab().values()) == list(range(300))
    for role in ("pad", "cls", "sep", "mask", "unk"):
        assert getattr(new, f"{role}_token_id") == getattr(old, f"{role}_token_id"), role
    ids = new("the cat", "the dog")["input_ids"]
    assert ids[0] == old.cls_token_id and ids.count(old.sep_token_id) == 2
    # without room they have those of a new tokenizer
    far = train_tokenizer(ENGLISH, vocab_size=300)
    far = type(far)(vocab={token: 299 - number for token, number in far.get_vocab().items()})
    assert far.mask_token_id == 295 and replaced(far, vocab_size=100).mask_token_id == 4
    assert replaced(far, vocab_size=300).mask_token_id == 295


def test_a_replacement_reads_in_the_case_of_the_old_tokenizer():
    assert "Tom" in replaced(roberta_tokenizer(), vocab_size=900).get_vocab()
    assert "tom" in replaced(bert_tokenizer(), vocab_size=900).get_vocab()
    cased = replaced(t5_of_its_own_class(), vocab_size=1200, kind="t5")
    check_pair_tokenizer(cased)
    assert "▁Tom" in cased.get_vocab()


def test_what_is_kept_new_and_dropped_is_said_with_the_length_of_a_text():
    old, new = bert_tokenizer(), train_tokenizer(ENGLISH, vocab_size=300)
    change = vocabulary_change(old, new, ENGLISH[:10])
    before, after = (sum(map(len, t(ENGLISH[:10], add_special_tokens=False)["input_ids"])) / 10 for t in (old, new))
    assert (change.tokens_before, change.tokens_after, change.texts_counted) == (before, after, 10)
    kept = (change.kept_V >= 0).sum()
    assert str(change) == (
        f"vocabulary: 700 -> 300 tokens ({kept} kept, {300 - kept} new, {700 - kept} dropped); "
        f"a text takes {before:.1f} -> {after:.1f} tokens (mean of 10)"
    )


def test_padding_and_truncation_of_the_old_tokenizer_do_not_count():
    old, new = train_tokenizer(SENTENCES, vocab_size=700), train_tokenizer([*ENGLISH, "zebrafish"] * 9, vocab_size=900)
    expected = vocabulary_change(old, new, ENGLISH)
    old.backend_tokenizer.enable_padding(length=64)
    old.backend_tokenizer.enable_truncation(3)
    change = vocabulary_change(old, new, ENGLISH)
    assert str(change) == str(expected)
    assert (change.pieces_VU != expected.pieces_VU).nnz == 0


def test_the_pieces_of_a_kept_token_are_those_that_it_would_have_if_it_were_none():
    old, new = bert_tokenizer(), train_tokenizer(ENGLISH, vocab_size=300)
    change = vocabulary_change(old, new)
    for token, number in new.get_vocab().items():
        if change.kept_V[number] >= 0 and number not in change.special_ids:
            row = change.pieces_VU[number]
            pieces = [old.convert_ids_to_tokens(int(i)) for i, n in zip(row.indices, row.data) for _ in range(int(n))]
            letters = token.removeprefix("##")
            assert token not in pieces and (len(letters) > 1) == bool(pieces), token
            if pieces:  # in any order, as a matrix has none
                assert sorted("".join(piece.removeprefix("##") for piece in pieces)) == sorted(letters)
