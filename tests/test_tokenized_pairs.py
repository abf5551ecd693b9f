"""Pairs of texts become pairs of token ids: cut off, counted, cached, and no special token comes from text."""

import copy
import logging

import datasets
import pytest
from tokenizers_for_tests import SENTENCES, roberta_tokenizer, t5_tokenizer, unigram_tokenizer
from transformers import PreTrainedTokenizerFast

from retrieval_pretraining import tokenized_pairs
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.passages import check_pair_tokenizer, encode_documents, sentinel_ids
from retrieval_pretraining.tokenized_pairs import document_key, tokenize_pairs
from retrieval_pretraining.tokenizer_training import train_tokenizer

COLUMNS = ["input_ids", "word_ids", "input_ids_pair", "word_ids_pair", "document_key"]


def pair_dataset(**columns) -> datasets.Dataset:
    count = len(SENTENCES) // 2
    known = {"text": SENTENCES[:count], "text_pair": SENTENCES[count:], "document_id": [str(i) for i in range(count)]}
    return datasets.Dataset.from_dict({**known, "strategy": ["lcs"] * count, **columns})


def t5_with_sentinels_as_pieces() -> PreTrainedTokenizerFast:
    """As mT5 has them: sentinels are pieces of the vocabulary, and no special tokens of the tokenizer."""
    backend = copy.deepcopy(t5_tokenizer().backend_tokenizer)
    text = backend.to_str().replace("<extra_id_", "\u2581<extra_id_")
    names = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    plain = PreTrainedTokenizerFast(tokenizer_object=type(backend).from_str(text), **names)
    kept = [token for token in plain.all_special_tokens if "extra_id" in token]
    assert not kept
    return plain


@pytest.mark.parametrize("num_proc", [None, 2])
def test_each_row_holds_both_texts_of_a_pair(num_proc):
    dataset = pair_dataset()
    pairs = tokenize_pairs(dataset, t5_tokenizer(), max_seq_length=64, num_proc=num_proc)
    assert pairs.column_names == COLUMNS and len(pairs) == len(dataset)
    for side, name in (("", "text"), ("_pair", "text_pair")):
        expected = encode_documents(dataset[name][:], t5_tokenizer(), max_seq_length=64)
        assert pairs[f"input_ids{side}"][:] == expected["input_ids"]
        assert pairs[f"word_ids{side}"][:] == expected["word_ids"]
    assert pairs["document_key"][:] == [document_key(each) for each in dataset["document_id"]]
    assert pairs.features["document_key"].dtype == "int64" and pairs.features["input_ids"].feature.dtype == "int32"


def test_a_stream_becomes_the_same_pairs_lazily():
    dataset = pair_dataset()
    stream = tokenize_pairs(dataset.to_iterable_dataset(), t5_tokenizer(), max_seq_length=64)
    assert isinstance(stream, datasets.IterableDataset)
    assert list(stream) == list(tokenize_pairs(dataset, t5_tokenizer(), max_seq_length=64))


def test_texts_are_cut_off_with_their_eos_and_counted(caplog):
    dataset = pair_dataset(text=[" ".join(SENTENCES)] * 2 + SENTENCES[2:30])
    with caplog.at_level(logging.WARNING):
        pairs = tokenize_pairs(dataset, t5_tokenizer(), max_seq_length=64)
    assert len(pairs[0]["input_ids"]) == 64 and pairs[0]["input_ids"][-1] == t5_tokenizer().eos_token_id
    assert pairs[0]["input_ids"][:-1] == t5_tokenizer()(" ".join(SENTENCES))["input_ids"][:63]
    assert "max_seq_length 64 cuts off a text in 2 of 30 pairs" in caplog.text and "dropped" not in caplog.text


def test_pairs_with_an_empty_text_are_dropped_and_counted(caplog):
    texts = list(SENTENCES[:30])
    texts[3], texts[7], texts[29] = "", " \n\u3000", None
    with caplog.at_level(logging.WARNING):
        pairs = tokenize_pairs(pair_dataset(text=texts), t5_tokenizer(), max_seq_length=64)
    keys = [document_key(str(number)) for number in range(30) if number not in (3, 7, 29)]
    assert pairs["document_key"][:] == keys and "dropped 3 of 30 pairs" in caplog.text
    expected = encode_documents([SENTENCES[34]], t5_tokenizer(), max_seq_length=64)["input_ids"][0]
    assert pairs[3]["input_ids_pair"] == expected  # the fifth pair, with its own other side
    with pytest.raises(InputError, match="0 usable pairs"):
        tokenize_pairs(pair_dataset(text_pair=[" "] * 30), t5_tokenizer(), max_seq_length=64)


def test_document_ids_are_optional_and_may_be_missing_here_and_there():
    dataset = pair_dataset(document_id=[None, *["x"] * 29])
    keys = tokenize_pairs(dataset, t5_tokenizer(), max_seq_length=64)["document_key"][:]
    assert keys == [-1] + [document_key("x")] * 29
    without = tokenize_pairs(dataset.remove_columns("document_id"), t5_tokenizer(), max_seq_length=64)
    assert without.column_names == COLUMNS[:-1]


def test_document_keys_are_the_same_everywhere():
    assert document_key("doc-1") == 2376381282532555307 and document_key(7) == document_key("7")
    keys = {document_key(number) for number in range(1000)}
    assert len(keys) == 1000 and all(0 <= key < 2**63 for key in keys)


@pytest.mark.parametrize(
    "make", [t5_tokenizer, t5_with_sentinels_as_pieces, lambda: train_tokenizer(SENTENCES, vocab_size=700, kind="t5")]
)
@pytest.mark.parametrize("chinese", ["", "使用"])
def test_text_that_spells_special_tokens_or_sentinels_stays_text(make, chinese):
    tokenizer = make()
    assert len(sentinel_ids(tokenizer)) in (20, 100)
    text = f"{chinese}a <extra_id_0> b{chinese} </s> <pad><extra_id_19>{chinese}c \u2581<extra_id_3> <unk> <0x41></s>"
    dataset = datasets.Dataset.from_dict({"text": [text], "text_pair": ["</s>"]})
    (row,) = tokenize_pairs(dataset, tokenizer, max_seq_length=200)
    special = {tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id, *sentinel_ids(tokenizer)}
    for side in ("input_ids", "input_ids_pair"):
        assert not special & set(row[side][:-1]) and row[side][-1] == tokenizer.eos_token_id
    squeezed = tokenizer.decode(row["input_ids"][:-1]).replace(" ", "").replace("\u2581", "")
    assert squeezed == text.replace(" ", "").replace("\u2581", "")


def test_a_second_run_reads_the_cache(tmp_path, monkeypatch):
    pair_dataset().to_parquet(tmp_path / "pairs.parquet")

    def run():
        dataset = datasets.load_dataset(
            "parquet", data_files=str(tmp_path / "pairs.parquet"), split="train", cache_dir=str(tmp_path / "cache")
        )
        return tokenize_pairs(dataset, t5_tokenizer(), max_seq_length=64)

    first = run()
    monkeypatch.setattr(tokenized_pairs, "encode_documents", lambda *_, **__: pytest.fail("tokenised again"))
    assert run()[:] == first[:]


def test_sentinels_are_found_in_the_order_of_their_numbers():
    ids = sentinel_ids(t5_tokenizer())
    assert t5_tokenizer().convert_ids_to_tokens(ids) == [f"<extra_id_{number}>" for number in range(20)]
    assert sentinel_ids(t5_with_sentinels_as_pieces()) == ids
    tokenizer = copy.deepcopy(unigram_tokenizer())
    assert sentinel_ids(tokenizer) == []
    tokenizer.add_tokens(["<extra_id_1>", "<extra_id_0>", "<extra_id_3>"])
    assert sentinel_ids(tokenizer) == [len(tokenizer) - 2, len(tokenizer) - 3]
    check_pair_tokenizer(tokenizer)


@pytest.mark.parametrize(
    "columns, message", [({"text": ["a"]}, "text_pair is not among"), ({"text_pair": ["a"]}, "text is not among")]
)
def test_a_missing_column_is_named(columns, message):
    with pytest.raises(InputError, match=message):
        tokenize_pairs(datasets.Dataset.from_dict(columns), t5_tokenizer(), max_seq_length=64)


def test_a_tokenizer_without_sentinels_is_refused():
    with pytest.raises(InputError, match="no sentinels"):
        tokenize_pairs(pair_dataset(), roberta_tokenizer(), max_seq_length=64)


@pytest.mark.parametrize("options", [{"max_seq_length": 1}, {"max_seq_length": 9, "word_segmenter": "jieba"}])
def test_impossible_options_are_refused(options):
    with pytest.raises(InputError, match="use"):
        tokenize_pairs(pair_dataset(), t5_tokenizer(), **options)
