"""The benchmark scripts run, print their rows and find the sides equal. No time is asserted."""

import json
import random
import re
from pathlib import Path

import pytest
from fresh_process import run_script
from reference import pair_mining_oracle as oracle
from reference.pairwise_miners import Automaton, Sentence, Table, all_pairs

ROOT = Path(__file__).parent.parent


def run_benchmark(name, *arguments):
    run = run_script([ROOT / "benchmarks" / name, *arguments], ROOT)
    assert run.status == 0, run.err[-3000:]
    return run


def test_pretrain_step_quick():
    run = run_benchmark("pretrain_step.py", "--quick", "--threads", 1)
    rows = run.out.splitlines()
    for objective in ("RetroMAE", "RetroMAE, decoder_prediction_rate 0.4", "DupMAE, bow_loss_weight 0.1"):
        for measured in ("step (s)", "memory (MB)"):
            assert sum(row.startswith(f"{objective}: {measured}") for row in rows) == 1
    assert sum(row.startswith("collation, 8 texts x 128 tokens (s)") for row in rows) == 1

    differences = [float(number) for number in re.findall(r"losses differ by (\S+),", run.out)]
    assert len(differences) == 6 and max(differences) <= 1e-4


def test_pair_mining_quick(tmp_path):
    file = tmp_path / "documents.jsonl"
    texts = ["他在看书。书在桌子上。我也在看书，看书很好。", "Tom is chasing Jerry.\nJerry is chasing Tom. So it is."]
    rows = [json.dumps({"title": "看书", "text": text}, ensure_ascii=False) for text in texts]
    file.write_text("\n".join(rows), encoding="utf-8")
    run = run_benchmark("pair_mining.py", "--train_file", file, "--rounds", 1, "--max_sentences", 1000)

    tables = {lines[0]: lines[1:] for lines in (part.splitlines() for part in run.out.split("\n\n")[1:-1])}
    assert len(tables) == 5
    for title, lines in tables.items():
        found = sum(line.startswith(f"{tmp_path.name}/documents.jsonl") for line in lines)
        assert found == (2 if title.startswith("One long document") else 1), title
    compared = next(lines for title, lines in tables.items() if title.startswith("Every pair"))
    assert compared[1].split()[1:6] == ["2", "8", "12", "4", "yes"]


def test_pairwise_miners_agree_with_the_oracle():
    rng = random.Random(0)
    for _ in range(200):
        one, other = ("".join(rng.choices("abAB 书看,", k=rng.randint(0, 30))) for _ in range(2))
        expected, _ = oracle.heaviest_common_substring(one, other)
        for kind in (Table, Automaton):
            assert kind(Sentence(one, oracle)).heaviest(Sentence(other, oracle)) == expected, (kind, one, other)
    sentences = ["".join(rng.choices("abc 书看", k=rng.randint(2, 60))) for _ in range(20)]
    expected = {(0, sentences[i], sentences[j]) for i, j in oracle.all_pairs(sentences)}
    assert 0 < len(expected) < 190
    for kind in (Table, Automaton):
        assert set(all_pairs([sentences], kind, oracle)) == expected


@pytest.mark.slow
def test_contrastive_batch_quick():
    run = run_benchmark("contrastive_batch.py", "--quick", "--threads", 1)
    lines = run.out.splitlines()
    assert lines[2].startswith("11 pairs: losses differ by ")
    assert lines[3].split() == "pairs whole MB parts MB ratio whole s parts s ratio".split()
    assert len(lines) == 5 and len(lines[4].split()) == 7 and lines[4].split()[0] == "16"


def test_length_batches_quick():
    run = run_benchmark("length_batches.py", "--quick", "--threads", 1, "--max_seq_length", 64, 256)
    rows = [line.split(" tokens ")[1].split() for line in run.out.splitlines() if line.startswith("scifact, ")]
    assert len(rows) == 2
    for passages, tokens, mixed, grouped, *speeds in rows:
        assert int(passages) >= 100 and int(tokens) > 40
        assert float(grouped.rstrip("%")) < float(mixed.rstrip("%")) and len(speeds) == 3


def test_span_masking_quick():
    run = run_benchmark("span_masking.py", "--quick")
    rows = [line.split(", ")[:3] for line in run.out.splitlines() if "hump_geometric" in line or "uniform" in line]
    assert [row[1] for row in rows] == ["tokens", "tokens", "tokens", "words", "tokens", "tokens"]
    assert all(float(number) > 0 for line in run.out.splitlines()[2:8] for number in line.split()[-4:-1])


@pytest.mark.slow
def test_reading_quick():
    run = run_benchmark("reading.py", "--quick")
    cells = [line.split()[-1] for line in run.out.split("\n\n")[1].splitlines()]
    assert len(cells) == 11 and all(float(cell) >= 0 for cell in cells[1:])


@pytest.mark.slow
def test_encoding_quick():
    pytest.importorskip("sentence_transformers")
    run = run_benchmark("encoding.py", "--quick", "--threads", 1)
    rows = [line.split() for line in run.out.splitlines() if line.startswith("scifact, ")]
    assert [row[1:3] for row in rows] == [["documents", "40"], ["queries", "40"]]
    assert all(float(number) >= 0 for row in rows for number in row[3:]) and {len(row) for row in rows} == {10}
    assert float(re.search(r"vectors differ by (\S+)", run.out).group(1)) <= 1e-5
