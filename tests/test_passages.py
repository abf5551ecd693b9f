import logging
import sys
import warnings

import datasets
import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from tokenizers_for_tests import SENTENCES, bert_tokenizer, roberta_tokenizer, unigram_tokenizer
from transformers import PreTrainedTokenizerFast

from retrieval_pretraining import passages
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.passages import (
    check_tokenizer,
    chinese_segmenter,
    encode_documents,
    tokenize_documents,
)

every_tokenizer = pytest.mark.parametrize("make", [bert_tokenizer, roberta_tokenizer, unigram_tokenizer])
LONG = " ".join(SENTENCES) * 3


def encode(text, tokenizer, **options):
    return encode_documents([text], tokenizer, **{"max_seq_length": 4096, **options})


def words_of(text, tokenizer, **options):
    """The words as the text of their tokens; special tokens left out."""
    encoded = encode(text, tokenizer, **options)
    groups = {}
    for token, word in zip(encoded["input_ids"][0], encoded["word_ids"][0], strict=True):
        groups.setdefault(word, []).append(token)
    return [tokenizer.decode(groups[word]).replace(" ", "") for word in sorted(groups) if word >= 0]


def split_at_bars(text_with_bars):
    """A word segmenter that knows its words: "使用|语言" -> 使用, 语言."""
    words = text_with_bars.split("|")
    return "".join(words), lambda text: words


# --- chunks ---


@every_tokenizer
@pytest.mark.parametrize("chunk_boundary", ["sentence", "token"])
def test_chunks_are_wrapped_hold_one_document_and_lose_nothing(make, chunk_boundary):
    tokenizer = make()
    texts = [LONG, SENTENCES[0], SENTENCES[1]]
    encoded = encode_documents(texts, tokenizer, max_seq_length=64, chunk_boundary=chunk_boundary)
    rebuilt = [[], [], []]
    for ids, document in zip(encoded["input_ids"], encoded["document"], strict=True):
        assert ids[0] == tokenizer.cls_token_id and ids[-1] == tokenizer.sep_token_id and len(ids) <= 64
        assert not {tokenizer.cls_token_id, tokenizer.sep_token_id} & set(ids[1:-1])
        rebuilt[document] += ids[1:-1]
    assert rebuilt == tokenizer(texts, add_special_tokens=False)["input_ids"]
    if chunk_boundary == "token":
        assert len(encoded["input_ids"]) == sum(-(-len(ids) // 62) for ids in rebuilt)
    assert encoded["discarded_tokens"] == [0, 0, 0]


def test_truncate_keeps_the_first_tokens_and_counts_the_rest():
    tokenizer = bert_tokenizer()
    chunked = encode(LONG, tokenizer, max_seq_length=64, chunk_boundary="token")
    truncated = encode_documents([LONG, "a dog"], tokenizer, max_seq_length=64, overflow="truncate")
    assert truncated["input_ids"][0] == chunked["input_ids"][0] and truncated["document"] == [0, 1]
    assert truncated["discarded_tokens"] == [sum(len(ids) - 2 for ids in chunked["input_ids"][1:]), 0]


@every_tokenizer
def test_text_without_tokens_gives_no_chunk(make):
    encoded = encode_documents(["", "the cat", ""], make(), max_seq_length=16)
    assert encoded["document"] == [1] and encoded["discarded_tokens"] == [0, 0, 0]


def test_batching_does_not_change_the_result(monkeypatch):
    texts = [LONG, *SENTENCES]
    expected = encode_documents(texts, bert_tokenizer(), max_seq_length=32)
    monkeypatch.setattr(passages, "_CHARACTERS_PER_BATCH", 50)
    assert encode_documents(texts, bert_tokenizer(), max_seq_length=32) == expected


def test_tokenizer_without_cls_uses_its_eos_alone():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=unigram_tokenizer().backend_tokenizer, eos_token="</s>")
    ids = encode("the cat", tokenizer)["input_ids"][0]
    assert ids == [*unigram_tokenizer()("the cat", add_special_tokens=False)["input_ids"], 2]


@pytest.mark.parametrize("options", [{"max_seq_length": 2}, {"overflow": "drop"}])
def test_impossible_options_are_refused(options):
    with pytest.raises(InputError, match="use"):
        encode("the cat", bert_tokenizer(), **options)


def test_ids_may_have_gaps():
    """Larger ids than there are tokens, as in a vocabulary of which some were taken out."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 900, "cat": 70_000}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    specials = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    ids = encode("the cat the", PreTrainedTokenizerFast(tokenizer_object=tokenizer, **specials))["input_ids"][0]
    assert ids[1:-1] == [900, 70_000, 900]


# --- special tokens in the text ---


@every_tokenizer
@pytest.mark.parametrize("chinese", ["", "使用"])
def test_text_that_spells_special_tokens_stays_text(make, chinese):
    tokenizer = make()
    text = f"a{chinese} [SEP] b </s> <mask> [MASK] <s> <pad> [CLS] [PAD] <unk> end</s>"
    encoded = encode(text, tokenizer)
    ids, words = encoded["input_ids"][0][1:-1], encoded["word_ids"][0][1:-1]
    assert not set(ids) & (set(tokenizer.all_special_ids) - {tokenizer.unk_token_id})
    squeezed = tokenizer.decode(ids).replace(" ", "").lower()
    assert "[sep]b</s><mask>" in squeezed and squeezed.endswith("end</s>")
    assert len(words) == len(ids)
    assert (np.array(words) == -1).tolist() == (np.array(ids) == tokenizer.unk_token_id).tolist()


def test_spelled_unk_alone_is_text_too():
    tokenizer = unigram_tokenizer()
    assert tokenizer.unk_token_id not in encode("the <unk>", tokenizer)["input_ids"][0]


@every_tokenizer
def test_tokenizer_is_left_as_it_was_found(make):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=make().backend_tokenizer)
    backend = tokenizer.backend_tokenizer
    backend.enable_truncation(7, stride=2, direction="left")
    backend.enable_padding(pad_id=1, length=9, direction="left")
    tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]"})
    before = backend.to_str(), backend.encode_special_tokens
    assert len(encode(LONG, tokenizer)["input_ids"][0]) > 100
    with pytest.raises(TypeError):
        encode(None, tokenizer)
    assert (backend.to_str(), backend.encode_special_tokens) == before
    assert backend.truncation["max_length"] == 7 and backend.padding["length"] == 9


# --- words ---


@every_tokenizer
def test_pieces_of_an_english_word_share_an_id(make):
    words = [word.lower() for word in words_of("Supersonic flow past turbulent wing", make())]
    assert words == ["supersonic", "flow", "past", "turbulent", "wing"]


@every_tokenizer
def test_word_ids_start_at_zero_in_each_chunk_and_skip_special_tokens(make):
    tokenizer = make()
    encoded = encode(LONG, tokenizer, max_seq_length=24)
    for ids, words in zip(encoded["input_ids"], encoded["word_ids"], strict=True):
        assert words[0] == words[-1] == -1 and len(ids) == len(words)
        real = [word for word in words if word >= 0]
        assert real[0] == 0 and max(real) < len(ids)
        assert all(0 <= step <= 1 for step in np.diff(real))


def test_unknown_tokens_have_no_word():
    encoded = encode("the ☃ cat", bert_tokenizer())
    assert encoded["word_ids"][0][:4] == [-1, 0, -1, 2]
    assert encoded["input_ids"][0][2] == bert_tokenizer().unk_token_id


@every_tokenizer
def test_each_token_of_a_script_without_spaces_is_a_word(make):
    tokenizer = make()
    words = words_of("使用语言", tokenizer)
    assert len(words) >= 2 and "".join(words) == "使用语言"
    assert "\ufffd" not in "".join(words)  # the bytes of one character stay together


def test_thai_and_kana_have_no_spaces_either():
    letters = Tokenizer(models.BPE({letter: i for i, letter in enumerate("ภาษかなカナab")}, []))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters)
    assert words_of("かなカナภาษ", tokenizer) == list("かなカナภาษ")
    assert words_of("abab", tokenizer) == ["abab"]


@every_tokenizer
def test_word_segmenter_says_which_tokens_belong_together(make):
    text, segmenter = split_at_bars("使用|语言|模型|来|预测")
    words = words_of(text, make(), word_segmenter=segmenter)
    if make is roberta_tokenizer and "语言模型" in words:  # one of its tokens holds bytes of both words
        words[1:2] = ["语言", "模型"]
    assert words == ["使用", "语言", "模型", "来", "预测"]


@every_tokenizer
@pytest.mark.parametrize("segmented", [True, False])
def test_chinese_and_english_side_by_side_are_separate_words(make, segmented):
    text, segmenter = split_at_bars("使用|BERT|模型|v2.0| |预测| |cats")
    words = words_of(text, make(), word_segmenter=segmenter if segmented else None)
    words = [word.lower() for word in words]
    assert {"bert", "cats"} <= set(words)
    assert "".join(words) == "使用bert模型v2.0预测cats"
    assert "".join(words[words.index("bert") + 1 : -1]).startswith("模型v2.0")
    if segmented:
        assert {"使用", "模型", "预测"} <= set(words)


def test_segmenter_is_not_asked_about_plain_english():
    encode("the cat sat", bert_tokenizer(), word_segmenter=lambda text: pytest.fail("was asked"))


def test_segmenter_that_loses_characters_is_refused():
    with pytest.raises(InputError, match="word_segmenter"):
        encode("使用 语言", bert_tokenizer(), word_segmenter=str.split)


def test_spaces_part_words_where_there_is_no_pre_tokenizer():
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate("▁abc使用")}, []))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert encode("ab ca 使用 c", tokenizer)["word_ids"] == [[0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 4]]


def test_rjieba_words_when_installed():
    pytest.importorskip("rjieba")
    text = "使用语言模型来预测下一个词\n第二 行"
    assert "".join(chinese_segmenter()(text)) == text
    assert {"语言", "模型", "预测"} <= set(words_of(text, bert_tokenizer(), word_segmenter=chinese_segmenter()))


def test_missing_rjieba_warns_once_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "rjieba", None)
    passages._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="pip install rjieba"):
        assert chinese_segmenter() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert chinese_segmenter() is None


# --- checks ---


@every_tokenizer
def test_complete_tokenizer_passes_the_check(make):
    check_tokenizer(make(), max_seq_length=512)


def test_missing_special_tokens_are_named():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bert_tokenizer().backend_tokenizer, cls_token="[CLS]")
    with pytest.raises(InputError, match="has no sep, mask, pad token"):
        check_tokenizer(tokenizer)


def test_sequence_longer_than_the_tokenizer_allows_is_refused():
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bert_tokenizer().backend_tokenizer, model_max_length=64, **bert_tokenizer().special_tokens_map
    )
    check_tokenizer(tokenizer, max_seq_length=64)
    with pytest.raises(InputError, match="at most 64"):
        check_tokenizer(tokenizer, max_seq_length=65)


@pytest.mark.parametrize("use", [check_tokenizer, lambda tokenizer: encode("a", tokenizer)])
def test_slow_tokenizer_is_refused_by_name(use):
    class SlowTokenizer:
        is_fast, name_or_path = False, "some/slow-model"

    with pytest.raises(InputError, match="some/slow-model"):
        use(SlowTokenizer())


# --- datasets ---


@pytest.mark.parametrize("num_proc", [None, 2])
def test_dataset_becomes_passages(num_proc):
    dataset = datasets.Dataset.from_dict({"text": [*SENTENCES, LONG], "other": list(range(len(SENTENCES) + 1))})
    passages_ = tokenize_documents(dataset, bert_tokenizer(), max_seq_length=32, num_proc=num_proc)
    expected = encode_documents(dataset["text"][:], bert_tokenizer(), max_seq_length=32)
    assert passages_[:] == {name: expected[name] for name in ("input_ids", "word_ids")}
    assert {feature.feature.dtype for feature in passages_.features.values()} == {"int32"}


def test_stream_becomes_the_same_passages_lazily():
    dataset = datasets.Dataset.from_dict({"text": SENTENCES})
    stream = tokenize_documents(dataset.to_iterable_dataset(), roberta_tokenizer(), max_seq_length=32)
    assert isinstance(stream, datasets.IterableDataset)
    assert list(stream) == list(tokenize_documents(dataset, roberta_tokenizer(), max_seq_length=32))


def test_truncation_reports_how_much_it_discarded(caplog):
    dataset = datasets.Dataset.from_dict({"text": [LONG, "the cat"]})
    with caplog.at_level(logging.WARNING):
        shortened = tokenize_documents(dataset, bert_tokenizer(), max_seq_length=32, overflow="truncate")
    discarded = len(bert_tokenizer()(LONG)["input_ids"]) - 32
    assert f"discarded {discarded:,} tokens of 1 documents" in caplog.text
    assert shortened.column_names == ["input_ids", "word_ids"] and len(shortened) == 2


def test_auto_asks_rjieba_and_other_names_are_refused():
    pytest.importorskip("rjieba")
    dataset = datasets.Dataset.from_dict({"text": ["使用语言模型"]})
    words = {
        segmenter: tokenize_documents(dataset, bert_tokenizer(), max_seq_length=32, word_segmenter=segmenter)
        for segmenter in ("auto", None)
    }
    assert words["auto"][0]["word_ids"] == [-1, 0, 0, 1, 1, 2, 2, -1]
    assert words[None][0]["word_ids"] == [-1, 0, 1, 2, 3, 4, 5, -1]
    with pytest.raises(InputError, match="jieba"):
        tokenize_documents(dataset, bert_tokenizer(), max_seq_length=32, word_segmenter="jieba")


def test_corpus_without_a_token_is_refused():
    with pytest.raises(InputError, match="0 usable passages"):
        tokenize_documents(datasets.Dataset.from_dict({"text": ["\x00", "\x01"]}), bert_tokenizer(), max_seq_length=32)
