"""Reranking: candidates from files and runs, and scores for nothing but them."""

import gzip
import json

import numpy as np
import pytest

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.reranking import candidate_documents, candidates_of_run, load_candidates, rerank
from retrieval_pretraining.retrieval_data import RetrievalData
from retrieval_pretraining.retrieval_evaluation import dense_run

DOCUMENTS = ["d1", "d2", "d3", "7"]
DATA = RetrievalData("toy", DOCUMENTS, ["..."] * 4, ["q1", "q2"], ["?", "?"], {"q1": {"d1": 1}, "q2": {"7": 1}})
# By score: the rank column of a TREC run says nothing.
TREC = "q1 Q0 d2 1 0.5 bm25\nq2 Q0 7 1 3 bm25\nq1\tQ0\td1\t2\t0.75\tbm25\nq1 Q0 d3 3 0.5 bm25\n"
LINES = "q1\td2\t0.5\nq2\t7\t3\nq1\td1\t0.75\nq1\td3\t0.5\n"
ROWS = [{"query_id": "q1", "candidates": ["d1", "d2", "d3"]}, {"_id": "q2", "candidates": [7]}]
EXPECTED = {"q1": ["d1", "d2", "d3"], "q2": ["7"]}


def written(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def as_rows(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


# --- Files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.trec", TREC),
        ("run.txt", TREC),
        ("top.tsv", LINES),
        ("top.tsv", "query-id\tcorpus-id\tscore\n" + LINES),
        ("top.jsonl", as_rows(ROWS)),
        ("top.json", json.dumps(ROWS)),
    ],
)
def test_every_form_of_file_gives_the_candidates_best_first(tmp_path, caplog, name, text):
    assert load_candidates(written(tmp_path, name, text), DATA) == EXPECTED
    assert not caplog.records


def test_without_scores_the_order_is_that_of_the_file(tmp_path):
    text = "q1\td3\nq2\td1\nq1\td1\n"
    expected = {"q1": ["d3", "d1"], "q2": ["d1"]}
    assert load_candidates(written(tmp_path, "top.tsv", text), DATA) == expected
    assert load_candidates(written(tmp_path, "top.tsv", "query\tdocument\n" + text), DATA) == expected


def test_compressed_files_are_read(tmp_path):
    for name, text in (("top.tsv.gz", LINES), ("top.jsonl.gz", as_rows(ROWS))):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
        assert load_candidates(tmp_path / name, DATA) == EXPECTED


def test_top_k_keeps_the_best(tmp_path):
    found = load_candidates(written(tmp_path, "top.tsv", LINES), DATA, top_k=1)
    assert found == {"q1": ["d1"], "q2": ["7"]}
    with pytest.raises(InputError, match="top_k is 0"):
        load_candidates(tmp_path / "top.tsv", DATA, top_k=0)


def test_the_best_known_ones_are_kept_where_unknown_ones_stand_above(tmp_path):
    path = written(tmp_path, "top.tsv", "q1\tnone\t9\nq1\td1\t1\nq1\td2\t2\n")
    assert load_candidates(path, DATA, top_k=1)["q1"] == ["d2"]


def test_what_is_not_in_the_data_is_left_out_and_counted_in_one_warning(tmp_path, caplog):
    path = written(tmp_path, "top.tsv", "q1\td1\nq1\td9\nq1\td8\nq3\td1\nq4\td7\nq5\td1\n")
    assert load_candidates(path, DATA) == {"q1": ["d1"]}
    [record] = caplog.records
    assert "3 of 4 queries are not in toy" in record.message
    assert "2 of 3 candidates are not in the corpus" in record.message
    assert "1 of 2 queries have no candidates" in record.message


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("top.tsv", "q1\td1\nq1 d2\n", "top.tsv, line 2: needs a query id"),
        ("top.tsv", "q1\td1\nq1\td2\t1.0\n", "line 2: has 3 columns and the lines before 2"),
        ("top.tsv", "q1\td1\t1\nq1\td2\tnan\n", 'line 2: the score "nan"'),
        ("top.tsv", "q1\td1\t1\n\nq1\td1\t2\n", 'line 3: the document "d1" came before for the query "q1"'),
        ("run.trec", "q1 Q0 d1 1 high bm25\n", 'line 1: the score "high"'),
        ("run.trec", "q1 Q0 d1 1 1.0\n", "line 1: needs a query id"),
        ("top.jsonl", '{"query_id": "q1", "candidates": "d1"}\n', "line 1: needs rows"),
        ("top.jsonl", '{"candidates": ["d1"]}\n', "line 1: needs rows"),
        (
            "top.jsonl",
            '{"query_id": "q1", "top": ["d1"]}\n',
            "no column 'candidates'; columns present: query_id, top;",
        ),
        ("top.jsonl", '{"query_id": "q1", "candidates": ["d1", null]}\n', "line 1: None is no id"),
        ("top.jsonl", '{"query_id": true, "candidates": ["d1"]}\n', "line 1: True is no id"),
        ("top.jsonl", '{"query_id": "q1", "candidates": ["d1", "d1"]}\n', '"d1" came before'),
        ("top.jsonl", as_rows([ROWS[0], {"query_id": "q1", "candidates": []}]), "line 2: the query"),
        ("top.tsv", "", "no query with candidates is among"),
        ("top.tsv", "x\td1\ny\td1\n", "no query with candidates is among"),
        ("top.tsv", "q1\tx\nq2\ty\n", "no candidate is in the corpus"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_place(tmp_path, name, text, said):
    with pytest.raises(InputError, match=said):
        load_candidates(written(tmp_path, name, text), DATA)


def test_a_file_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"none\.tsv: there is no such file"):
        load_candidates(tmp_path / "none.tsv", DATA)


# --- Runs ------------------------------------------------------------------------------------------------------------


def test_the_candidates_of_a_run_are_its_best_with_ties_in_its_order():
    run = {"q1": {"d3": 1.0, "d1": 2.0, "d2": 1.0}, "q2": {}}
    assert candidates_of_run(run, top_k=2) == {"q1": ["d1", "d3"], "q2": []}
    assert candidates_of_run(run, top_k=None)["q1"] == ["d1", "d3", "d2"]
    with pytest.raises(InputError, match="top_k is 0"):
        candidates_of_run(run, top_k=0)


def test_each_candidate_is_encoded_once():
    assert candidate_documents({"q1": ["d2", "d1"], "q2": ["d1", "d3"], "q3": []}) == ["d2", "d1", "d3"]


# --- Scores ----------------------------------------------------------------------------------------------------------


def test_candidates_get_the_dot_products_of_their_vectors_and_others_nothing():
    queries = np.array([[1.0, 0.0], [0.6, 0.8]], dtype=np.float32)
    documents = np.array([[0.0, 1.0], [1.0, 0.0], [0.8, 0.6]], dtype=np.float32)
    run = rerank({"q2": ["d1", "d3"], "q1": ["d1", "d2"]}, queries, documents, ["q1", "q2"], ["d1", "d2", "d3"])
    assert run == {"q1": {"d2": 1.0, "d1": 0.0}, "q2": pytest.approx({"d3": 0.96, "d1": 0.8})}
    assert [list(scores) for scores in run.values()] == [["d2", "d1"], ["d3", "d1"]]
    assert list(run) == ["q1", "q2"]


def test_with_all_documents_as_candidates_it_is_the_search_through_them():
    generator = np.random.default_rng(0)
    queries, documents = (generator.normal(size=(n, 5)).astype(np.float32) for n in (7, 30))
    query_ids, document_ids = [f"q{i}" for i in range(7)], [f"d{i}" for i in range(30)]
    whole = dense_run(queries, documents, query_ids, document_ids)
    candidates = {query: generator.permutation(document_ids).tolist() for query in query_ids}
    run = rerank(candidates, queries, documents, query_ids, document_ids)
    for query in query_ids:
        assert list(run[query]) == list(whole[query])
        assert run[query] == pytest.approx(whole[query], abs=1e-6)


def test_equal_scores_stay_in_the_order_of_the_candidates():
    run = rerank({"q": ["d3", "d1", "d2"]}, np.ones((1, 2)), np.ones((3, 2)), ["q"], ["d1", "d2", "d3"])
    assert list(run["q"]) == ["d3", "d1", "d2"]


def test_a_query_without_candidates_finds_nothing():
    run = rerank({"q1": []}, np.ones((2, 2)), np.ones((1, 2)), ["q1", "q2"], ["d1"])
    assert run == {"q1": {}, "q2": {}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"candidates": {"q": ["d9"]}}, "candidate 'd9' of the query 'q' has no vector"),
        ({"candidates": {"q": [1]}}, "candidate 1 of the query 'q' has no vector"),
        ({"candidates": {"x": ["d1"]}}, "query 'x' has candidates but no vector"),
        ({"candidates": {"q": ["d1", "d1"]}}, "has a candidate twice"),
        ({"document_ids": ["d1", "d1"]}, "document ids name 1 of 2"),
        ({"document_ids": ["d1"]}, r"vectors of 1 documents have the shape \(2, 2\)"),
        ({"query_vectors": np.ones((1, 3))}, "sizes 3 and 2"),
        ({"query_vectors": np.full((1, 2), np.nan)}, "not finite"),
    ],
)
def test_what_does_not_fit_together_is_an_error(changed, said):
    given = {
        "candidates": {"q": ["d1"]},
        "query_vectors": np.ones((1, 2)),
        "document_vectors": np.ones((2, 2)),
        "query_ids": ["q"],
        "document_ids": ["d1", "d2"],
    }
    with pytest.raises(InputError, match=said):
        rerank(**{**given, **changed})
