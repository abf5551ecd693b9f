"""Retrieval evaluation: files, encoding, search, from files to numbers, table."""

import gzip
import json
import lzma
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.retrieval_evaluation import (
    RetrievalData,
    bm25_run,
    dense_run,
    encode_texts,
    evaluate_retrieval,
    format_table,
    load_retrieval_data,
    retrieval_metrics,
    sample,
)

CORPUS = [
    {"_id": "d1", "title": "Fox", "text": "the red fox runs"},
    {"_id": "d2", "title": "", "text": "a blue whale swims"},
    {"_id": "d3", "text": "dogs sleep"},
]
QUERIES = [{"_id": "q1", "text": "running foxes"}, {"_id": "q2", "text": "blue whales"}]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td3\t1\nq2\td2\t1\n"


def write_folder(folder, *, corpus=CORPUS, queries=QUERIES, qrels=QRELS):
    (folder / "qrels").mkdir(exist_ok=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in corpus), encoding="utf-8")
    (folder / "queries.jsonl").write_text("".join(json.dumps(record) + "\n" for record in queries), encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text(qrels, encoding="utf-8")
    return folder


def retrieval_data(documents, queries):
    ids = [f"d{i}" for i in range(len(documents))]
    query_ids = [f"q{i}" for i in range(len(queries))]
    return RetrievalData("toy", ids, documents, query_ids, queries, {query: {ids[0]: 1} for query in query_ids})


# reading


def test_title_and_text_are_joined_and_an_empty_title_adds_nothing(tmp_path):
    data = load_retrieval_data(write_folder(tmp_path))
    assert data.corpus_ids == ["d1", "d2", "d3"]
    assert data.corpus_texts == ["Fox the red fox runs", "a blue whale swims", "dogs sleep"]
    assert data.query_texts == ["running foxes", "blue whales"]
    assert data.qrels == {"q1": {"d1": 2, "d3": 1}, "q2": {"d2": 1}}


def test_a_complete_folder_gives_no_warning(tmp_path, caplog):
    load_retrieval_data(write_folder(tmp_path))
    assert not caplog.records


def test_integer_ids_meet_the_strings_of_the_qrels(tmp_path):
    corpus = [{"id": 7, "text": "seven"}, {"id": 8, "text": "eight"}]
    folder = write_folder(tmp_path, corpus=corpus, queries=[{"_id": 1, "text": "7"}], qrels="1\t7\t1\n")
    data = load_retrieval_data(folder)
    assert (data.corpus_ids, data.query_ids, data.qrels) == (["7", "8"], ["1"], {"1": {"7": 1}})


def test_qrels_need_no_header(tmp_path):
    data = load_retrieval_data(write_folder(tmp_path, qrels=QRELS.split("\n", 1)[1]))
    assert data.qrels == {"q1": {"d1": 2, "d3": 1}, "q2": {"d2": 1}}


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed_files_give_the_same_data(tmp_path, suffix, compress):
    plain = load_retrieval_data(write_folder(tmp_path))
    for stem in ("corpus", "queries"):
        path = tmp_path / f"{stem}.jsonl"
        (tmp_path / f"{stem}.jsonl{suffix}").write_bytes(compress(path.read_bytes()))
        path.unlink()
    assert load_retrieval_data(tmp_path) == plain


def test_what_does_not_fit_is_counted_in_one_warning(tmp_path, caplog):
    queries = [*QUERIES, {"_id": "q3", "text": "nobody judged this"}]
    qrels = QRELS + "q1\tabsent\t1\nunknown query\td1\t1\n"
    data = load_retrieval_data(write_folder(tmp_path, queries=queries, qrels=qrels))
    assert data.query_ids == ["q1", "q2"]
    assert data.qrels["q1"] == {"d1": 2, "d3": 1, "absent": 1}
    (record,) = caplog.records
    assert "1 of 3 queries have no relevant document" in record.getMessage()
    assert "1 of 3 judged queries have no text" in record.getMessage()
    assert "1 of 4 judged documents are not in the corpus" in record.getMessage()


def test_a_query_with_grade_zero_only_is_left_out(tmp_path):
    data = load_retrieval_data(write_folder(tmp_path, qrels="q1\td1\t1\nq2\td2\t0\n"))
    assert data.query_ids == ["q1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus": [*CORPUS, {"_id": "d1", "text": "again"}]}, r'corpus.jsonl, line 4: the id "d1" came before'),
        ({"corpus": [{"text": "no id"}]}, r"corpus.jsonl, line 1: needs .* \"_id\""),
        ({"queries": [{"_id": "q1", "text": 5}]}, r"queries.jsonl, line 1: needs .* string"),
        ({"qrels": "q1\td1\t1\nq2 d2 1\n"}, r"test.tsv, line 2: needs a query id"),
        ({"qrels": "q1\td1\t1\nq2\td2\tyes\n"}, r"test.tsv, line 2: needs a query id"),
        ({"qrels": "q1\td1\t1\nq2\td2\t--1\n"}, r"test.tsv, line 2: needs a query id"),
        ({"corpus": [{"_id": "d1", "text": "cut \ud83d"}]}, r"corpus.jsonl, line 1: holds half of a"),
        ({"qrels": "other\td1\t1\n"}, r"test.tsv: no query .*queries.jsonl"),
        ({"qrels": "q1\tother\t1\n"}, r"test.tsv: no document .*corpus.jsonl"),
    ],
)
def test_a_broken_folder_is_an_error_that_names_the_place(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        load_retrieval_data(write_folder(tmp_path, **changes))


def test_a_query_that_is_a_document_does_not_find_itself(tmp_path, caplog):
    # As in ArguAna: the text of a document asks for others. The query q2 only has the id of a document.
    corpus = [{"_id": "q1", "title": "Fox", "text": "red foxes run"}, {"_id": "q2", "text": "whales"}]
    corpus += [{"_id": f"d{i}", "text": f"red foxes number {i}"} for i in range(3)]
    queries = [{"_id": "q1", "text": "red foxes run"}, {"_id": "q2", "text": "red foxes"}]
    data = load_retrieval_data(write_folder(tmp_path, corpus=corpus, queries=queries, qrels="q1\td0\t1\nq2\td1\t1\n"))
    assert data.own == {"q1": "q1"} and "1 queries are documents themselves" in caplog.text
    run = bm25_run(data, top_k=2)
    assert list(run["q1"]) == ["d0", "d1"] and list(run["q2"]) == ["q1", "d0"]
    assert retrieval_metrics(run, data.qrels)["mrr@10"] == 0.5
    assert sample(data).own == {"q1": "q1"} and not sample(data, max_documents=2).own  # which leaves q1 out
    assert not replace(data, own={}).own and "q1" in bm25_run(replace(data, own={}))["q1"]


def test_a_cut_line_names_file_and_line(tmp_path):
    write_folder(tmp_path)
    with open(tmp_path / "corpus.jsonl", "a") as file:
        file.write('{"_id": "d4", "te')
    with pytest.raises(InputError, match=r"corpus.jsonl, line 4"):
        load_retrieval_data(tmp_path)


def test_text_that_is_not_utf8_names_file_and_line(tmp_path):
    write_folder(tmp_path)
    with open(tmp_path / "queries.jsonl", "ab") as file:
        file.write('{"_id": "q3", "text": "中文"}\n'.encode("gb18030"))
    with pytest.raises(InputError, match=r"queries.jsonl, line 3: not UTF-8"):
        load_retrieval_data(tmp_path)


def test_missing_files_are_named(tmp_path):
    write_folder(tmp_path)
    with pytest.raises(InputError, match=r"dev.tsv: .* splits in that folder: test"):
        load_retrieval_data(tmp_path, split="dev")
    (tmp_path / "corpus.jsonl").unlink()
    with pytest.raises(InputError, match=r"no corpus\.jsonl"):
        load_retrieval_data(tmp_path)


def test_a_sample_is_the_same_for_a_seed_and_keeps_what_is_judged():
    ids = [f"d{i}" for i in range(50)]
    queries = [f"q{i}" for i in range(20)]
    qrels = {query: {f"d{2 * i}": 1, f"d{2 * i + 1}": 0} for i, query in enumerate(queries)}
    data = RetrievalData("toy", ids, [f"text of {i}" for i in ids], queries, [f"text of {q}" for q in queries], qrels)
    small = sample(data, max_queries=5, max_documents=15, seed=1)
    assert (len(small.query_ids), len(small.corpus_ids)) == (5, 15)
    assert {document for grades in small.qrels.values() for document in grades} <= set(small.corpus_ids)
    assert small.corpus_texts == [f"text of {i}" for i in small.corpus_ids]
    assert small.query_texts == [f"text of {q}" for q in small.query_ids]
    assert list(small.qrels) == small.query_ids
    assert sample(data, max_queries=5, max_documents=15, seed=1) == small
    assert sample(data, max_queries=5, max_documents=15, seed=2).query_ids != small.query_ids
    assert len(sample(data, max_queries=5, max_documents=3, seed=1).corpus_ids) == 10
    assert sample(data) == data


# encoding

WORDS = [f"w{i}" for i in range(40)]
SIZES = dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=64, **special)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return BertModel(BertConfig(**SIZES, max_position_embeddings=64))


@pytest.fixture(scope="module")
def texts():
    generator = random.Random(0)
    return [" ".join(generator.choices(WORDS, k=generator.randint(0, 40))) for _ in range(33)]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_vector_does_not_depend_on_its_batch_or_place(model, tokenizer, texts, pooling):
    alone = encode_texts(model, tokenizer, texts, batch_size=1, pooling=pooling)
    assert (alone.shape, alone.dtype) == ((33, 32), np.float32)
    shuffled = random.Random(1).sample(range(33), 33)
    for batch_size in (8, 33):
        together = encode_texts(model, tokenizer, texts, batch_size=batch_size, pooling=pooling)
        np.testing.assert_allclose(together, alone, atol=1e-5)
        moved = encode_texts(model, tokenizer, [texts[i] for i in shuffled], batch_size=batch_size, pooling=pooling)
        np.testing.assert_allclose(moved, alone[shuffled], atol=1e-5)


def test_vectors_equal_a_plain_call_of_the_model(model, tokenizer):
    batch = tokenizer("w1 w2 w3", return_tensors="pt")
    with torch.no_grad():
        states = model.eval()(**batch).last_hidden_state[0].numpy()
    for pooling, expected in (("cls", states[0]), ("mean", states.mean(axis=0))):
        (vector,) = encode_texts(model, tokenizer, ["w1 w2 w3"], pooling=pooling, normalize=False)
        np.testing.assert_allclose(vector, expected, atol=1e-6)
        (unit,) = encode_texts(model, tokenizer, ["w1 w2 w3"], pooling=pooling)
        np.testing.assert_allclose(unit, expected / np.linalg.norm(expected), atol=1e-6)


def test_training_flags_are_restored_and_dropout_is_off(model, tokenizer, texts):
    model.train()
    model.embeddings.eval()
    flags = [module.training for module in model.modules()]
    first, second = (encode_texts(model, tokenizer, texts[:4]) for _ in range(2))
    assert [module.training for module in model.modules()] == flags
    np.testing.assert_array_equal(first, second)


def test_padding_on_the_left_does_not_move_the_first_token(model, tokenizer, texts, monkeypatch):
    expected = encode_texts(model, tokenizer, texts)
    monkeypatch.setattr(tokenizer, "padding_side", "left")
    np.testing.assert_allclose(encode_texts(model, tokenizer, texts), expected, atol=1e-6)


def test_a_model_with_a_head_gives_the_vectors_of_its_encoder(tokenizer, texts):
    masked = BertForMaskedLM(BertConfig(**SIZES, max_position_embeddings=64))
    expected = encode_texts(masked.bert, tokenizer, texts[:5])
    np.testing.assert_array_equal(encode_texts(masked, tokenizer, texts[:5]), expected)


def test_a_backbone_without_token_types_is_encoded(tokenizer, texts):
    config = DistilBertConfig(vocab_size=50, dim=32, n_layers=1, n_heads=2, hidden_dim=48)
    assert encode_texts(DistilBertModel(config), tokenizer, texts[:5]).shape == (5, 32)


class SentenceVectorModel(BertModel):
    """Like the models of this project: `pooler_output` is the sentence vector."""

    def forward(self, input_ids, attention_mask):
        output = super().forward(input_ids, attention_mask)
        output.pooler_output = output.last_hidden_state[:, 1] * 3
        return output


def test_pooler_output_is_read_from_our_models_and_refused_from_stock_ones(model, tokenizer, texts):
    ours = SentenceVectorModel(model.config).eval()
    batch = tokenizer(texts[0], return_tensors="pt")
    with torch.no_grad():
        expected = ours(batch["input_ids"], batch["attention_mask"]).pooler_output.numpy()
    vectors = encode_texts(ours, tokenizer, texts[:1], pooling="pooler_output", normalize=False)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    with pytest.raises(InputError, match='use pooling="cls"'):
        encode_texts(model, tokenizer, texts, pooling="pooler_output")


def test_an_unknown_pooling_is_an_error(model, tokenizer):
    with pytest.raises(InputError, match='pooling is "max"'):
        encode_texts(model, tokenizer, ["w1"], pooling="max")


def test_long_texts_are_cut_at_the_length(model, tokenizer):
    long = " ".join(WORDS * 5)
    vectors = encode_texts(model, tokenizer, [long, "w0 w1 w2"], max_seq_length=5)
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
    whole = encode_texts(model, tokenizer, [long, " ".join((WORDS * 5)[:62])])
    np.testing.assert_allclose(whole[0], whole[1], atol=1e-6)


def test_length_respects_positions_that_start_behind_padding(tokenizer, monkeypatch):
    roberta = RobertaModel(RobertaConfig(**SIZES, max_position_embeddings=66, pad_token_id=1))
    monkeypatch.setattr(tokenizer, "model_max_length", 10**30)
    assert encode_texts(roberta, tokenizer, [" ".join(WORDS * 5)]).shape == (1, 32)
    with pytest.raises(InputError, match="max_seq_length is 66, but the model takes 64"):
        encode_texts(roberta, tokenizer, ["w1"], max_seq_length=66)


def test_no_texts_give_no_vectors(model, tokenizer):
    assert len(encode_texts(model, tokenizer, [])) == 0


# search


@pytest.mark.parametrize("chunk_size", [1, 7, 100])
def test_search_in_chunks_equals_a_full_sort(chunk_size):
    generator = np.random.default_rng(0)
    # few distinct values, so that many scores tie; more queries than one chunk of them holds
    queries = generator.integers(-1, 2, (300, 4)).astype(np.float32)
    documents = generator.integers(-1, 2, (40, 4)).astype(np.float32)
    ids = [f"d{i}" for i in range(40)]
    run = dense_run(queries, documents, [f"q{i}" for i in range(300)], ids, top_k=9, chunk_size=chunk_size)
    assert list(run) == [f"q{i}" for i in range(300)]
    for row, ranking in enumerate(run.values()):
        scores = documents @ queries[row]
        expected = sorted(range(40), key=lambda i: (-scores[i], i))[:9]
        assert ranking == {f"d{i}": scores[i] for i in expected}
        assert list(ranking) == [f"d{i}" for i in expected]


def test_equal_documents_tie_exactly_in_any_chunk():
    generator = np.random.default_rng(1)
    query, document = generator.normal(size=(2, 1, 99)).astype(np.float32)
    run = dense_run(query, np.repeat(document, 500, axis=0), ["q"], [f"d{i}" for i in range(500)], chunk_size=61)
    assert list(run["q"]) == [f"d{i}" for i in range(500)]


def test_ids_that_do_not_fit_the_vectors_are_an_error():
    vectors = np.ones((2, 3), dtype=np.float32)
    with pytest.raises(InputError, match='id "d0" stands for several documents'):
        dense_run(vectors, vectors, ["q0", "q1"], ["d0", "d0"])
    with pytest.raises(InputError, match="1 ids for 2 queries"):
        dense_run(vectors, vectors, ["q0"], ["d0", "d1"])


def test_vectors_of_a_diverged_model_are_an_error():
    vectors = np.ones((2, 3), dtype=np.float32)
    with pytest.raises(InputError, match="diverged"):
        dense_run(vectors * np.nan, vectors, ["q0", "q1"], ["d0", "d1"])


# from files to numbers


def test_a_folder_is_measured_from_the_files_to_the_numbers(tmp_path):
    data = load_retrieval_data(write_folder(tmp_path))
    # BM25 finds d1 (grade 2) but not d3 (grade 1) for q1, and d2 for q2
    values = retrieval_metrics(bm25_run(data), data.qrels)
    assert values == pytest.approx({"ndcg@10": (2 / 2.630930 + 1) / 2, "recall@100": 0.75, "mrr@10": 1}, abs=1e-6)


def test_a_dense_model_finds_each_text_by_itself(model, tokenizer):
    documents = [f"w{i} w{i + 1} w{i + 2}" for i in range(10)]
    data = retrieval_data(documents, documents[3:6])
    data.qrels = {"q0": {"d3": 1}, "q1": {"d4": 1}, "q2": {"d5": 1}}
    values = evaluate_retrieval(model, tokenizer, data, pooling="mean", max_seq_length=8, batch_size=4)
    assert values == {"ndcg@10": 1, "recall@100": 1, "mrr@10": 1}
    data.qrels = {"q0": {"d4": 1}, "q1": {"d5": 1}, "q2": {"d3": 1}}
    assert evaluate_retrieval(model, tokenizer, data)["ndcg@10"] < 1


# table


def test_table_is_aligned_markdown():
    rows = [{"system": "BM25", "ndcg@10": 0.6762, "queries": 300}, {"system": "a|b"}]
    assert format_table(rows, ["system", "ndcg@10", "queries"]).split("\n") == [
        "| system | ndcg@10 | queries |",
        "| ------ | ------: | ------: |",
        "| BM25   |   0.676 |     300 |",
        "| a\\|b   |       - |       - |",
    ]
