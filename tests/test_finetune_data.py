"""Pairs and triplets in every format, and one clear sentence with the place where a row is none."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.finetune_data import Layout, load_documents_to_mine, load_training_data

ROWS = [("what is a cat?", "an animal", ["a car", "a boat"]), ("什么是猫？", "一种动物", ["一条船"])]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def write(name: str, rows) -> str:
    """Rows as dicts, in the format that the name says."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        from datasets import Dataset

        Dataset.from_list(rows).to_parquet(path)
    else:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return name


def read(*files: str, layout=None, **source):
    """(query, positive, negatives) of all pairs."""
    data = load_training_data({"train_file": list(files), **source}, layout=layout, say=lambda line: None)
    return [(row["query"], row["positive"], row["negatives"]) for row in data.pairs]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
@pytest.mark.parametrize(
    "columns",
    [
        ("text", "text_pair", "negatives"),
        ("anchor", "positive", "negatives"),
        ("query", "pos", "neg"),
        ("query", "positive", "negative"),
        ("question", "answer", "negative"),
    ],
)
def test_every_layout_in_every_format(name, columns):
    assert read(write(name, [dict(zip(columns, row, strict=True)) for row in ROWS])) == ROWS


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_tables_have_a_text_a_cell(name):
    rows = [{"anchor": "q, with a comma", "positive": "p", "negative_1": "n", "negative_2": ""}]
    assert read(write(name, rows)) == [("q, with a comma", "p", ["n"])]


def test_numbered_negatives_follow_each_other():
    row = {"anchor": "q", "positive": "p", "negative_1": "n1", "negative_3": "n3", "negative_2": "n2"}
    assert read(write("a.jsonl", [row])) == [("q", "p", ["n1", "n2", "n3"])]


def test_a_list_of_positives_is_as_many_pairs():
    row = {"query": "q", "pos": ["p1", "p2", "p1"], "neg": ["n", "n", " "], "pos_scores": [0.9, 0.8, 0.9]}
    assert read(write("a.jsonl", [row])) == [("q", "p1", ["n"]), ("q", "p2", ["n"])]


def test_columns_that_the_user_names():
    file = write("a.jsonl", [{"q": "q", "d": "d", "text": "x", "text_pair": "y", "bad": ["b"]}])
    assert read(file, layout=Layout("q", "d", ("bad",))) == [("q", "d", ["b"])]


def test_folders_globs_and_several_files_each_in_its_own_layout():
    write("all/a.jsonl", [{"query": "q1", "pos": ["p1"]}])
    write("all/b.csv", [{"text": "q2", "text_pair": "p2"}])
    expected = [("q1", "p1", []), ("q2", "p2", [])]
    assert read("all") == read("all/*") == read("all/a.jsonl", "all/b.csv") == expected


def test_what_mine_pairs_wrote_is_taken_as_it_is():
    import mine_pairs

    documents = [{"text": "The motor runs without a sensor. A motor without a sensor is cheap. It is small."}] * 2
    write("docs.jsonl", documents)
    assert mine_pairs.main(["--train_file", "docs.jsonl", "--output_dir", "pairs"]) == 0
    pairs = read("pairs")
    assert pairs and all("without a sensor" in query and "without a sensor" in text for query, text, _ in pairs)


def beir(name: str, split: str = "train") -> str:
    write(f"{name}/corpus.jsonl", [{"_id": f"d{i}", "title": f"T{i}", "text": f"text {i}"} for i in range(4)])
    write(f"{name}/queries.jsonl", [{"_id": f"q{i}", "text": f"query {i}"} for i in range(3)])
    grades = ["q0\td0\t2", "q0\td1\t1", "q0\td2\t0", "q1\td3\t1"]
    (Path(name) / "qrels").mkdir()
    (Path(name) / f"qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(grades) + "\n")
    return name


def test_a_folder_in_beir_layout_gives_its_judged_queries_and_its_documents():
    source = {"train_file": [beir("mine"), write("a.jsonl", [{"text": "q", "text_pair": "p"}])]}
    data = load_training_data(source, say=lambda line: None)
    assert [(row["query"], row["positive"], row["negatives"]) for row in data.pairs] == [
        ("query 0", "T0 text 0", ["T2 text 2"]),
        ("query 0", "T1 text 1", ["T2 text 2"]),
        ("query 1", "T3 text 3", []),
        ("q", "p", []),
    ]
    assert data.documents == [f"T{i} text {i}" for i in range(4)] and data.has_negatives


def test_of_a_text_that_is_judged_twice_the_higher_grade_counts():
    folder = Path(beir("mine"))
    write(f"{folder}/corpus.jsonl", [{"_id": f"d{i}", "text": "equal" if i < 3 else "other"} for i in range(4)])
    assert read("mine") == [("query 0", "equal", []), ("query 1", "other", [])]


def test_the_split_of_such_a_folder_is_never_taken_for_another():
    with pytest.raises(
        InputError, match=r"train\.tsv: there is no such file; choose one of the splits in that folder: t"
    ):
        read(beir("mine", split="test"))
    assert len(read("mine", split="test")) == 3


def test_a_dataset_of_the_hub(monkeypatch):
    from datasets import Dataset

    dataset = Dataset.from_list([{"query": "q", "pos": ["p"], "neg": ["n"]}, {"query": "r", "pos": [], "neg": []}])
    monkeypatch.setattr("retrieval_pretraining.finetune_data.open_hub_dataset", lambda *args, **options: dataset)
    with pytest.raises(InputError, match="dataset me/mine, row 1: column 'pos' holds an empty list where text is"):
        load_training_data({"dataset_name": "me/mine"}, say=lambda line: None)
    data = load_training_data({"dataset_name": "me/mine", "max_samples": 1}, say=lambda line: None)
    assert data.pairs[0] == {"query": "q", "positive": "p", "negatives": ["n"]}
    with pytest.raises(
        InputError, match="dataset me/mine: no columns of pairs; columns present: query, pos, neg; name"
    ):
        load_training_data({"dataset_name": "me/mine"}, layout=Layout("a", "b"), say=lambda line: None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": 3, "pos": ["p"]}, "a.jsonl, line 2: column 'query' holds a number where text is needed"),
        ({"query": "q", "pos": None}, "a.jsonl, line 2: column 'pos' holds null where text is needed"),
        ({"query": "q"}, "a.jsonl, line 2: column 'pos' holds null where text is needed"),
        ({"query": "q", "pos": []}, "a.jsonl, line 2: column 'pos' holds an empty list where text is needed"),
        ({"query": "q", "pos": ["p", {}]}, "a.jsonl, line 2: column 'pos' holds an object where text is needed"),
        ({"query": "q", "pos": "p", "neg": [None]}, "a.jsonl, line 2: column 'neg' holds null where text is needed"),
    ],
)
def test_a_bad_row_is_one_sentence_with_its_place_or_is_skipped(row, message):
    file = write("a.jsonl", [{"query": "q", "pos": ["p"]}, row])
    with pytest.raises(InputError) as error:
        read(file)
    assert message in str(error.value)
    assert read(file, on_bad_line="skip") == [("q", "p", [])]


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        (
            "a.jsonl",
            [{"title": "t", "text": "x"}],
            "a.jsonl: no column 'text_pair'; columns present: title, text; name",
        ),
        (
            "a.csv",
            [{"a": "t", "b": "x"}],
            "a.csv: no column 'text'; columns present: a, b; name those of the query and",
        ),
        ("a.jsonl", [{"text": "x", "text_pair": " "}], "a.jsonl: 0 usable pairs"),
        ("a.txt", [{"text": "x"}], "a.txt: text has no pairs; give jsonl, csv, tsv or parquet, or mine pairs"),
    ],
)
def test_what_has_no_pairs_is_said(name, rows, message):
    with pytest.raises(InputError) as error:
        read(write(name, rows))
    assert message in str(error.value)


def test_what_teaches_nothing_is_dropped_and_counted_also_from_the_cache():
    file = write("a.jsonl", [{"text": a, "text_pair": b} for a, b in (("q", "p"), ("same", "same "), (" ", "p"))])
    for _ in range(2):
        said = []
        assert len(load_training_data({"train_file": [file]}, say=said.append).pairs) == 1
        assert said == ["pairs: 1 (1 file)", "dropped: 1 pair of a text with itself, 1 pair with an empty text"]


def test_the_first_so_many_pairs():
    file = write("a.jsonl", [{"query": "q", "pos": [f"p{i}" for i in range(5)]}])
    assert [text for _, text, _ in read(file, max_samples=3)] == ["p0", "p1", "p2"]


def test_documents_to_mine_have_their_titles():
    file = write("docs.jsonl", [{"title": "T", "text": "x"}, {"text": "y"}])
    assert load_documents_to_mine([file], {"encoding": "utf-8"}) == ["T x", "y"]
