"""Text that lies elsewhere: whatever fsspec opens is read as a local file is. The file system here is in memory."""

import gzip
import json
import os

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval_pretraining.corpus import iterate_documents, load_documents, read_documents
from retrieval_pretraining.corpus_cache import corpus_fingerprint
from retrieval_pretraining.corpus_counts import CorpusCounts
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.mined_pairs import mine_to_folder
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.pair_corpus import load_pairs
from retrieval_pretraining.shared_corpus import SharedCorpus
from retrieval_pretraining.source_files import resolve_files


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/corpus"):
        system.rm("/corpus", recursive=True)


def put(system, name: str, content: str | bytes):
    system.pipe_file(f"/corpus/{name}", content if isinstance(content, bytes) else content.encode())


def names(pattern) -> list[str]:
    return [str(file).removeprefix("memory:///corpus/") for file in resolve_files(pattern)]


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv", "jsonl.gz", "parquet"])
def test_every_format_is_read_from_elsewhere(memory, tmp_path, kind):
    if kind == "parquet":
        pq.write_table(pa.table({"text": ["一", "b"]}), tmp_path / "docs.parquet")
        content = (tmp_path / "docs.parquet").read_bytes()
    else:
        content = {"txt": "一\n\nb\n", "csv": "text\n一\nb\n"}.get(kind, '{"text": "一"}\n{"text": "b"}\n').encode()
    put(memory, f"docs.{kind}", gzip.compress(content) if kind == "jsonl.gz" else content)
    url = f"memory://corpus/docs.{kind}"
    assert list(read_documents([url])) == ["一", "b"]
    dataset, counts = load_documents(train_file=url, cache_dir=tmp_path / "cache")
    assert dataset["text"][:] == ["一", "b"] and counts.files == 1
    stream, _ = load_documents(train_file=url, streaming=True)
    assert [row["text"] for row in stream] == ["一", "b"]
    ids = [document.document_id for document in iterate_documents(train_file=url)]
    assert ids[1] == f"docs.{kind}:{3 if kind in ('txt', 'csv') else 2}"


def test_folders_and_globs_stand_for_their_files(memory):
    for name in ("b.txt", "a.jsonl", "deep/c.csv", "notes.md", ".hidden/d.txt"):
        put(memory, name, "x\n")
    assert names("memory://corpus") == ["a.jsonl", "b.txt", "deep/c.csv"]
    assert names("memory://corpus/*.txt") == ["b.txt"]
    assert names("memory://corpus/**/*.csv") == ["deep/c.csv"]
    assert names(["memory://corpus/b.txt", "memory:///corpus/b.txt", "memory://corpus/*.txt"]) == ["b.txt"]


def test_a_folder_in_beir_layout_stands_for_its_corpus(memory):
    for name in ("set/corpus.jsonl", "set/queries.jsonl", "set/qrels/test.tsv", "more.txt"):
        put(memory, name, "{}\n")
    assert names("memory://corpus") == ["more.txt", "set/corpus.jsonl"]


def test_local_files_come_before_those_from_elsewhere(memory, tmp_path):
    put(memory, "docs.txt", "elsewhere\n")
    (tmp_path / "docs.txt").write_text("here\n")
    sources = ["memory://corpus/docs.txt", str(tmp_path / "docs.txt")]
    documents = list(iterate_documents(train_file=sources))
    assert [document.text for document in documents] == ["here", "elsewhere"]
    assert len({document.document_id for document in documents}) == 2


@pytest.mark.parametrize(
    "pattern, message",
    [
        ("memory://corpus/missing.txt", "no readable file is there; supported are .txt"),
        ("memory://corpus/*.txt", "no readable file is there"),
        ("memory://corpus/notes.md", "unknown format '.md'"),
        ("klingon://corpus/a.txt", "Protocol not known: klingon"),
    ],
)
def test_what_cannot_be_read_is_named(memory, pattern, message):
    put(memory, "notes.md", "x")
    with pytest.raises(InputError) as caught:
        resolve_files(pattern)
    assert pattern.removeprefix("memory://") in str(caught.value) and message in str(caught.value)


def test_a_file_system_that_fails_is_one_sentence(memory, monkeypatch):
    class NoNetworkError(Exception):
        pass

    def fail(*arguments, **options):
        raise NoNetworkError("no route to host\nand a page of details")

    monkeypatch.setattr(type(memory), "isfile", fail)
    with pytest.raises(InputError, match=r"^memory://corpus/a.txt: cannot be looked up \(no route to host\); check"):
        resolve_files("memory://corpus/a.txt")


def test_a_bad_line_is_named_with_the_whole_path(memory):
    put(memory, "docs.jsonl", '{"text": "a"}\nbroken\n')
    with pytest.raises(InputError, match=r"memory:///corpus/docs.jsonl, line 2: is not valid JSON"):
        list(iterate_documents(train_file="memory://corpus/docs.jsonl"))


def test_a_changed_file_is_read_again(memory, tmp_path):
    options = {"train_file": "memory://corpus/docs.txt", "cache_dir": tmp_path / "cache"}
    put(memory, "docs.txt", "one\n")
    fingerprint = corpus_fingerprint(**options)
    assert load_documents(**options)[0]["text"][:] == ["one"]
    assert corpus_fingerprint(**options) == fingerprint
    put(memory, "docs.txt", "two\n")  # of the same size
    assert load_documents(**options)[0]["text"][:] == ["two"]
    assert corpus_fingerprint(**options) != fingerprint


def test_pairs_are_read_and_mined_from_elsewhere(memory, tmp_path):
    put(memory, "pairs.jsonl", '{"text": "a", "text_pair": "b"}\n')
    source = {"train_file": ["memory://corpus/pairs.jsonl"], "cache_dir": str(tmp_path / "cache")}
    assert load_pairs(source, MiningSettings(), say=lambda line: None).to_list() == [
        {"text": "a", "text_pair": "b", "document_id": None}
    ]
    put(memory, "docs.jsonl", json.dumps({"text": "永磁同步电机控制方法。\n永磁同步电机控制模型。"}) + "\n")
    source = {"train_file": "memory://corpus/docs.jsonl"}
    assert mine_to_folder(source, tmp_path / "out", MiningSettings(), show_progress=False).counts["pairs"] == 1


def test_tasks_share_files_from_elsewhere_by_their_size(memory, tmp_path):
    put(memory, "docs.txt", "x" * 100)
    (tmp_path / "here.txt").write_text("y" * 50)
    corpus = SharedCorpus.from_source({"train_file": ["memory://corpus/docs.txt", os.fspath(tmp_path / "here.txt")]})
    assert corpus.sizes == [50, 100] and corpus.labels == ["here.txt", "docs.txt"]
    assert json.loads(json.dumps(corpus.fingerprint())) == corpus.fingerprint()
    (stretch, *_) = corpus.stretches(0, 1)
    assert [document.text for document in corpus.read(stretch, CorpusCounts())] == ["y" * 50, "x" * 100]
