"""The commands and snippets of docs/hub.md work, one after the other; SECURITY.md names tests that exist."""

import re
import shlex
from pathlib import Path

import pytest
from documents_for_tests import chinese_documents, write_rows
from hub_runs import TOKEN
from hub_server import File, Repository
from tokenizers_for_tests import SENTENCES

ROOT = Path(__file__).parents[1]
QUICK = ["--use_cpu", "--disable_tqdm", "True", "--max_seq_length", "32", "--per_device_train_batch_size", "4"]
MODULE = "import runpy; runpy.run_module('retrieval_pretraining.hub', run_name='__main__')"
HF = "from huggingface_hub.cli.hf import main; main()"


def blocks() -> list[tuple[str, str]]:
    return re.findall(r"```(bash|python)\n(.*?)```", (ROOT / "docs/hub.md").read_text(encoding="utf-8"), re.S)


def commands(block: str) -> list[list[str]]:
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def run_command(workshop, words: list[str], folder: Path):
    if words[0] == "hf":
        return workshop.run(HF, argv=words, folder=folder)
    assert words[0] == "python"
    if words[1] == "-m":
        return workshop.run(MODULE, argv=words[2:], folder=folder)
    more = []
    if words[1] == "run_pretrain.py":
        more = QUICK if "--max_steps" in words else [*QUICK, "--max_steps", "2"]
    code = f"import sys, {words[1].removesuffix('.py')} as door; sys.exit(door.main())"
    return workshop.run(code, argv=[*words[1:], *more], folder=folder)


def test_the_guide_runs_from_its_first_block_to_its_last(hub, workshop, folder, tmp_path):
    pytest.importorskip("sentence_transformers")
    files = {path.name: File(path.read_bytes(), ".safe" in path.name) for path in (folder / "backbone").iterdir()}
    hub.objects |= {file.sha256: file.content for file in files.values()}
    hub.repositories["models", "google-bert/bert-base-uncased"] = Repository(False)
    hub.repository("google-bert/bert-base-uncased").add("main", "theirs", files)
    (tmp_path / "my_text.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    write_rows(tmp_path / "docs.jsonl", chinese_documents(12))
    assert len(blocks()) >= 10
    for kind, block in blocks():
        outcomes = [workshop.run(block, folder=tmp_path)] if kind == "python" else []
        outcomes += [run_command(workshop, words, tmp_path) for words in (commands(block) if kind == "bash" else [])]
        for outcome in outcomes:
            assert outcome.status == 0, f"{block}\n{outcome.err[-3000:]}"
            assert TOKEN not in outcome.out + outcome.err
    assert hub.repository("me/mine").private and hub.repository("me/pairs", "datasets").private
    assert (tmp_path / "models/mine/model.safetensors").is_file()
    assert (tmp_path / "outputs/moved-2/model.safetensors").is_file()


def test_the_options_in_the_guide_exist():
    from retrieval_pretraining.arguments import PairArguments, PretrainingArguments

    text = (ROOT / "docs/hub.md").read_text(encoding="utf-8")
    named = set(re.findall(r"--(hub_\w+|push_to_hub|license)", text))
    assert named <= {*PretrainingArguments.__dataclass_fields__, *PairArguments.__dataclass_fields__}


def test_the_tests_that_the_security_page_names_exist():
    file, found = None, 0
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for name, test in re.findall(r"`(test_\w+\.py)?(?:::(test_\w+))?`", page):
        file = name or file
        if file and (name or test):
            text = (ROOT / "tests" / file).read_text(encoding="utf-8")
            assert not test or f"def {test}(" in text, f"{file}::{test}"
            found += 1
    assert found > 15
