"""The screen of counts: documents, characters and tokens by script, unknown tokens."""

import numpy as np
import pytest
from datasets import Dataset, Features, Sequence, Value
from tokenizers_for_tests import SENTENCES, bert_tokenizer, roberta_tokenizer, t5_tokenizer, unigram_tokenizer

from retrieval_pretraining import text_statistics
from retrieval_pretraining.corpus import load_documents
from retrieval_pretraining.corpus_counts import CorpusCounts
from retrieval_pretraining.passages import tokenize_documents
from retrieval_pretraining.text_statistics import count_tokens, format_statistics, unknown_warning

IDS = Features({name: Sequence(Value("int32")) for name in ("input_ids", "word_ids")})


def passages(texts, tokenizer=None):
    tokenizer = tokenizer or bert_tokenizer()
    return tokenize_documents(Dataset.from_dict({"text": texts}), tokenizer, max_seq_length=32)


def test_tokens_are_counted_by_script_without_special_ones():
    tokenizer = bert_tokenizer()
    tokens = count_tokens(passages(["今天天气。", "the cat 2"]), tokenizer)
    pieces = tokenizer.tokenize("the cat 2")
    assert tokens.scripts == {"Han": 4, "Latin": len(pieces) - 1, "digits": 1, "other": 1}
    assert tokens.unknown == 0 and tokens.tokens == 5 + len(pieces)
    assert tokens.lengths.tolist() == [7, 2 + len(pieces)]
    assert (tokens.examples, tokens.of) == (2, 2)


@pytest.mark.parametrize("make", [bert_tokenizer, unigram_tokenizer, roberta_tokenizer, t5_tokenizer])
def test_every_kind_of_tokenizer_is_read_in_its_own_spelling(make):
    tokenizer = make()
    counted = {}
    for name, texts in (("Han", SENTENCES[1::2]), ("Latin", SENTENCES[0::2])):
        texts = ["".join(filter(str.isalpha, text)) if name == "Han" else text for text in texts]
        counted[name] = count_tokens(passages(texts, tokenizer), tokenizer)
        scripts = dict(counted[name].scripts)
        # Bytes: a Han character is more than one token, none of which is one.
        found = scripts.pop(name, 0) + scripts.pop("parts of a character", 0)
        assert found > 0.75 * counted[name].tokens
        assert not ({"Latin", "Han", "Cyrillic", "other letters"} - {name}) & scripts.keys()
    has_bytes = make is roberta_tokenizer
    assert ("parts of a character" in counted["Han"].scripts) == has_bytes
    assert "parts of a character" not in counted["Latin"].scripts


def test_both_texts_of_pairs_are_counted():
    rows = {"input_ids": [[2, 10, 3]], "input_ids_pair": [[2, 10, 11, 3]]}
    tokens = count_tokens(Dataset.from_dict(rows), bert_tokenizer())
    assert tokens.tokens == 3 and tokens.lengths.tolist() == [3, 4] and tokens.examples == 1


def test_rows_that_were_chosen_are_counted_and_no_others():
    rows = {"input_ids": [[2, 10, 3], [2, 11, 11, 3], [2, 12, 3]], "word_ids": [[0], [0], [0]]}
    dataset = Dataset.from_dict(rows, features=IDS)
    assert count_tokens(dataset.select([2, 1]), bert_tokenizer()).lengths.tolist() == [3, 4]
    assert count_tokens(dataset.select(range(1, 2)), bert_tokenizer()).tokens == 2


def test_of_very_many_examples_a_sample_is_counted_evenly(monkeypatch):
    monkeypatch.setattr(text_statistics, "_COUNTED_EXAMPLES", 200)
    monkeypatch.setattr(text_statistics, "_BLOCKS", 20)
    lengths = np.arange(1000) // 100 + 1
    dataset = Dataset.from_dict({"input_ids": [[10] * length for length in lengths]})
    tokens = count_tokens(dataset, bert_tokenizer())
    assert (tokens.examples, tokens.of, len(tokens.lengths)) == (200, 1000, 200)
    assert abs(tokens.lengths.mean() - lengths.mean()) < 0.5
    assert "of 200 of 1,000" in format_statistics(None, tokens)


def test_a_document_of_a_hundred_thousand_tokens_is_cut_and_none_is_lost(tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text('{"text": "' + "天气" * 50_000 + '"}\n', encoding="utf-8")
    dataset, counts = load_documents(train_file=path, cache_dir=tmp_path / "cache")
    found = tokenize_documents(dataset, bert_tokenizer(), max_seq_length=512)
    tokens = count_tokens(found, bert_tokenizer())
    assert counts.characters == tokens.scripts == {"Han": 100_000}
    assert len(found) == -(-100_000 // 510) and tokens.lengths.max() == 512


def test_unknown_tokens_are_shown_and_above_a_twentieth_warned_of():
    tokenizer = bert_tokenizer()
    few = count_tokens(passages([*SENTENCES[:20], "ж"]), tokenizer)
    assert few.unknown == 1 and unknown_warning(few) is None
    assert "warning" not in format_statistics(None, few)
    assert f"unknown tokens: 1, {1 / few.tokens:.2%}" in format_statistics(None, few)
    many = count_tokens(passages(["天ж", "气", "天"]), tokenizer)
    assert many.unknown_share == 0.25
    assert unknown_warning(many, "validation").startswith(
        "warning: the tokenizer does not know 25% of the tokens of the validation text"
    )
    assert format_statistics(None, many).splitlines()[-1].startswith("warning: the tokenizer does not know 25%")


def test_a_tokenizer_that_knows_all_says_nothing_of_unknown_tokens():
    tokenizer = roberta_tokenizer()
    tokens = count_tokens(passages(["жжж"], tokenizer), tokenizer)
    assert tokens.unknown == 0
    tokens.has_unknown = False
    assert "unknown" not in format_statistics(None, tokens)


def test_one_screen_shows_what_was_kept_dropped_and_changed_by_reason():
    counts = CorpusCounts(
        files=2,
        documents=1200,
        blank=3,
        changed={"HTML": 12, "NFC": 1000},
        dropped={"duplicate": 30, "too short": 4},
        characters={"Han": 6000, "Latin": 3000, "other": 1000},
    )
    tokens = text_statistics.TokenCounts({"Han": 6000, "Latin": 1500}, 0, True, np.array([10, 20, 60]), 3, 3)
    assert format_statistics(counts, tokens).splitlines() == [
        "1,200 documents kept",
        "37 dropped: 3 blank, 30 duplicate, 4 too short",
        "changed: 12 HTML, 1,000 NFC",
        "                          characters                  tokens",
        "Han                            6,000   60.0%           6,000   80.0%",
        "Latin                          3,000   30.0%           1,500   20.0%",
        "other                          1,000   10.0%               0    0.0%",
        "all                           10,000                   7,500",
        "tokens a passage: 30.0 (median 20, longest 60, special ones included)",
        "unknown tokens: 0, 0.00%",
    ]


def test_without_a_tokenizer_characters_are_shown_alone():
    counts = CorpusCounts(documents=1, characters={"Han": 2})
    assert format_statistics(counts).splitlines()[0] == "1 document kept"
    assert "tokens" not in format_statistics(counts)
    assert format_statistics(CorpusCounts(documents=None)) == ""  # a stream, which nobody has counted
