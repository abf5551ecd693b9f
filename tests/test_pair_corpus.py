"""Pairs to train on: read where the text has them, mined where it does not, and held out by document."""

import csv
import gzip
import json
import logging
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from documents_for_tests import chinese_documents, write_rows

from retrieval_pretraining import mined_pairs
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.pair_corpus import hold_out_documents, load_mined_documents, load_pairs

PAIRS = [
    {"text": f"A sentence, number {i}", "text_pair": f'其 "{i}"\nover lines', "document_id": f"d{i // 3}"}
    for i in range(10)
]


def read(tmp_path, source, settings=None, **options) -> list[dict]:
    """The rows that are loaded; what was said is in `read.said`."""
    source = source if isinstance(source, dict) else {"train_file": [str(source)]}
    read.said = []
    source = {"cache_dir": str(tmp_path / "cache"), **source}
    return load_pairs(source, settings or MiningSettings(), say=read.said.append, **options).to_list()


def write(folder, name: str, rows: list[dict]):
    path, columns = folder / name, list(rows[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith("parquet"):
        pq.write_table(pa.table({column: [row[column] for row in rows] for column in columns}), path)
    elif name.endswith("csv"):
        with open(path, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([columns, *([row[column] for column in columns] for row in rows)])
    else:
        opener = gzip.open if name.endswith("gz") else open
        with opener(path, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return path


# --- Files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["p.jsonl", "p.parquet", "p.csv", "p.jsonl.gz"])
def test_pairs_of_every_format_come_as_they_are(name, tmp_path):
    rows = [{"other": str(i), **row} for i, row in enumerate(PAIRS)]
    assert read(tmp_path, write(tmp_path, name, rows)) == PAIRS
    assert read.said == ["pairs: 10 of 1 file"]


@pytest.mark.parametrize("name", ["p.jsonl", "p.parquet", "p.csv"])
def test_without_a_document_the_id_is_unknown(name, tmp_path):
    rows = [{"text_pair": row["text_pair"], "text": row["text"]} for row in PAIRS]
    assert read(tmp_path, write(tmp_path, name, rows)) == [{**row, "document_id": None} for row in PAIRS]


def test_columns_files_and_limits(tmp_path):
    rows = [
        {"text": "no", "body": row["text"], "text_pair": row["text_pair"], "doc": i} for i, row in enumerate(PAIRS)
    ]
    write(tmp_path / "many", "a.jsonl", rows[:4])
    write(tmp_path / "many", "b.parquet", rows[4:])
    source = {"train_file": str(tmp_path / "many"), "text_column_name": "body", "id_column_name": "doc"}
    expected = [{**row, "document_id": str(i)} for i, row in enumerate(PAIRS)]
    assert read(tmp_path, source) == expected
    assert read.said == ["pairs: 10 of 2 files"]
    assert read(tmp_path, {**source, "max_samples": 6}) == expected[:6]
    for most in (0, -1):
        with pytest.raises(InputError, match=f"--max_train_samples or --max_eval_samples is {most}"):
            read(tmp_path, {**source, "max_samples": most})


def test_a_changed_file_is_read_again(tmp_path):
    path = write(tmp_path, "p.jsonl", PAIRS)
    assert len(read(tmp_path, path)) == 10
    write(tmp_path, "p.jsonl", PAIRS[:5])
    os.utime(path, ns=(1, 1))
    assert read(tmp_path, path) == PAIRS[:5]


def test_pairs_with_an_empty_text_are_dropped_and_counted(tmp_path, caplog):
    empty = [{**PAIRS[0], "text": " \u3000\n"}, {**PAIRS[0], "text_pair": ""}]
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path, write(tmp_path, "p.jsonl", [*PAIRS[:2], *empty, *PAIRS[2:]])) == PAIRS
    assert "dropped 2 pairs in which a text is empty" in caplog.text
    with pytest.raises(InputError, match=r"e\.jsonl: 0 usable pairs"):
        read(tmp_path, write(tmp_path, "e.jsonl", empty))


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize(("column", "value"), [("text_pair", None), ("text_pair", 7), ("text", ["a"])])
def test_a_row_without_two_texts_is_named_or_skipped(column, value, place, tmp_path, caplog):
    rows = [*PAIRS[:place], {**PAIRS[place], column: value}, *PAIRS[place:]]
    path = write(tmp_path, "p.jsonl", rows)
    with pytest.raises(InputError, match=rf"p\.jsonl, line {place + 1}: column '{column}' holds no text; every row"):
        read(tmp_path, path)
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path, {"train_file": str(path), "on_bad_line": "skip"}) == PAIRS
    assert "1 bad rows" in caplog.text


def test_a_key_that_a_row_lacks_is_no_text(tmp_path):
    path = write_rows(tmp_path / "p.jsonl", [{"text": "alone"}, *PAIRS])
    with pytest.raises(InputError, match="line 1: column 'text_pair' holds no text"):
        read(tmp_path, path)
    with pytest.raises(InputError, match=r"column 'body' holds no text; .*--text_column_name"):
        read(tmp_path, {"train_file": str(write(tmp_path, "q.jsonl", PAIRS)), "text_column_name": "body"})


# --- Datasets --------------------------------------------------------------------------------------------------------


def test_a_dataset_with_pairs(tmp_path):
    rows = [{"body": row["text"], "text": "no", "text_pair": row["text_pair"], "doc": 3} for row in PAIRS]
    write(tmp_path / "hub", "train.parquet", rows)
    hub = {"dataset_name": str(tmp_path / "hub"), "text_column_name": "body"}
    without = [{name: row[name] for name in ("text", "text_pair")} for row in PAIRS]
    assert read(tmp_path, hub) == without
    assert read(tmp_path, {**hub, "id_column_name": "doc"}) == [{**row, "document_id": 3} for row in without]
    assert read(tmp_path, {**hub, "max_samples": 4}) == without[:4]
    with pytest.raises(InputError, match=r"no column 'title'; columns present: body, text"):
        read(tmp_path, {**hub, "text_column_name": "title"})


@pytest.mark.parametrize("change", [{"text": None}, {"text_pair": None}, {"text_pair": 7}])
def test_a_dataset_without_text_in_a_row_is_refused(change, tmp_path):
    rows = [{**row, **change} for row in PAIRS] if 7 in change.values() else [{**PAIRS[0], **change}, *PAIRS]
    write(tmp_path / "hub", "train.parquet", rows)
    with pytest.raises(InputError, match=f"column '{next(iter(change))}' holds no text in some rows"):
        read(tmp_path, {"dataset_name": str(tmp_path / "hub")})


# --- Documents -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "dataset"])
def test_documents_are_mined_once_for_the_same_text_settings_and_seed(kind, tmp_path, monkeypatch):
    path = write_rows(tmp_path / "hub/train.jsonl", chinese_documents(6))
    source = {"train_file": [str(path)]} if kind == "file" else {"dataset_name": str(path.parent)}
    rows = read(tmp_path, source, seed=1)
    assert {"text", "text_pair", "document_id"} <= set(rows[0]) and len(rows) > 5
    assert {row["document_id"] for row in rows} <= {f"d{i}" for i in range(6)}
    assert all(row["shared_span"] in row["text"] for row in rows)
    assert " mined (" in read.said[0]
    with monkeypatch.context() as patch:
        patch.setattr(mined_pairs, "mine_documents", lambda *given, **named: pytest.fail("mined again"))
        assert read(tmp_path, source, seed=1) == rows
    assert "found in the cache, nothing was mined" in read.said[0]
    for more in ({"seed": 2}, {"settings": MiningSettings(strategy="random")}):
        read(tmp_path, source, **{"seed": 1, **more})
        assert " mined (" in read.said[0]


@pytest.mark.parametrize("settings", [MiningSettings(), MiningSettings(strategy="title")])
def test_text_without_a_pair_is_an_error(settings, tmp_path):
    path = write_rows(tmp_path / "t.jsonl", [{"text": "Alpha beta. Gamma delta."}, {"text": "Epsilon."}])
    expected = "share a span" if settings.strategy == "lcs" else "--strategy title found none in 2 documents"
    for _ in range(2):  # of the cache too
        with pytest.raises(InputError, match=f"No pair was mined: .*{expected}.*--document_separator"):
            read(tmp_path, path, settings)


def test_pairs_and_documents_are_not_mixed(tmp_path):
    pairs = write(tmp_path, "a.jsonl", PAIRS)
    documents = write_rows(tmp_path / "b.jsonl", chinese_documents(3))
    with pytest.raises(InputError, match=r"a\.jsonl holds pairs and .*b\.jsonl holds documents"):
        read(tmp_path, {"train_file": [str(pairs), str(documents)]})
    with pytest.raises(InputError, match=r"a\.jsonl holds pairs and .*b\.jsonl holds documents"):
        read(tmp_path, {"train_file": [str(documents), str(pairs)]})


@pytest.mark.parametrize("asked", [{"settings": MiningSettings(strategy="title")}, {"strategies": ["lcs"]}])
def test_given_pairs_with_mining_settings_are_a_warning(asked, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert read(tmp_path, write(tmp_path, "a.jsonl", PAIRS), **asked) == PAIRS
    assert "nothing is mined" in caplog.text


def test_a_text_file_has_no_pairs_of_its_own(tmp_path):
    documents = ["。".join(row["text"].split("。")) for row in chinese_documents(4)]
    (tmp_path / "t.txt").write_text("\n".join(documents), encoding="utf-8")
    assert {row["document_id"].split(":")[0] for row in read(tmp_path, tmp_path / "t.txt")} == {"t.txt"}
    assert " mined (" in read.said[0]


# --- Held out --------------------------------------------------------------------------------------------------------


def dataset(names) -> Dataset:
    rows = [{"text": str(i), "text_pair": "x", "document_id": name} for i, name in enumerate(names)]
    return Dataset.from_list(rows)


def test_all_pairs_of_a_document_are_on_one_side():
    pairs = dataset([f"d{i % 20}" for i in range(100)])
    train, held = hold_out_documents(pairs, 20.0, seed=1)
    assert len(train) == 80 and len(held) == 20
    assert not set(train["document_id"]) & set(held["document_id"]) and len(set(held["document_id"])) == 4
    assert train["text"] == sorted(train["text"], key=int)  # their order stays
    again, other = (hold_out_documents(pairs, 20.0, seed=seed)[1]["text"] for seed in (1, 2))
    assert list(again) == list(held["text"]) != list(other)


def test_a_pair_of_no_known_document_is_one_of_its_own():
    _, held = hold_out_documents(dataset(["d", "d", None, None, None, None]), 40.0, seed=0)
    known = [name for name in held["document_id"] if name is not None]
    assert len(known) in (0, 2) and len(held) - len(known) == (1 if known else 2)
    without = dataset(["d"] * 10).remove_columns("document_id")
    train, held = hold_out_documents(without, 30.0, seed=0)
    assert len(train) == 7 and len(held) == 3


def test_neither_side_is_empty():
    for percentage in (0.001, 99.999):
        sizes = [len(side) for side in hold_out_documents(dataset(["a", "b", "c"]), percentage, seed=0)]
        assert sorted(sizes) == [1, 2] and sizes[1] == (1 if percentage < 1 else 2)
    with pytest.raises(InputError, match="at least 2 documents; these are of 1"):
        hold_out_documents(dataset(["a", "a"]), 50.0, seed=0)


def test_several_strategies_give_the_pairs_of_each_in_turn(tmp_path):
    documents = write_rows(tmp_path / "docs.jsonl", chinese_documents(30))
    settings = MiningSettings(title_needs_span=False)
    each = [
        read(tmp_path, documents, MiningSettings(strategy=name, title_needs_span=False)) for name in ("lcs", "random")
    ]
    assert read(tmp_path, documents, settings, strategies=["lcs", "random"]) == each[0] + each[1]


def test_a_strategy_that_compares_no_spans_takes_no_notice_of_frequent_ones(tmp_path):
    documents = write_rows(tmp_path / "docs.jsonl", chinese_documents(30))
    rare = MiningSettings(max_document_frequency=0.5)
    found = read(tmp_path, documents, rare, strategies=["random"])
    assert found == read(tmp_path, documents, MiningSettings(strategy="random"))


def test_the_documents_behind_mined_pairs_are_whole_and_those_behind_given_pairs_unknown(tmp_path):
    rows = [{"title": "A title", "text": "One. Two."}, {"text": "Three."}]
    source = {"train_file": [str(write_rows(tmp_path / "docs.jsonl", rows))], "cache_dir": str(tmp_path / "cache")}
    documents, counts = load_mined_documents(source)
    assert counts.documents == 2
    assert documents["text"][:] == ["A title One. Two.", "Three."]
    given = {"train_file": [str(write(tmp_path, "p.jsonl", PAIRS))]}
    assert load_mined_documents(given) is None
