"""Runs that are stopped, killed or fail on the way: what was finished is kept, and the same command goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from documents_for_tests import chinese_documents, write_rows

import mine_pairs
from retrieval_pretraining import mined_pairs
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.mined_pairs import mine_to_folder
from retrieval_pretraining.mining_settings import MiningSettings

ROWS = chinese_documents(60)
ROOT = Path(__file__).parents[1]
# The door, at a part every fifth of a second.
SLOW_MINER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests run in the background it is ignored
from retrieval_pretraining import mined_pairs
import mine_pairs
mined_pairs.PART_CHARACTERS = 300
mine_documents = mined_pairs.mine_documents
def slowly(*args, **options):
    time.sleep(0.2)
    return mine_documents(*args, **options)
mined_pairs.mine_documents = slowly
sys.exit(mine_pairs.main(sys.argv[1:]))
"""


def start_slow_miner(flags: list, *, wait_for: str) -> subprocess.Popen:
    """A process and group of its own, the output folder as the last flag; returns when three parts are there."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_MINER, *map(str, flags)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while len(list(flags[-1].glob(wait_for))) < 3:
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read()
        time.sleep(0.02)
    return process


@pytest.fixture
def corpus(tmp_path) -> Path:
    return write_rows(tmp_path / "docs.jsonl", ROWS)


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of two or three documents."""
    monkeypatch.setattr(mined_pairs, "PART_CHARACTERS", 300)


class Stopped(Exception):
    pass


class Watch:
    """The ids of the documents of each part that was mined; raises `Stopped` before there are more than so many."""

    def __init__(self):
        self.restart()

    def restart(self, stop_after: int = 1000):
        self.parts: list[list[str]] = []
        self.stop_after = stop_after


@pytest.fixture
def watch(monkeypatch) -> Watch:
    watch, mine_part = Watch(), mined_pairs.mine_documents

    def watched(documents, *args, **options):
        if len(watch.parts) == watch.stop_after:
            raise Stopped
        watch.parts.append([document.document_id for document in documents])
        return mine_part(documents, *args, **options)

    monkeypatch.setattr(mined_pairs, "mine_documents", watched)
    return watch


def mine(corpus, output, *, settings=None, **options):
    settings = settings or MiningSettings()
    return mine_to_folder({"train_file": str(corpus)}, output, settings, show_progress=False, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("output_format", ["parquet", "jsonl"])
def test_what_was_finished_is_not_mined_again(tmp_path, corpus, small_parts, watch, output_format):
    whole = mine(corpus, tmp_path / "whole", output_format=output_format)
    watch.restart(stop_after=5)
    with pytest.raises(Stopped):
        mine(corpus, tmp_path / "out", output_format=output_format)
    assert len(list((tmp_path / "out/parts").glob("*.json"))) == 5
    assert not (tmp_path / "out/counts.json").exists()
    watch.restart()
    resumed = mine(corpus, tmp_path / "out", output_format=output_format)
    assert resumed.file.read_bytes() == whole.file.read_bytes() and resumed.counts == whole.counts
    ids = [document for part in watch.parts for document in part]
    assert len(ids) == len(set(ids)) and ids == [row["id"] for row in ROWS][-len(ids) :] and 40 < len(ids) < 55
    assert not (tmp_path / "out/parts").exists() and not resumed.was_there


@pytest.mark.parametrize("lost", ["json", "parquet"])
def test_a_part_that_is_not_whole_is_mined_again(tmp_path, corpus, small_parts, watch, lost):
    whole = mine(corpus, tmp_path / "whole", output_format="jsonl")
    in_order = watch.parts
    watch.restart(stop_after=5)
    with pytest.raises(Stopped):
        mine(corpus, tmp_path / "out", output_format="jsonl")
    part = tmp_path / "out/parts/part-000002.parquet"
    part.with_suffix(".json").unlink()
    part.write_bytes(b"half") if lost == "json" else part.unlink()
    watch.restart()
    assert mine(corpus, tmp_path / "out", output_format="jsonl").file.read_bytes() == whole.file.read_bytes()
    assert watch.parts == [in_order[2], *in_order[5:]]


def test_a_part_that_could_not_be_written_does_not_count_as_finished(tmp_path, corpus, small_parts, monkeypatch):
    write_part = mined_pairs.write_part

    def write(pairs, file):
        if file.name == "part-000002.parquet":
            raise Stopped
        write_part(pairs, file)

    with monkeypatch.context() as patch:
        patch.setattr(mined_pairs, "write_part", write)
        with pytest.raises(Stopped):
            mine(corpus, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out/parts").glob("*.json")) == [
        "part-000000.json",
        "part-000001.json",
    ]
    assert mine(corpus, tmp_path / "out").file.read_bytes() == mine(corpus, tmp_path / "whole").file.read_bytes()


def test_frequent_spans_are_not_counted_again(tmp_path, corpus, small_parts, watch, monkeypatch):
    settings = MiningSettings(max_document_frequency=0.5)
    whole = mine(corpus, tmp_path / "whole", settings=settings, output_format="jsonl")
    watch.restart(stop_after=0)
    with pytest.raises(Stopped):
        mine(corpus, tmp_path / "out", settings=settings, output_format="jsonl")
    watch.restart()
    monkeypatch.setattr(mined_pairs, "gram_document_frequencies", None)
    resumed = mine(corpus, tmp_path / "out", settings=settings, output_format="jsonl")
    assert resumed.file.read_bytes() == whole.file.read_bytes()


def test_what_counts_as_frequent_is_never_that_of_other_settings(tmp_path, corpus, watch):
    watch.restart(stop_after=0)
    with pytest.raises(Stopped):
        mine(corpus, tmp_path / "out", settings=MiningSettings(max_document_frequency=0.001))
    watch.restart()
    with pytest.raises(InputError, match=r"mined otherwise \(max_document_frequency changed\)"):
        mine(corpus, tmp_path / "out", settings=MiningSettings(max_document_frequency=0.9))


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_stopped_goes_on_without_repeats_or_losses(tmp_path, corpus, small_parts, watch, stop):
    flags = ["--train_file", str(corpus), "--output_format", "jsonl", "--num_workers", "2", "--output_dir"]
    process = start_slow_miner([*flags, tmp_path / "out"], wait_for="parts/*.json")
    os.killpg(process.pid, stop)  # as the terminal does at Ctrl-C
    _, errors = process.communicate(timeout=60)
    if stop == signal.SIGINT:
        assert process.returncode == 130 and "Traceback" not in errors
        assert errors.endswith("\nStopped. What was finished is kept: the same command goes on from there.\n")
    done = len(list((tmp_path / "out/parts").glob("*.json")))
    flags[5] = "1"
    assert mine_pairs.main([*flags, str(tmp_path / "out")]) == 0
    again = len(watch.parts)
    assert mine_pairs.main([*flags, str(tmp_path / "whole")]) == 0
    assert done >= 3 and done + again == len(watch.parts) - again
    assert names(tmp_path / "out") == names(tmp_path / "whole")
    for name in ("pairs.jsonl", "counts.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_the_processes_of_a_killed_run_end_with_it(tmp_path, corpus):
    flags = ["--train_file", corpus, "--num_workers", "2", "--output_dir", tmp_path / "out"]
    process = start_slow_miner(flags, wait_for="parts/*.json")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) >= 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(is_running(child) for child in children):
        assert time.monotonic() < deadline, "a process that mined outlives the run"
        time.sleep(0.1)


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_that_is_killed_is_one_sentence_and_what_was_finished_is_kept(
    tmp_path, corpus, small_parts, monkeypatch
):
    mine_part, parent = mined_pairs.mine_documents, os.getpid()

    def dying(documents, *args, **options):
        if documents[0].document_id > "d3" and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return mine_part(documents, *args, **options)

    monkeypatch.setattr(mined_pairs, "mine_documents", dying)
    with pytest.raises(InputError, match=r"A process that mined was killed, .* run the same command again, with a"):
        mine(corpus, tmp_path / "out", num_workers=2)
    assert not (tmp_path / "out/counts.json").exists() and (tmp_path / "out/parts").exists()
    whole = mine(corpus, tmp_path / "whole")
    assert mine(corpus, tmp_path / "out").file.read_bytes() == whole.file.read_bytes()


def test_an_error_in_the_text_keeps_the_parts_before_it(tmp_path, small_parts):
    corpus = write_rows(tmp_path / "a.jsonl", ROWS)
    corpus.write_text(corpus.read_text(encoding="utf-8") + "broken\n", encoding="utf-8")
    for workers in (1, 2):
        with pytest.raises(InputError, match=r"a\.jsonl, line 61: is not valid JSON"):
            mine(corpus, tmp_path / str(workers), num_workers=workers)
        assert len(list((tmp_path / str(workers) / "parts").glob("*.json"))) > 10


@pytest.mark.parametrize(
    "change, named",
    [
        ({"settings": MiningSettings(min_span_weight=40)}, "min_span_weight"),
        (
            {"settings": MiningSettings(strategy="random", max_pairs_per_sentence=1)},
            "strategy, max_pairs_per_sentence",
        ),
        ({"seed": 1}, "seed"),
        ({"output_format": "jsonl"}, "output_format"),
        ({}, "corpus"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_another_text_or_other_settings_are_refused_in_the_same_folder(
    tmp_path, corpus, small_parts, watch, change, named, finished
):
    watch.restart(stop_after=1000 if finished else 2)
    if finished:
        mine(corpus, tmp_path / "out")
    else:
        with pytest.raises(Stopped):
            mine(corpus, tmp_path / "out")
    watch.restart()
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    if named == "corpus":
        write_rows(corpus, ROWS[:-1])
    with pytest.raises(InputError) as caught:
        mine(corpus, tmp_path / "out", **change)
    assert f"holds pairs that were mined otherwise ({named} changed)" in str(caught.value)
    assert "--overwrite_output_dir True" in str(caught.value)
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
