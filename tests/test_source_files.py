import bz2
import gzip
import lzma

import pytest

from retrieval_pretraining.corpus import load_documents, read_raw_documents, resolve_files

CORPUS = b'{"_id": "d1", "title": "T", "text": "a document"}\n'
QUERIES = b'{"_id": "q1", "text": "a query"}\n'


def retrieval_set(folder, *, pack=None, suffix="", queries=True, qrels=True):
    """A folder in BEIR layout; returns its corpus."""
    pack = pack or (lambda content: content)
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / f"corpus.jsonl{suffix}"
    corpus.write_bytes(pack(CORPUS))
    if queries:
        (folder / f"queries.jsonl{suffix}").write_bytes(pack(QUERIES))
    if qrels:
        (folder / "qrels").mkdir()
        (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    return corpus


@pytest.mark.parametrize(
    "pack, suffix", [(None, ""), (gzip.compress, ".gz"), (lzma.compress, ".xz"), (bz2.compress, ".bz2")]
)
def test_a_folder_in_beir_layout_stands_for_its_corpus(tmp_path, pack, suffix):
    corpus = retrieval_set(tmp_path / "set", pack=pack, suffix=suffix)
    assert resolve_files(tmp_path / "set") == [corpus]
    assert [document.document_id for document in read_raw_documents([corpus])] == ["d1"]


@pytest.mark.parametrize("parts", [{"queries": False}, {"qrels": False}])
def test_queries_or_qrels_are_enough_to_know_the_layout(tmp_path, parts):
    corpus = retrieval_set(tmp_path, **parts)
    (tmp_path / "notes.txt").write_text("not a document")
    assert resolve_files(tmp_path) == [corpus]


def test_a_retrieval_set_deep_in_a_folder_stands_for_its_corpus_and_hides_nothing_beside_it(tmp_path):
    corpora = [retrieval_set(tmp_path / name) for name in ("beir/fiqa", "beir/scifact")]
    (tmp_path / "beir/more.txt").write_text("more")
    (tmp_path / "queries.jsonl").write_bytes(QUERIES)  # has no corpus beside it
    expected = sorted([*corpora, tmp_path / "beir/more.txt", tmp_path / "queries.jsonl"])
    assert resolve_files(tmp_path) == expected
    assert resolve_files(str(tmp_path / "beir/*i*")) == corpora  # folders that a glob finds


def test_a_folder_with_a_corpus_alone_is_an_ordinary_folder(tmp_path):
    corpus = retrieval_set(tmp_path, queries=False, qrels=False)
    (tmp_path / "more.jsonl").write_bytes(CORPUS)
    assert resolve_files(tmp_path) == [corpus, tmp_path / "more.jsonl"]


def test_of_a_corpus_and_its_packed_copy_one_is_read(tmp_path):
    corpus = retrieval_set(tmp_path)
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress(CORPUS))
    assert resolve_files(tmp_path) == [corpus]


@pytest.mark.parametrize("pattern", ["queries.jsonl", "quer*.jsonl", "*.jsonl"])
def test_queries_that_are_asked_for_are_read(tmp_path, pattern):
    retrieval_set(tmp_path)
    assert tmp_path / "queries.jsonl" in resolve_files(str(tmp_path / pattern))


@pytest.mark.parametrize("streaming", [False, True])
def test_pretraining_reads_the_corpus_of_a_retrieval_set_only(tmp_path, streaming):
    retrieval_set(tmp_path / "inner/set")
    dataset, _ = load_documents(train_file=[str(tmp_path)], streaming=streaming, cache_dir=tmp_path / "cache")
    assert [row["text"] for row in dataset] == ["a document"]


def test_the_folder_of_a_mining_run_stands_for_its_pairs(tmp_path):
    for name in ("_mining.json", "counts.json", "pairs.jsonl"):
        (tmp_path / "outputs").mkdir(exist_ok=True)
        (tmp_path / "outputs" / name).write_text("{}\n")
    (tmp_path / "more.jsonl").write_text("{}\n")
    assert resolve_files(tmp_path / "outputs") == [tmp_path / "outputs/pairs.jsonl"]
    assert resolve_files(tmp_path) == [tmp_path / "more.jsonl", tmp_path / "outputs/pairs.jsonl"]
