import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval_pretraining.corpus import (
    CorpusCounts,
    Document,
    iterate_documents,
    load_documents,
    read_documents,
    read_raw_documents,
)
from retrieval_pretraining.errors import InputError


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def write_rows(path, rows):
    return write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def ids(*files, **options):
    return [document.document_id for document in read_raw_documents(files, **options)]


def titles(*files, **options):
    return [document.title for document in read_raw_documents(files, **options)]


ROW = {"_id": "d1", "title": "T", "text": "text 一", "other": [1]}


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet"])
def test_every_format_gives_text_title_and_id(tmp_path, name):
    if name == "a.parquet":
        pq.write_table(pa.table({key: [value] for key, value in ROW.items()}), tmp_path / name)
    elif name.endswith("sv"):
        comma = "," if name == "a.csv" else "\t"
        write(tmp_path / name, f"{comma.join(ROW)}\n{comma.join(map(str, ROW.values()))}\n")
    else:
        write(tmp_path / name, json.dumps([ROW] if name == "a.json" else ROW))
    counts = CorpusCounts()
    assert list(read_raw_documents([tmp_path / name], counts=counts)) == [Document("text 一", "T", "d1")]
    assert counts == CorpusCounts(files=1, documents=1)


@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("a.txt", "\na\n", "a.txt:2"),
        ("a.jsonl", '\n{"text": "a"}\n', "a.jsonl:2"),
        ("a.json", '[{"text": ""}, {"text": "a"}]', "a.json:2"),
        ("a.csv", 'text,n\n"a\nb",1\n', "a.csv:2"),
        ("a.parquet", None, "a.parquet:2"),
    ],
)
def test_without_an_id_a_document_is_called_by_its_place(tmp_path, name, content, expected):
    if content is None:
        pq.write_table(pa.table({"text": [None, "a"]}), tmp_path / name)
    else:
        write(tmp_path / name, content)
    (document,) = read_raw_documents([tmp_path / name])
    assert document.title is None and document.document_id == expected


def test_files_of_one_name_are_told_apart_by_their_folder_and_never_by_an_absolute_path(tmp_path):
    files = [write(tmp_path / name, "a\n") for name in ("x/a.txt", "y/z/a.txt", "y/b.txt")]
    assert ids(*files) == ["x/a.txt:1", "y/z/a.txt:1", "b.txt:1"]
    assert ids(*files[1:]) == ["a.txt:1", "b.txt:1"]
    assert ids(tmp_path / "y/../x/a.txt", files[1]) == ["x/a.txt:1", "y/z/a.txt:1"]


@pytest.mark.parametrize(
    "row, expected",
    [
        ({"_id": "a", "id": "b"}, "a"),
        ({"_id": None, "id": "b"}, "b"),
        ({"id": 0}, "0"),
        ({"_id": 1.5}, "1.5"),
        ({"_id": " ", "id": float("nan")}, "a.jsonl:1"),
        ({"_id": True, "id": ["b"]}, "a.jsonl:1"),
        ({"_id": {"a": 1}}, "a.jsonl:1"),
        ({"doc": "c"}, "a.jsonl:1"),
    ],
)
def test_the_id_is_the_first_usable_one(tmp_path, row, expected):
    assert ids(write_rows(tmp_path / "a.jsonl", [{"text": "x", **row}])) == [expected]


def test_an_id_column_that_is_named_is_used_and_must_exist(tmp_path):
    rows = [{"text": "x", "_id": "no", "doc": "yes"}, {"text": "y", "_id": "no", "doc": None}]
    path = write_rows(tmp_path / "a.jsonl", rows)
    assert ids(path, id_column_name="doc") == ["yes", "a.jsonl:2"]
    with pytest.raises(
        InputError, match="no column 'docid'; columns present: text, _id, doc; name one of them, or none"
    ):
        ids(path, id_column_name="docid")
    with pytest.raises(InputError, match="columns present: text, _id, doc; name one of them with --text_column_name"):
        ids(path, text_column_name="body")


def test_the_usual_title_may_be_anything_but_a_named_one_is_text_and_exists(tmp_path):
    values = ["T", None, " ", 3, ["T"]]
    path = write_rows(tmp_path / "a.jsonl", [{"text": "x", "title": value} for value in values])
    assert titles(path) == ["T", None, None, None, None]
    with pytest.raises(InputError, match="line 4: column 'title' holds a number where text is needed"):
        titles(path, title_column_name="title")
    with pytest.raises(InputError, match="no column 'head'"):
        titles(path, title_column_name="head")
    assert titles(path, title_column_name="title", on_bad_line="skip") == ["T", None, None]


@pytest.mark.parametrize("name", ["title", "_id", "id"])
def test_a_column_has_one_meaning(tmp_path, name):
    row = {"title": "T", "_id": "u", "id": "v", name: "text"}
    (document,) = read_raw_documents([write_rows(tmp_path / "a.jsonl", [row])], text_column_name=name)
    assert document.text == "text" and "text" not in document[1:]


def test_one_column_may_be_text_title_and_id(tmp_path):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    options = {"title_column_name": "text", "id_column_name": "text"}
    assert list(read_raw_documents([tmp_path / "a.parquet"], **options)) == [Document("a", "a", "a")]
    assert list(iterate_documents(dataset_name=str(tmp_path), **options)) == [Document("a", "a", "a")]


def test_raw_documents_keep_text_and_title_apart_and_read_documents_joins_them(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [ROW, {"text": "T begins", "title": "T"}, {"text": "plain"}])
    assert [document.text for document in read_raw_documents([path])] == ["text 一", "T begins", "plain"]
    assert list(read_documents([path])) == ["text 一", "T begins", "plain"]
    assert list(read_documents([path], title_column_name="title")) == ["T text 一", "T begins", "plain"]


@pytest.mark.parametrize("kind", ["text", "malformed line", "title"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt", "a.json"])
def test_code_in_a_corpus_is_data(tmp_path, monkeypatch, capfd, name, kind):
    monkeypatch.chdir(tmp_path)
    code = "__import__('os').system('touch pwn')"
    row = {"text": "x", "title": code} if kind == "title" else {"text": code}
    bad = code if kind == "malformed line" and name != "a.json" else ""
    content = {
        "a.jsonl": f"{json.dumps(row)}\n{bad}\n",
        "a.csv": f'{",".join(row)}\n{",".join(row.values())}\n"{bad}"{bad}\n',
        "a.txt": f"{row['text']}\n",
        "a.json": json.dumps([row, bad] if bad else [row]),
    }
    write(tmp_path / name, content[name])
    counts = CorpusCounts()
    documents = list(read_raw_documents([name], on_bad_line="skip", counts=counts))
    assert [document.text for document in documents] == [row["text"]]
    assert "pwn" not in str(counts)
    load_documents(train_file=name, on_bad_line="skip")
    if bad and name != "a.txt":
        with pytest.raises(InputError) as caught:
            list(read_documents([name]))
        assert "pwn" not in str(caught.value)
    assert not (tmp_path / "pwn").exists()


# --- over files or a dataset ---


def test_iterating_over_a_folder_gives_its_documents_and_counts(tmp_path):
    write(tmp_path / "in/a.txt", "a\n\nb\n")
    write_rows(tmp_path / "in/b.jsonl", [ROW])
    counts = CorpusCounts()
    documents = list(iterate_documents(train_file=tmp_path / "in", counts=counts))
    assert documents == [
        Document("a", None, "a.txt:1"),
        Document("b", None, "a.txt:3"),
        Document("text 一", "T", "d1"),
    ]
    assert counts == CorpusCounts(files=2, documents=3, blank=1)
    assert list(iterate_documents(train_file=tmp_path / "in", max_samples=2)) == documents[:2]


def test_iterating_passes_the_reading_options_on(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("甲\n乙\n\n丙".encode("gb18030") + b"\xff")
    options = {"encoding": "gb18030", "encoding_errors": "ignore", "document_separator": "blank_line"}
    assert [document.text for document in iterate_documents(train_file=path, **options)] == ["甲\n乙", "丙"]
    rows = write(tmp_path / "a.jsonl", '{"body": "a", "name": "N", "key": 1}\nbroken\n')
    named = {"text_column_name": "body", "title_column_name": "name", "id_column_name": "key"}
    assert list(iterate_documents(train_file=rows, on_bad_line="skip", **named)) == [Document("a", "N", "1")]


def test_iterating_over_a_dataset_gives_text_title_and_id(tmp_path):
    # `load_dataset` takes a local folder for a dataset: no network is needed to try the path.
    rows = {"title": ["T", None, "U", "V"], "text": ["a", " ", None, "b"], "id": [7, 8, 9, None]}
    pq.write_table(pa.table(rows), tmp_path / "train.parquet")
    counts = CorpusCounts()
    documents = list(iterate_documents(dataset_name=str(tmp_path), counts=counts))
    assert documents == [Document("a", "T", "7"), Document("b", "V", "row:3")]
    assert counts == CorpusCounts(documents=2, blank=1, null=1)
    assert list(iterate_documents(dataset_name=str(tmp_path), max_samples=1)) == documents[:1]
    for option in ("text_column_name", "title_column_name", "id_column_name"):
        with pytest.raises(InputError, match="no column 'body'; columns present: title, text, id"):
            list(iterate_documents(dataset_name=str(tmp_path), **{option: "body"}))
    with pytest.raises(InputError, match="row 0: column 'id' holds a number where text is needed"):
        list(iterate_documents(dataset_name=str(tmp_path), text_column_name="id"))
    with pytest.raises(InputError, match="split test"):
        iterate_documents(dataset_name=str(tmp_path), split="test")


@pytest.mark.parametrize(
    "options", [{}, {"train_file": "a.txt", "dataset_name": "b"}, {"train_file": "a.txt", "max_samples": 0}]
)
def test_contradicting_sources_are_refused_before_anything_is_read(options):
    with pytest.raises(InputError, match="give"):
        iterate_documents(**options)


def test_a_corpus_without_one_document_is_an_error_at_its_end(tmp_path):
    with pytest.raises(InputError, match=r"a.jsonl: 0 usable passages \(0 blank, 0 null, 1 bad: a.jsonl, line 1"):
        list(iterate_documents(train_file=write(tmp_path / "a.jsonl", "broken\n"), on_bad_line="skip"))
    pq.write_table(pa.table({"text": ["", " "]}), tmp_path / "train.parquet")
    with pytest.raises(InputError, match=r"0 usable passages \(2 blank, 0 null\)"):
        list(iterate_documents(dataset_name=str(tmp_path), split="train"))
