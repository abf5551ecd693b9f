"""The commands and snippets of the pages for each job work, one after the other, on a machine with a little text."""

import importlib.util
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from hub_clients import Client
from hub_runs import TOKEN
from hub_server import File, Repository
from tokenizers_for_tests import ENGLISH, SENTENCES, bert_tokenizer, t5_tokenizer
from toy_models import encoder_config, toy_t5
from transformers import BertForMaskedLM

ROOT = Path(__file__).parents[1]
QUICK = ["--use_cpu", "--disable_tqdm", "True", "--per_device_train_batch_size", "4", "--max_seq_length", "32"]
# Recipes say more; models of their size would take minutes.
TINY = {
    "recipes/from_text.yaml": "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=48",
    "recipes/demo_gur.yaml": "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_decoder_layers=1,num_heads=4",
}


def blocks(page: str) -> list[tuple[str, str]]:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"```(bash|python)\n(.*?)```", text, re.S)


def commands(block: str) -> list[list[str]]:
    """The command lines; not those that install something or belong to a cluster."""
    lines = block.replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines if line.strip()]
    return [words for words in found if words and words[:2] in (["python", words[1]],) and words[1] in DOORS]


DOORS = ("run_pretrain.py", "run_finetune.py", "mine_pairs.py", "run_evaluation.py", "export_model.py")
PAGES = {  # the least number of commands in each
    "pretraining": 6,
    "text": 2,
    "adapting": 5,
    "fine-tuning": 8,
    "mining": 5,
    "evaluation": 1,
    "serving": 2,
}


def run_command(author, words: list[str], folder: Path):
    arguments = words[1:]
    if words[1] in ("run_pretrain.py", "run_finetune.py"):
        arguments += QUICK
        arguments += [] if "--max_steps" in words else ["--max_steps", "2"]
        arguments += (
            ["--config_overrides", TINY[words[2]], "--tokenizer_vocab_size", "600"] if words[2] in TINY else []
        )
    code = f"import sys, {words[1].removesuffix('.py')} as door; sys.exit(door.main())"
    return author.run(code, argv=arguments, folder=folder)


@pytest.fixture(scope="module")
def author(hub, tmp_path_factory):
    """Somebody with this project; the models that the pages begin with are on the Hub."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    BertForMaskedLM(encoder_config(vocab_size=len(bert_tokenizer()))).save_pretrained(folder / "bert")
    bert_tokenizer().save_pretrained(folder / "bert")
    toy_t5().save_pretrained(folder / "t5")
    t5_tokenizer().save_pretrained(folder / "t5")
    for name, kind in (("google-bert/bert-base-uncased", "bert"), ("google/t5-v1_1-small", "t5")):
        files = {path.name: File(path.read_bytes(), ".safe" in path.name) for path in (folder / kind).iterdir()}
        hub.objects |= {file.sha256: file.content for file in files.values()}
        hub.repositories["models", name] = Repository(False)
        hub.repository(name).add("main", "theirs", files)
    modules = "import run_pretrain, mine_pairs, run_evaluation, export_model, retrieval_pretraining.evaluation"
    if importlib.util.find_spec("sentence_transformers"):
        modules += ", retrieval_pretraining.finetuning"
    with Client(hub.url, tmp_path_factory.mktemp("author"), modules, token=TOKEN) as client:
        yield client


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """The text that the pages speak of."""
    folder = tmp_path_factory.mktemp("desk")
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    paragraphs = [" ".join(ENGLISH[start : start + 4]) for start in range(0, 40, 4)]
    rows = "".join(json.dumps({"title": text[:20], "text": text}) + "\n" for text in paragraphs)
    (folder / "docs").mkdir()
    for name in ("docs.jsonl", "general.jsonl", "docs/all.jsonl"):
        (folder / name).write_text(rows, encoding="utf-8")
    for name in ("my_text.txt", "book.txt", "notes.txt"):
        (folder / name).write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    (folder / "terms.txt").write_text("masked language\nretrieval\n", encoding="utf-8")
    for name in ("mine", "general"):
        beir = folder / "data" / name
        (beir / "qrels").mkdir(parents=True)
        corpus = [json.dumps({"_id": f"d{i}", "title": "", "text": text}) for i, text in enumerate(SENTENCES)]
        queries = [json.dumps({"_id": f"q{i}", "text": SENTENCES[i][:10]}) for i in range(6)]
        (beir / "corpus.jsonl").write_text("\n".join(corpus), encoding="utf-8")
        (beir / "queries.jsonl").write_text("\n".join(queries), encoding="utf-8")
        for split, numbers in (("train", range(4)), ("test", range(6))):
            qrels = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in numbers)]
            (beir / f"qrels/{split}.tsv").write_text("\n".join(qrels) + "\n", encoding="utf-8")
    pairs = (json.dumps({"text": text[:12], "text_pair": text}) + "\n" for text in ENGLISH)
    (folder / "pairs.jsonl").write_text("".join(pairs), encoding="utf-8")
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_as_they_stand(page, author, desk):
    snippets = page == "fine-tuning"
    if snippets:
        pytest.importorskip("sentence_transformers")
    if page == "serving":
        pytest.importorskip("onnx")
    for made in ("outputs", "exports", "report", "tuned-report"):  # by another page
        shutil.rmtree(desk / made, ignore_errors=True)
    if page in ("evaluation", "serving"):  # which begin with what runs have left
        start = "--model_name_or_path google-bert/bert-base-uncased --train_file my_text.txt --output_dir outputs/mine"
        assert run_command(author, ["python", "run_pretrain.py", *start.split()], desk).status == 0
        for name in ("gur", "other"):
            shutil.copytree(desk / "outputs/mine", desk / "outputs" / name)
    ran = 0
    for kind, block in blocks(page):
        outcomes = [author.run(block, folder=desk)] if kind == "python" and snippets else []
        outcomes += [run_command(author, words, desk) for words in (commands(block) if kind == "bash" else [])]
        for outcome in outcomes:
            assert outcome.status == 0, f"{block}\n{outcome.out[-1000:]}\n{outcome.err[-3000:]}"
        ran += len(outcomes)
    assert ran >= PAGES[page]


def test_every_flag_of_the_pages_exists():
    from dataclasses import fields

    pytest.importorskip("sentence_transformers")
    import run_finetune
    import run_pretrain
    from retrieval_pretraining.arguments import PairArguments
    from retrieval_pretraining.evaluation_arguments import EvaluationArguments
    from retrieval_pretraining.experiment_arguments import ExperimentArguments
    from retrieval_pretraining.model_export import ExportArguments

    groups = [*run_pretrain.ARGUMENTS, *run_finetune.argument_groups()]
    groups += [PairArguments, EvaluationArguments, ExportArguments, ExperimentArguments]
    known = {entry.name for group in groups for entry in fields(group)}
    known |= {"help", "nproc_per_node", "name", "include", "head"}  # of other commands
    for page in [*(ROOT / "docs").glob("*.md"), *ROOT.glob("README*.md")]:
        if page.stem in ("experiments", "performance"):
            continue  # what was run then, and the flags of benchmarks
        named = set(re.findall(r"(?<![\w-])--([a-z]\w+)(?![\w-])", page.read_text(encoding="utf-8")))
        assert not named - known, (page.name, named - known)


def test_links_between_pages_lead_somewhere():
    for page in [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), (page.name, target)


def test_the_chinese_readme_says_what_the_english_one_says():
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README_zh.md"))

    def parts(text):
        code = re.findall(r"```.*?```", text, re.S)
        prose = re.sub(r"```.*?```", "", text, flags=re.S)
        headings = [line.split()[0] for line in prose.splitlines() if line.startswith("#")]
        tables = [line for line in prose.splitlines() if line.startswith("|")]
        figures = [re.findall(r"\.\d+|\d[\d,]*", line) for line in tables]
        return (
            code,
            headings,
            figures,
            sorted(set(re.findall(r"\]\(([^)]+)\)", prose)) - {"README.md", "README_zh.md"}),
        )

    assert parts(english) == parts(chinese)
