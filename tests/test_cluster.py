"""The same pairs on many tasks as in one process, whatever is killed or fails on the way."""

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.mined_pairs import mine_to_folder
from retrieval_pretraining.mining_report import pairs_card
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.pair_files import read_pairs

pytest.importorskip("datatrove")

import datatrove.data
import multiprocess
from datatrove.executor import LocalPipelineExecutor

from retrieval_pretraining.cluster import PairMiner, join_pairs, mining_stages

multiprocess.set_forkserver_preload(["retrieval_pretraining.cluster"])  # the workers of all tests import it once

PART_CHARACTERS = 2_000
SPANS = ("the quick brown fox jumps", "many a little makes a mickle", "检索增强的预训练模型", "自动编码器")


def document(generator: random.Random) -> str:
    words = [f"{generator.choice('bdfgklmnprst')}{generator.choice('aeiou')}{number}" for number in range(40)]
    sentences = []
    for _ in range(generator.randint(2, 8)):
        filling = [generator.choice(words) for _ in range(generator.randint(2, 6))]
        sentences.append(f"{' '.join(filling)} {generator.choice(SPANS)} {generator.choice(words)}.")
    return " ".join(sentences)


def write_json_lines(file: Path, generator: random.Random, documents: int):
    rows = [{"text": document(generator), "title": f"On {generator.choice(SPANS)}"} for _ in range(documents)]
    rows = [row | ({"id": f"{file.stem}-{number}"} if number % 3 else {}) for number, row in enumerate(rows)]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    lines[documents // 2 : documents // 2] = ["{broken", "", '{"text": " "}']
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Files of several sizes and formats, two of one name, and a repeated one: its pairs are dropped."""
    folder, generator = tmp_path_factory.mktemp("files"), random.Random(3)
    for name, documents in (("a/docs.jsonl", 20), ("b/docs.jsonl", 70), ("big.jsonl", 250), ("small.jsonl", 4)):
        write_json_lines(folder / name, generator, documents)
    (folder / "c.txt").write_text("\n".join(document(generator) for _ in range(30)), encoding="utf-8")
    (folder / "empty.txt").touch()
    (folder / "z.jsonl").write_bytes((folder / "b/docs.jsonl").read_bytes())
    return folder


def source_of(path: Path) -> dict:
    return {"train_file": path, "on_bad_line": "skip"}


def stages_of(path: Path, folder: Path, *, tasks: int, settings: MiningSettings | None = None, **options):
    settings = settings or MiningSettings()
    options = {"part_characters": PART_CHARACTERS, "output_format": "jsonl", **options}
    return mining_stages(source_of(path), settings, folder / "many", tasks=tasks, **options)


def run_local(stages, folder: Path):
    for stage in stages:
        LocalPipelineExecutor(
            stage.pipeline,
            tasks=stage.tasks,
            workers=min(2, stage.tasks),
            logging_dir=str(folder / "logs" / stage.name),
        ).run()


def check_same_as_one_process(path: Path, folder: Path, settings: MiningSettings | None = None):
    one = mine_to_folder(
        source_of(path), folder / "one", settings or MiningSettings(), output_format="jsonl", show_progress=False
    )
    many = join_pairs(folder / "many")
    assert many.was_there
    assert one.counts["pairs"] > 50
    assert many.file.read_bytes() == one.file.read_bytes()
    assert many.counts == one.counts
    assert (folder / "many" / "README.md").read_text(encoding="utf-8") == pairs_card("pairs.jsonl", one.counts)
    assert sorted(path.name for path in (folder / "many").iterdir()) == [
        "README.md",
        "_mining.json",
        "counts.json",
        "pairs.jsonl",
    ]


@pytest.mark.parametrize("tasks", [1, 3, 11])
def test_same_pairs_as_one_process_over_several_files(files, tmp_path, tasks):
    run_local(stages_of(files, tmp_path, tasks=tasks), tmp_path)
    check_same_as_one_process(files, tmp_path)


def test_same_pairs_as_one_process_over_one_file_that_all_tasks_share(files, tmp_path):
    big = files / "big.jsonl"
    mine, join = stages_of(big, tmp_path, tasks=4)
    run_local([mine], tmp_path)
    mined = [json.loads(file.read_text())["counts"] for file in (tmp_path / "many" / "parts").glob("task-*.json")]
    assert len(mined) == 4
    assert min(counts["documents"] for counts in mined) > 40
    run_local([join], tmp_path)
    check_same_as_one_process(big, tmp_path)


def test_frequent_spans_are_those_of_the_whole_corpus(files, tmp_path):
    settings = MiningSettings(max_document_frequency=0.5)
    stages = stages_of(files, tmp_path, tasks=3, settings=settings)
    assert [stage.name for stage in stages] == ["count", "sum", "mine", "join"]
    with pytest.raises(InputError, match="run the stages count and sum"):
        stages[2].pipeline[0].run(None, 0, 3)
    run_local(stages, tmp_path)
    check_same_as_one_process(files, tmp_path, settings)
    everything = mine_to_folder(source_of(files), tmp_path / "all", MiningSettings(), show_progress=False)
    assert join_pairs(tmp_path / "many").counts["candidates"] < everything.counts["candidates"]


KILLED = """
import sys, time
from pathlib import Path
from datatrove.executor import LocalPipelineExecutor
from retrieval_pretraining import cluster

mine = cluster.PartMiner.__call__
cluster.PartMiner.__call__ = lambda *part: (time.sleep(0.1), mine(*part))[1]  # fork: the workers have it too
files, output, logs, characters = sys.argv[1:]
source = {"train_file": Path(files), "on_bad_line": "skip"}
options = {"tasks": 3, "output_format": "jsonl", "part_characters": int(characters)}
stage, _ = cluster.mining_stages(source, cluster.MiningSettings(), output, **options)
LocalPipelineExecutor(stage.pipeline, tasks=3, workers=2, logging_dir=logs, start_method="fork").run()
"""


def test_killed_in_the_middle_and_launched_again(files, tmp_path):
    parts = tmp_path / "many" / "parts"
    arguments = [files, tmp_path / "many", tmp_path / "logs" / "mine", PART_CHARACTERS]
    process = subprocess.Popen([sys.executable, "-c", KILLED, *map(str, arguments)], start_new_session=True)
    end = time.monotonic() + 120
    while len(before := list(parts.glob("*/*.json"))) < 6:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(InputError, match="of 3 tasks have not finished"):
        join_pairs(tmp_path / "many")
    with pytest.raises(InputError, match=r"mined otherwise \(seed, tasks changed\)"):
        stages_of(files, tmp_path, tasks=4, seed=1)

    (parts / "00000000" / "part-009999.tmp").write_text("what a killed task may leave")
    states = {file: file.stat().st_mtime_ns for file in before}
    mine, join = stages_of(files, tmp_path, tasks=3)
    run_local([mine], tmp_path)
    assert {file: file.stat().st_mtime_ns for file in before} == states  # not mined again
    run_local([join], tmp_path)
    check_same_as_one_process(files, tmp_path)


def test_task_that_fails_is_noticed_and_goes_on(files, tmp_path):
    check_failing_task(files, tmp_path, run_local, raises=FileExistsError)


# Slow, as the pool of processes that datatrove forks inside of a Ray actor now and then waits for ever for its end.
@pytest.mark.slow
def test_ray(files, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray = pytest.importorskip("ray")
    from datatrove.executor import RayPipelineExecutor

    def run(stages, folder: Path):
        for stage in stages:
            RayPipelineExecutor(
                stage.pipeline,
                tasks=stage.tasks,
                workers=1,
                tasks_per_job=3,  # one actor: each imports everything anew
                mem_per_cpu_gb=0.1,
                logging_dir=str(folder / "logs" / stage.name),
            ).run()

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        check_failing_task(files, tmp_path, run, raises=None)
    finally:
        ray.shutdown()


def check_failing_task(files: Path, folder: Path, run, *, raises: type[Exception] | None):
    mine, _ = stages_of(files, folder, tasks=3)
    last = mine.pipeline[0].corpus.stretches(2, 3)[-1]
    obstacle = folder / "many" / "parts" / f"{last.begin:08d}"
    obstacle.parent.mkdir()
    obstacle.touch()
    if raises is None:
        run([mine], folder)
    else:
        with pytest.raises(raises):
            run([mine], folder)
    with pytest.raises(InputError, match=r"of 3 tasks have not finished \(.*2\): their logs say why"):
        join_pairs(folder / "many")
    obstacle.unlink()
    run([mine], folder)
    assert not join_pairs(folder / "many").was_there
    check_same_as_one_process(files, folder)


def test_folders_that_are_not_whole_or_not_ours_are_refused(files, tmp_path):
    with pytest.raises(InputError, match="call mining_stages first"):
        join_pairs(tmp_path / "many")
    mine, _ = stages_of(files / "c.txt", tmp_path, tasks=1)
    with pytest.raises(InputError, match=r"mining_stages got tasks=1, the executor 2: use stage\.tasks"):
        mine.pipeline[0].run(None, 0, 2)
    mine.pipeline[0].run(None, 0, 1)
    for changed in ({"tasks": 2}, {"settings": MiningSettings(strategy="title")}, {"output_format": "parquet"}):
        with pytest.raises(InputError, match="mined otherwise"):
            stages_of(files / "c.txt", tmp_path, **{"tasks": 1, **changed})
    next(tmp_path.glob("many/parts/*/part-000001.parquet")).unlink()
    with pytest.raises(InputError, match=r"parts holds \d+ of \d+ parts"):
        join_pairs(tmp_path / "many")

    mine_to_folder(source_of(files / "c.txt"), tmp_path / "one", MiningSettings(), show_progress=False)
    with pytest.raises(InputError, match="begun in one process"):
        join_pairs(tmp_path / "one")


def test_tasks_of_an_older_launch_do_not_mix_with_a_newer_one(files, tmp_path):
    older, _ = stages_of(files / "c.txt", tmp_path, tasks=1)
    stages_of(files / "c.txt", tmp_path, tasks=1, seed=1)
    with pytest.raises(InputError, match="was begun anew"):
        older.pipeline[0].run(None, 0, 1)


def test_corpus_without_a_document_is_an_error(tmp_path):
    (tmp_path / "blank.txt").write_text("\n \n", encoding="utf-8")
    mine, _ = stages_of(tmp_path / "blank.txt", tmp_path, tasks=2)
    for rank in range(2):
        mine.pipeline[0].run(None, rank, 2)
    with pytest.raises(InputError, match="0 usable passages"):
        join_pairs(tmp_path / "many")


def test_miner_between_any_reader_and_writer(tmp_path):
    generator = random.Random(5)
    texts = [document(generator) for _ in range(5)]
    rows = "".join(json.dumps({"id": str(n), "text": text, "title": SPANS[0]}) + "\n" for n, text in enumerate(texts))
    (tmp_path / "docs.jsonl").write_text(rows, encoding="utf-8")
    settings = MiningSettings(deduplicate=False)
    expected = mine_to_folder({"train_file": tmp_path / "docs.jsonl"}, tmp_path / "one", settings, show_progress=False)

    documents = [datatrove.data.Document(text, str(n), metadata={"title": SPANS[0]}) for n, text in enumerate(texts)]
    miner = PairMiner(settings)
    pairs = list(miner(iter(documents)))
    assert len({pair.id for pair in pairs}) == len(pairs)
    assert [{"text": pair.text, **pair.metadata} for pair in pairs] == [
        pair._asdict() for pair in read_pairs(expected.file)
    ]
    assert miner.stats["pairs"].total == len(pairs)
    with pytest.raises(InputError, match="use mining_stages"):
        PairMiner(MiningSettings(max_document_frequency=0.1))


def test_without_datatrove_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datatrove", None)
    monkeypatch.setitem(sys.modules, "datatrove.data", None)
    monkeypatch.delitem(sys.modules, "retrieval_pretraining.cluster")
    with pytest.raises(ImportError, match=r'pip install "retromae-gur\[cluster\]"'):
        importlib.import_module("retrieval_pretraining.cluster")
