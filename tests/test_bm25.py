"""BM25: tokens of English and Chinese, scores, order, what the results say about it, mistakes."""

import logging
import math
import random
import sys

import numpy as np
import pytest
from reference import retrieval_oracle as oracle

from retrieval_pretraining.bm25 import BM25Index, bm25_run, bm25_scores, bm25_tokenizer, describe_bm25, detect_language
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.retrieval_data import RetrievalData
from retrieval_pretraining.retrieval_metrics import retrieval_metrics

POEM = ["窗前月色", "地上白霜", "抬头看月", "低头想家乡"]


def retrieval_data(documents, queries):
    ids = [f"d{i}" for i in range(len(documents))]
    query_ids = [f"q{i}" for i in range(len(queries))]
    return RetrievalData("toy", ids, documents, query_ids, queries, {query: {ids[0]: 1} for query in query_ids})


# scores


def test_bm25_equals_the_formula():
    data = retrieval_data(["the red fox", "red dogs running", "blue whales"], ["foxes, Red"])
    run = bm25_run(data)
    idf_red, idf_fox = math.log(1 + 1.5 / 2.5), math.log(1 + 2.5 / 1.5)  # in 2 and in 1 of 3 documents
    norm_2, norm_3 = (0.9 * (1 - 0.4 + 0.4 * length / (7 / 3)) for length in (2, 3))
    assert list(run["q0"]) == ["d0", "d1"]
    assert run["q0"]["d0"] == pytest.approx((idf_red + idf_fox) / (1 + norm_2), abs=1e-6)
    assert run["q0"]["d1"] == pytest.approx(idf_red / (1 + norm_3), abs=1e-6)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75), (0.0, 0.0), (2.0, 1.0)])
def test_every_score_equals_the_slow_oracle(language, k1, b):
    from bm25s.stopwords import STOPWORDS_EN
    from Stemmer import Stemmer

    stem = Stemmer("english").stemWord
    pieces = [
        "the",
        "Running",
        "fox_9",
        "a",
        "foxes",
        "réseau",
        "家乡",
        "家",
        "低头想家乡",
        "〇々",
        "x",
        "𠀀月",
        "BERT",
    ]
    generator = random.Random(7)

    def texts(count):
        return [
            "".join(generator.choices([*pieces, *[" ", ", "] * 6], k=generator.randint(0, 30))) for _ in range(count)
        ]

    documents, queries = texts(40), texts(15)

    def tokens(text):
        return oracle.chinese_tokens(text, stem) if language == "zh" else english(text)

    def english(text):
        return oracle.english_tokens(text, stem, STOPWORDS_EN)

    run = bm25_run(retrieval_data(documents, queries), k1=k1, b=b, language=language)
    found = 0
    for number, query in enumerate(queries):
        scores = oracle.bm25_scores(tokens(query), list(map(tokens, documents)), k1, b)
        expected = {f"d{i}": score for i, score in enumerate(scores) if score > 0}
        assert run[f"q{number}"] == pytest.approx(expected, abs=1e-5)
        found += len(expected)
    assert found > 100


def test_any_documents_are_scored_as_the_search_scores_them():
    data = retrieval_data(["red fox", "red dog", "whale"], ["red fox", "nothing"])
    scores, found = bm25_scores(data, {"q0": ["d2", "d1", "d0"], "q1": ["d0"]}), bm25_run(data)
    assert scores == {"q0": {"d2": 0.0, "d1": found["q0"]["d1"], "d0": found["q0"]["d0"]}, "q1": {"d0": 0.0}}


def test_bm25_ties_are_in_corpus_order_also_at_the_cut():
    run = bm25_run(retrieval_data(["blue whale", "red fox"] * 40, ["fox"]), top_k=7)
    assert list(run["q0"]) == ["d1", "d3", "d5", "d7", "d9", "d11", "d13"]


def test_an_index_is_made_once_and_gives_candidates_to_any_query():
    data = retrieval_data(["red fox", "blue whale", "red red dog"], ["red", "whales and foxes", "zebra"])
    index = BM25Index(data.corpus_texts)
    run = bm25_run(data)
    for text, scores in zip(data.query_texts, run.values()):
        [(positions, values)] = index.search([text], top_k=10)
        assert {f"d{i}": value for i, value in zip(positions, values)} == scores
    (best, _), (nothing, no_scores) = index.search(["red", "zebra"], top_k=1)
    assert (best.tolist(), nothing.tolist(), no_scores.tolist()) == ([2], [], [])
    assert (best.dtype, no_scores.dtype) == (np.int64, np.float32)


# Chinese


def test_bm25_finds_chinese_by_character_bigrams():
    run = bm25_run(retrieval_data(POEM, ["家乡", "头想", "月"]))
    assert [list(scores) for scores in run.values()] == [["d3"], ["d3"], []]
    assert run["q0"]["d3"] > 0


def test_bm25_finds_chinese_by_words_only_where_words_agree():
    run = bm25_run(retrieval_data(POEM, ["家乡", "头想", "月"]), chinese_tokens="words")
    assert [list(scores) for scores in run.values()] == [["d3"], [], ["d2"]]
    assert run["q0"]["d3"] > 0


def test_bm25_reads_words_and_single_characters_within_chinese():
    documents = ["使用BERT模型", "训练 Models v2.0", "我 在", "别的文字"]
    run = bm25_run(retrieval_data(documents, ["bert", "model", "我", "字在"]))
    assert [list(scores) for scores in run.values()] == [["d0"], ["d1"], ["d2"], []]


def test_tokens_of_a_mixed_text():
    text = "The BERT models，低头想家乡 2 我"
    assert bm25_tokenizer("en")(text) == ["bert", "model", "低头想家乡"]
    assert bm25_tokenizer("zh")(text) == ["the", "bert", "model", "低头", "头想", "想家", "家乡", "2", "我"]
    words = bm25_tokenizer("zh", chinese_tokens="words")(text)
    assert words == ["the", "bert", "model", "低头", "想", "家乡", "2", "我"]


def test_scores_of_english_do_not_depend_on_how_chinese_is_read():
    data = retrieval_data(["the red fox", "red dogs, running", "blue whales"], ["foxes", "red dog"])
    plain = bm25_run(data, language="en")
    assert plain["q0"]["d0"] > 0
    assert bm25_run(data) == bm25_run(data, chinese_tokens="words") == plain


def test_language_is_told_by_the_share_of_han_characters():
    assert detect_language(["an English text with one 字 in it, and then a good many more words"]) == "en"
    assert detect_language(["an English text", "中文的句子在这里"]) == "zh"
    assert detect_language(["", "123"]) == "en"


# what it says


def test_the_description_names_variant_parameters_and_tokens():
    english, chinese = retrieval_data(["red fox"], ["fox"]), retrieval_data(POEM, ["家乡"])
    assert describe_bm25(english) == {
        "language": "en",
        "description": "lucene, k1 0.9, b 0.4; English stems without stop words",
    }
    assert describe_bm25(chinese, k1=1.2, b=0.75) == {
        "language": "zh",
        "description": "lucene, k1 1.2, b 0.75; Chinese character bigrams and stemmed words",
    }
    words = describe_bm25(chinese, chinese_tokens="words")["description"]
    assert words == "lucene, k1 0.9, b 0.4; Chinese words (rjieba) and stemmed words"
    assert describe_bm25(chinese, language="en")["language"] == "en"


def test_the_description_is_of_the_index_that_is_searched():
    options = dict(k1=1.2, b=0.5, chinese_tokens="words")
    index = BM25Index(POEM, **options)
    expected = describe_bm25(retrieval_data(POEM, ["月"]), **options)
    assert {"language": index.language, "description": index.description} == expected


def test_bm25_that_finds_nothing_at_all_warns(caplog):
    data = retrieval_data(["red fox", "blue whale"], ["fox", "家乡"])
    assert bm25_run(data)["q1"] == {}
    assert not caplog.records
    data.query_texts = ["zebra", "the"]
    assert bm25_run(data) == {"q0": {}, "q1": {}}
    assert "no query shares a token" in caplog.text
    assert "English stems" in caplog.text
    data.corpus_texts = ["", "..."]
    assert bm25_run(data) == {"q0": {}, "q1": {}}


def test_bm25s_is_quiet(caplog, capfd):
    with caplog.at_level(logging.DEBUG):
        bm25_run(retrieval_data(["red fox", "blue whale"], ["fox"]))
    assert [record.name for record in caplog.records] == ["retrieval_pretraining.bm25"]
    assert capfd.readouterr() == ("", "")


# bad input


def test_odd_texts_are_indexed_and_asked():
    documents = ["", "   ", "x", "fox " * 2500, "\n\t", "red fox"]
    run = bm25_run(retrieval_data(documents, ["", "  ", "fox", "x", "fox " * 2500]))
    assert [sorted(scores) for scores in run.values()] == [[], [], ["d3", "d5"], [], ["d3", "d5"]]


def test_ids_that_are_numbers_meet_qrels_of_strings():
    data = RetrievalData("toy", [7, 8], ["red fox", "blue whale"], [1], ["whale"], {})
    assert retrieval_metrics(bm25_run(data), {"1": {"8": 1}}, measures=["R@1"]) == {"recall@1": 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus_texts": ["red fox", None]}, r"documents\[1\] is of type NoneType"),
        ({"query_texts": [5]}, r"queries\[0\] is of type int"),
        ({"query_texts": "q"}, "queries are one string"),
        ({"corpus_ids": ["d0", "d0"]}, 'id "d0" stands for several documents'),
        ({"corpus_ids": ["d0"]}, "1 ids for 2 documents"),
        ({"query_ids": ["q", "q"], "query_texts": ["fox", "fox"]}, 'id "q" stands for several queries'),
        ({"corpus_ids": [], "corpus_texts": []}, "no documents"),
    ],
)
def test_data_that_do_not_fit_are_an_error(changes, message):
    data = retrieval_data(["red fox", "blue whale"], ["fox"])
    for name, value in changes.items():
        setattr(data, name, value)
    with pytest.raises(InputError, match=message):
        bm25_run(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "de"}, 'language is "de"'),
        ({"chinese_tokens": "jieba"}, 'chinese_tokens is "jieba"'),
        ({"k1": -0.1}, "k1 is -0.1"),
        ({"k1": math.nan}, "k1 is nan"),
        ({"b": 1.1}, "b is 1.1"),
        ({"top_k": 0}, "top_k is 0"),
    ],
)
def test_an_option_out_of_range_is_an_error(options, message):
    data = retrieval_data(["red fox"], ["fox"])
    with pytest.raises(InputError, match=message):
        bm25_run(data, **options)
    if "top_k" not in options:
        with pytest.raises(InputError, match=message):
            describe_bm25(data, **options)


def test_a_tokenizer_needs_a_language_that_is_known():
    with pytest.raises(InputError, match='language is "auto"'):
        bm25_tokenizer("auto")


@pytest.mark.parametrize(
    ("module", "extra", "options"),
    [("bm25s", "eval", {}), ("Stemmer", "eval", {}), ("rjieba", "chinese", {"chinese_tokens": "words"})],
)
def test_a_missing_extra_gives_the_pip_command(monkeypatch, module, extra, options):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf'{module} .* pip install "retromae-gur\[{extra}\]"'):
        bm25_run(retrieval_data(POEM, ["家乡"]), **options)


def test_words_are_not_asked_of_rjieba_where_the_corpus_is_english(monkeypatch):
    monkeypatch.setitem(sys.modules, "rjieba", None)
    assert bm25_run(retrieval_data(["red fox"], ["fox"]), chinese_tokens="words")["q0"]["d0"] > 0
