"""From a corpus to a file of pairs: whatever the processes, the interruptions and the cutting into parts."""

import json
import os
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from documents_for_tests import chinese_documents, write_rows

from retrieval_pretraining import mined_pairs, pair_files
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.mined_pairs import load_mined_pairs, mine_to_folder, remove_mined_pairs
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.pair_files import join_parts, pair_key, read_pairs, write_part
from retrieval_pretraining.pair_mining import Pair, Pairs

COLUMNS = ["text", "text_pair", "shared_span", "document_id", "strategy"]
ROWS = chinese_documents(60)


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture
def corpus(tmp_path) -> Path:
    return write_rows(tmp_path / "docs.jsonl", ROWS)


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of two or three documents."""
    monkeypatch.setattr(mined_pairs, "PART_CHARACTERS", 300)


@pytest.fixture
def mined_parts(monkeypatch) -> list[list[str]]:
    """The ids of the documents of each part that is mined."""
    parts, mine = [], mined_pairs.mine_documents

    def noting(documents, *args, **options):
        parts.append([document.document_id for document in documents])
        return mine(documents, *args, **options)

    monkeypatch.setattr(mined_pairs, "mine_documents", noting)
    return parts


def mine(corpus, output, *, settings=None, **options):
    settings = settings or MiningSettings()
    return mine_to_folder({"train_file": str(corpus)}, output, settings, show_progress=False, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- what comes out ---


@pytest.mark.parametrize("output_format", ["parquet", "jsonl"])
def test_the_file_is_the_same_for_any_number_of_processes(tmp_path, corpus, small_parts, output_format):
    settings = MiningSettings(max_document_frequency=0.5)
    one, two = (
        mine(corpus, tmp_path / str(number), settings=settings, num_workers=number, output_format=output_format)
        for number in (1, 2)
    )
    assert one.counts["pairs"] > 100
    assert one.file.read_bytes() == two.file.read_bytes() and one.counts == two.counts
    assert (one.file.parent / "counts.json").read_bytes() == (two.file.parent / "counts.json").read_bytes()
    assert names(tmp_path / "2") == ["_mining.json", "counts.json", f"pairs.{output_format}"]


def test_the_pairs_are_the_same_however_the_corpus_is_cut(tmp_path, corpus, monkeypatch, mined_parts):
    settings = MiningSettings(max_document_frequency=0.5)
    whole = mine(corpus, tmp_path / "whole", settings=settings, output_format="jsonl")
    assert len(mined_parts) == 1
    for characters in (1, 700):
        monkeypatch.setattr(mined_pairs, "PART_CHARACTERS", characters)
        cut = mine(corpus, tmp_path / str(characters), settings=settings, output_format="jsonl")
        assert cut.file.read_bytes() == whole.file.read_bytes() and cut.counts == whole.counts
    assert len(mined_parts) > 60


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("share, makes_pairs", [(1.0, True), (0.5, True), (0.45, False)])
def test_a_span_in_more_than_the_given_share_of_the_documents_makes_no_pair(
    tmp_path, small_parts, workers, share, makes_pairs
):
    rows = chinese_documents(20)
    for row in rows[::2]:
        row["text"] = f"版权所有违者必究。{row['text']}{row['id']}号文件版权所有违者必究。"
    settings = MiningSettings(max_document_frequency=share)
    pairs = mine(write_rows(tmp_path / "a.jsonl", rows), tmp_path / "out", settings=settings, num_workers=workers)
    found = [pair.shared_span for pair in read_pairs(pairs.file)]
    assert found.count("版权所有违者必究。") == 10 * makes_pairs
    assert len(found) > 40


@pytest.mark.parametrize("output_format", ["parquet", "jsonl"])
def test_the_file_has_five_columns_of_text_and_is_read_back(tmp_path, output_format):
    text = '“他说 \u2028\u0085 <b>永磁同步电机控制</b> \\n\\" 👨\u200d👩\u200d👧 \x00。”\n关于永磁同步电机控制\t𠀀。'
    corpus = write_rows(tmp_path / "docs.jsonl", [{"_id": "a\n1", "text": text}])
    pairs = mine(corpus, tmp_path / "out", output_format=output_format)
    (pair,) = read_pairs(pairs.file)
    assert pair.shared_span == "永磁同步电机控制" and pair.document_id == "a\n1" and pair.strategy == "lcs"
    if output_format == "jsonl":
        (line,) = pairs.file.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
        assert list(json.loads(line)) == COLUMNS and json.loads(line) == pair._asdict()
        assert "永磁" in line
    else:
        table = pq.read_table(pairs.file)
        assert table.schema == pa.schema([(name, pa.string()) for name in COLUMNS])
        assert table.to_pylist() == [pair._asdict()]
    assert list(pairs.dataset()) == [pair._asdict()]


@pytest.mark.parametrize("output_format", ["parquet", "jsonl"])
def test_a_corpus_without_a_pair_gives_an_empty_file(tmp_path, output_format):
    pairs = mine(
        write_rows(tmp_path / "a.jsonl", [{"text": "Only one."}]), tmp_path / "out", output_format=output_format
    )
    assert list(read_pairs(pairs.file)) == [] and pairs.counts["pairs"] == 0
    assert pairs.counts["documents"] == pairs.counts["left_over"] == 1


def test_a_folder_in_beir_layout_stands_for_its_documents(tmp_path):
    write_rows(tmp_path / "set/corpus.jsonl", [{"_id": row["id"], "title": "", "text": row["text"]} for row in ROWS])
    write_rows(tmp_path / "set/queries.jsonl", [{"_id": "q", "text": ROWS[0]["text"]}])
    pairs = mine(tmp_path / "set", tmp_path / "out")
    assert pairs.counts["documents"] == len(ROWS) and pairs.counts["files"] == 1
    assert list(read_pairs(pairs.file)) == list(
        read_pairs(mine(write_rows(tmp_path / "a.jsonl", ROWS), tmp_path / "b").file)
    )


def test_a_dataset_of_the_hub_gives_the_pairs_of_its_files(tmp_path, corpus):
    (tmp_path / "hub").mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "hub/train.parquet")
    source = {"dataset_name": str(tmp_path / "hub")}
    pairs = mine_to_folder(source, tmp_path / "out", MiningSettings(), show_progress=False)
    assert list(read_pairs(pairs.file)) == list(read_pairs(mine(corpus, tmp_path / "b").file))
    assert mine_to_folder(source, tmp_path / "out", MiningSettings(), show_progress=False).was_there


# --- the same two texts once ---


def test_the_same_two_texts_are_a_pair_once_whatever_order_and_case(tmp_path):
    one, other = "Tom is chasing Jerry", "Jerry is chasing Tom"
    bodies = [f"{one}\n{other}", f"{other}\n{one}", f"{one.upper()}\n{other.upper()}", f"{one}\n{other}!"]
    corpus = write_rows(tmp_path / "a.jsonl", [{"id": str(i), "text": text} for i, text in enumerate(bodies)])
    for output_format in ("parquet", "jsonl"):
        pairs = mine(corpus, tmp_path / output_format, output_format=output_format)
        assert [(pair.text, pair.document_id) for pair in read_pairs(pairs.file)] == [(one, "0"), (one, "3")]
        assert (pairs.counts["pairs"], pairs.counts["dropped"]["pairs_repeated"]) == (2, 2)
    everything = mine(corpus, tmp_path / "all", settings=MiningSettings(deduplicate=False))
    assert len(list(read_pairs(everything.file))) == 4
    assert everything.counts["dropped"]["pairs_repeated"] == 0


def test_different_texts_that_look_alike_when_put_together_are_two_pairs():
    assert pair_key("a", "b\nc") != pair_key("a\nb", "c")
    assert pair_key("a", "bc") != pair_key("ab", "c")
    assert pair_key("a", "B") == pair_key("b", "A")


def test_inverse_cloze_keeps_the_first_and_the_last_line_of_three(tmp_path):
    corpus = write_rows(tmp_path / "a.jsonl", [{"text": "Alpha.\nBravo.\nCharlie."}])
    pairs = mine(corpus, tmp_path / "out", settings=MiningSettings(strategy="inverse_cloze"))
    assert [pair.text for pair in read_pairs(pairs.file)] == ["Alpha.", "Bravo.", "Charlie."]


@pytest.mark.parametrize("keys_at_once, rounds", [(3, 17), (10**6, 1)])
def test_the_first_of_each_pair_is_kept_over_all_parts(tmp_path, monkeypatch, keys_at_once, rounds):
    read, part_keys = [], pair_files._part_keys
    monkeypatch.setattr(pair_files, "_part_keys", lambda files: read.append(files) or part_keys(files))
    monkeypatch.setattr(pair_files, "_KEYS_AT_ONCE", keys_at_once)
    monkeypatch.setattr(pair_files, "_ROWS_AT_ONCE", 4)
    files, expected = [], {}
    for number in range(5):
        pairs = Pairs()
        for row in range(10):
            value = (7 * number + row * row) % 17
            pair = Pair(f"a{value}", f"b{value % 5}", "", f"{number}-{row}", "lcs")
            pairs.append(*pair)
            expected.setdefault((pair.text, pair.text_pair), pair)
        files.append(tmp_path / f"part-{number}.parquet")
        write_part(pairs, files[-1])
    assert 10 < len(expected) < 50
    for name in ("pairs.parquet", "pairs.jsonl"):
        read.clear()
        assert join_parts(files, tmp_path / name, deduplicate=True) == len(expected)
        assert len(read) == rounds
        assert list(read_pairs(tmp_path / name)) == list(expected.values())
    assert join_parts(files, tmp_path / "all.parquet", deduplicate=False) == 50


# --- done before ---


def forbid_mining(monkeypatch):
    monkeypatch.setattr(mined_pairs, "mine_documents", None)
    monkeypatch.setattr(mined_pairs, "iterate_documents", None)


def test_the_same_again_mines_nothing(tmp_path, corpus, monkeypatch):
    first = mine(corpus, tmp_path / "out")
    content = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    forbid_mining(monkeypatch)
    os.utime(corpus, (1, 1))
    again = mine(corpus, tmp_path / "out", num_workers=2)
    assert again.was_there and not first.was_there and again.counts == first.counts
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == content


def test_pairs_of_somebody_else_are_not_touched(tmp_path, corpus):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/pairs.jsonl").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="holds pairs that were not mined here: give another --output_dir"):
            mine(corpus, tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / "out/pairs.jsonl").read_text() == "mine" and names(tmp_path / "out") == ["pairs.jsonl"]


def test_a_folder_of_parts_of_somebody_else_is_not_touched(tmp_path, corpus):
    (tmp_path / "out/parts").mkdir(parents=True)
    (tmp_path / "out/parts/data.txt").write_text("mine")
    with pytest.raises(InputError, match="give another --output_dir"):
        mine(corpus, tmp_path / "out")
    assert (tmp_path / "out/parts/data.txt").read_text() == "mine"


def test_overwriting_removes_what_was_mined_and_nothing_else(tmp_path, corpus):
    mine(corpus, tmp_path / "out")
    for name in ("notes.txt", "pairs.csv"):
        (tmp_path / "out" / name).write_text("mine")
    pairs = mine(corpus, tmp_path / "out", seed=1, output_format="jsonl", overwrite=True)
    assert not pairs.was_there
    assert names(tmp_path / "out") == ["_mining.json", "counts.json", "notes.txt", "pairs.csv", "pairs.jsonl"]
    remove_mined_pairs(tmp_path / "out")
    assert names(tmp_path / "out") == ["notes.txt", "pairs.csv"]


def test_overwriting_waits_until_the_text_can_be_opened(tmp_path, corpus):
    mine(corpus, tmp_path / "out")
    before = names(tmp_path / "out")
    for source, options in ((tmp_path / "no.jsonl", {}), (corpus, {"num_workers": 0})):
        with pytest.raises(InputError):
            mine(source, tmp_path / "out", overwrite=True, **options)
    assert names(tmp_path / "out") == before


def test_a_folder_that_cannot_be_written_to_is_an_input_error(tmp_path, corpus):
    with pytest.raises(InputError, match=r"--output_dir .*docs.jsonl cannot be written to"):
        mine(corpus, corpus)


# --- for other doors ---


def test_other_doors_get_pairs_from_a_cache_that_goes_by_content(tmp_path, corpus, monkeypatch):
    said = []
    options = {"settings": MiningSettings(), "cache_dir": tmp_path / "cache", "say": said.append}
    first = load_mined_pairs({"train_file": str(corpus)}, **options)
    assert list(first.dataset()) == [pair._asdict() for pair in read_pairs(first.file)]
    assert said == [f"pairs: {first.counts['pairs']:,} mined ({first.file.parent})"]
    with monkeypatch.context() as patch:
        forbid_mining(patch)
        os.utime(corpus, (1, 1))
        again = load_mined_pairs({"train_file": str(corpus)}, **options)
    assert again.was_there and again.file == first.file and first.file.is_relative_to(tmp_path / "cache")
    assert said[1:] == [
        f"pairs: {first.counts['pairs']:,} found in the cache, nothing was mined ({first.file.parent})"
    ]
    folders = {first.file.parent}
    for change in ({"seed": 1}, {"settings": MiningSettings(min_span_weight=40)}):
        folders.add(load_mined_pairs({"train_file": str(corpus)}, **{**options, **change}).file.parent)
    write_rows(corpus, ROWS[:-1])
    folders.add(load_mined_pairs({"train_file": str(corpus)}, **options).file.parent)
    assert len(folders) == 4
