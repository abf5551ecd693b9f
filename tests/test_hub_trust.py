"""What comes from the Hub is not trusted: no code of others, no pickle, no path that leads out of a folder."""

import json

import pytest
import torch
from hub_runs import EVALUATE, PRETRAIN
from hub_server import File, Repository
from safetensors.torch import load_file
from saved_models import change, copy_to
from tokenizers_for_tests import ENGLISH

from modeling_retromae import RetroMAEForPreTraining
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.model_folders import read_sentence_transformers_files, weight_files
from retrieval_pretraining.zero_shot import Searcher

# To every question whether the code may run.
YES = "import io, sys\nsys.stdin = io.StringIO('y\\n' * 9)\n"

EVIL = """
from pathlib import Path
from transformers import BertConfig, BertModel, BertTokenizerFast
Path({mark!r}).touch()
class EvilConfig(BertConfig):
    model_type = {model_type!r}
class EvilModel(BertModel):
    config_class = EvilConfig
class EvilTokenizer(BertTokenizerFast):
    pass
"""


@pytest.fixture(params=["evil", "bert"])
def foreign(request, hub, folder, tmp_path):
    """A model of the Hub, of a type of its own or of a known one, whose code leaves a mark when it runs."""
    mark = tmp_path / "it-ran"
    files = {path.name: path.read_bytes() for path in (folder / "backbone").iterdir()}
    config = json.loads(files["config.json"]) | {"model_type": request.param}
    config["auto_map"] = {name: f"evil.Evil{name.removeprefix('Auto')}" for name in ("AutoConfig", "AutoModel")}
    config["auto_map"]["AutoModelForMaskedLM"] = "evil.EvilModel"
    tokenizer = json.loads(files["tokenizer_config.json"]) | {"tokenizer_class": "EvilTokenizer"}
    tokenizer["auto_map"] = {"AutoTokenizer": [None, "evil.EvilTokenizer"]}
    files["evil.py"] = EVIL.format(mark=str(mark), model_type=request.param).encode()
    files |= {"config.json": json.dumps(config).encode(), "tokenizer_config.json": json.dumps(tokenizer).encode()}
    name = f"someone/{request.param}"
    hub.repositories["models", name] = Repository(False)
    commit = hub.repository(name).add(
        "main", "evil", {path: File(data, ".safe" in path) for path, data in files.items()}
    )
    hub.objects |= {file.sha256: file.content for file in commit.files.values()}
    return name, mark


def run_evaluation(workshop, name: str, *flags):
    rows = [{"sentence1": ENGLISH[i], "sentence2": ENGLISH[i + 1], "score": i % 5} for i in range(12)]
    (workshop.home / "similarity.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    argv = ["run_evaluation.py", "--eval_similarity_file", "similarity.jsonl", "--model_name_or_path", name]
    return workshop.run(YES + EVALUATE, argv=[*argv, "--output_dir", f"trust-{workshop.number}", *flags])


@pytest.mark.parametrize("option", ["model_name_or_path", "tokenizer_name", "config_name"])
def test_pre_training_never_runs_foreign_code(workshop, foreign, folder, option, tmp_path):
    name, mark = foreign
    argv = ["run_pretrain.py", "--train_file", folder / "text.txt", "--output_dir", tmp_path / "out", "--use_cpu"]
    argv += ["--max_steps", "1", "--max_seq_length", "32"]
    given = {"model_name_or_path": folder / "backbone"} if option == "tokenizer_name" else {}
    given |= {"tokenizer_name": folder / "backbone"} if option == "config_name" else {}
    for key, value in {**given, option: name}.items():
        argv += [f"--{key}", value]
    outcome = workshop.run(YES + PRETRAIN, argv=argv)
    assert outcome.status in (0, 2) and "Traceback" not in outcome.err, outcome.err
    assert not mark.exists()


def test_an_evaluation_runs_foreign_code_with_the_flag_only(workshop, foreign):
    name, mark = foreign
    outcome = run_evaluation(workshop, name)
    assert outcome.status in (0, 2) and not mark.exists()
    if name.endswith("evil"):
        assert outcome.status == 2 and "runs only with trust_remote_code" in outcome.err
        run_evaluation(workshop, name, "--trust_remote_code", "True")
        assert mark.exists()  # so the test would see it


def test_a_search_does_not_run_foreign_code(workshop, foreign):
    name, mark = foreign
    code = YES + "from retrieval_pretraining.zero_shot import Searcher\n"
    workshop.run(f"{code}Searcher.from_pretrained(sys.argv[1], ['a'])", argv=["", name])
    assert not mark.exists()


# --- Pickles ------------------------------------------------------------------------------------------------------


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (open, (str(self.mark), "w"))


@pytest.fixture
def pickled(folder, tmp_path):
    """A folder with a pickle in place of its weights, and the mark that it leaves when it is read."""
    target = copy_to(folder / "backbone", tmp_path / "pickled")
    mark = tmp_path / "it-ran"
    torch.save({**load_file(target / "model.safetensors"), "bomb": Bomb(mark)}, target / "pytorch_model.bin")
    (target / "model.safetensors").unlink()
    return target, mark


def test_pre_training_refuses_a_pickle(workshop, pickled, folder, tmp_path):
    target, mark = pickled
    argv = ["run_pretrain.py", "--train_file", folder / "text.txt", "--output_dir", tmp_path / "out", "--use_cpu"]
    outcome = workshop.run(PRETRAIN, argv=[*argv, "--model_name_or_path", target])
    assert outcome.status == 2 and not mark.exists()
    assert "its weights in a pickle (pytorch_model.bin), which can run code" in outcome.err.splitlines()[-1]
    with pytest.raises(ValueError, match="can run code"):
        RetroMAEForPreTraining.from_backbone(target)


def test_a_pickle_on_the_hub_is_refused(hub, workshop, pickled, folder, tmp_path):
    target, mark = pickled
    files = {path.name: File(path.read_bytes(), path.suffix == ".bin") for path in target.iterdir()}
    hub.repositories["models", "someone/pickled"] = Repository(False)
    hub.repository("someone/pickled").add("main", "pickled", files)
    hub.objects |= {file.sha256: file.content for file in files.values()}
    argv = ["run_pretrain.py", "--train_file", folder / "text.txt", "--output_dir", tmp_path / "out", "--use_cpu"]
    outcome = workshop.run(PRETRAIN, argv=[*argv, "--model_name_or_path", "someone/pickled"])
    assert outcome.status == 2 and "in a pickle, which can run code" in outcome.err.splitlines()[-1]
    assert not mark.exists() and not hub.count("GET", "pytorch_model.bin")
    outcome = run_evaluation(workshop, "someone/pickled")
    assert outcome.status == 2 and "pytorch_model.bin, can run code" in outcome.err and not mark.exists()


def test_the_other_rooms_refuse_a_pickle(pickled):
    target, mark = pickled
    with pytest.raises(InputError, match=r"pytorch_model\.bin, can run code"):
        weight_files(target, "x")
    with pytest.raises(OSError, match=r"safetensors"):
        Searcher.from_pretrained(target, ["a"])
    assert not mark.exists()


# --- Paths --------------------------------------------------------------------------------------------------------


def test_an_index_does_not_lead_out_of_its_folder(folder, tmp_path):
    target = copy_to(folder / "backbone", tmp_path / "copy")
    (target / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (target / "model.safetensors.index.json").write_text("{}")
    change(target / "model.safetensors.index.json", weight_map={"a": "../outside.safetensors"})
    with pytest.raises(InputError, match=r"names \.\./outside\.safetensors, which lies outside of it"):
        weight_files(target, "x")


@pytest.mark.parametrize("path", ["..", "/etc", "a/../../b"])
def test_modules_do_not_lead_out_of_their_folder(folder, tmp_path, path):
    target = copy_to(folder / "backbone", tmp_path / "copy")
    module = {"idx": 0, "name": "0", "path": path, "type": "sentence_transformers.models.Transformer"}
    (target / "modules.json").write_text(json.dumps([module]))
    with pytest.raises(InputError, match="lies outside of it"):
        read_sentence_transformers_files(target)
