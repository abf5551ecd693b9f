"""What the experiments tune and fine-tune on has nothing of the test queries in it."""

import importlib.util
import json
import lzma
from pathlib import Path

import pytest
from test_run_evaluation import write_lines

from retrieval_pretraining.retrieval_data import load_retrieval_data

SCRIPT = Path(__file__).parents[1] / "recipes/experiments/prepare_data.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("prepare_data", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_packed(path: Path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def data(tmp_path) -> Path:
    papers = [{"title": f"title {i}", "text": f"abstract {i}"} for i in range(6)] + [{"title": "", "text": "untitled"}]
    write_packed(tmp_path / "raw_en_acl/part00.jsonl.xz", papers[:4])
    write_packed(tmp_path / "raw_en_acl/part01.jsonl.xz", papers[4:])
    write_packed(tmp_path / "raw_zh_lctt/part00.jsonl.xz", [{"title": "标题", "text": "文章" * 400}])
    write_lines(tmp_path / "zhwiki_qa/corpus.jsonl", ({"_id": f"p{i}", "text": f"段落{i}"} for i in range(4)))
    write_lines(tmp_path / "zhwiki_qa/queries.jsonl", ({"_id": f"t{i}", "text": f"考题{i}"} for i in range(2)))
    write_lines(tmp_path / "zhwiki_qa/queries_dev.jsonl", ({"_id": f"d{i}", "text": f"问题{i}"} for i in range(3)))
    for split, pairs in (("test", [("t0", "p0"), ("t1", "p1")]), ("dev", [("d0", "p1"), ("d1", "p2"), ("d2", "p3")])):
        path = tmp_path / f"zhwiki_qa/qrels/{split}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{q}\t{d}\t1\n" for q, d in pairs))
    return tmp_path


def test_titles_are_either_tuned_or_trained_on(script, data, monkeypatch):
    monkeypatch.setattr(script, "DEVELOPMENT_TITLES", 2)
    script.prepare_english(data, data / "out")
    tuned_on = load_retrieval_data(data / "out/acl_titles")
    assert tuned_on.query_texts == ["title 0", "title 1"] and len(tuned_on.corpus_ids) == 6
    assert tuned_on.corpus_texts[0] == "abstract 0"  # without the title that looks for it
    assert tuned_on.qrels == {"q0": {"d0": 1}, "q1": {"d1": 1}}
    pairs = lines(data / "out/acl_pairs.jsonl")
    assert pairs == [{"text": f"title {i}", "text_pair": f"abstract {i}"} for i in range(2, 6)]


def test_no_pair_has_a_passage_that_a_test_question_asks_for(script, data):
    script.prepare_chinese(data, data / "out")
    development = load_retrieval_data(data / "out/zhwiki_qa_dev")
    assert development.query_texts == ["问题0", "问题1", "问题2"] and len(development.corpus_ids) == 4
    pairs = lines(data / "out/zh_pairs.jsonl")
    assert pairs[:2] == [{"text": "问题1", "text_pair": "段落2"}, {"text": "问题2", "text_pair": "段落3"}]
    assert pairs[2:] == [{"text": "标题", "text_pair": "文章" * (script.ARTICLE_CHARACTERS // 2)}]


def test_data_that_are_not_there_are_said(script, data, monkeypatch, capsys):
    words = ["prepare_data.py", "--data_dir", str(data / "none"), "--output_dir", str(data / "out")]
    monkeypatch.setattr("sys.argv", words)
    assert script.main() == 2
    assert "none/raw_en_acl is not there; --data_dir says where the data lie" in capsys.readouterr().err
