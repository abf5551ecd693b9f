"""Runs through the doors as a client of the loopback Hub makes them, and what a commit has to hold."""

import json
from pathlib import Path

from documents_for_tests import chinese_documents, write_rows

TOKEN = "hf_" + "secretTokenOfMe" * 2
SECRET_PATH = "home-of-somebody"  # is part of every path on this machine, and of nothing that is pushed

PRETRAIN = "import sys, run_pretrain; sys.exit(run_pretrain.main())"
EVALUATE = "import sys, run_evaluation; sys.exit(run_evaluation.main())"
FINETUNE = "import sys, run_finetune; sys.exit(run_finetune.main())"
MINE = "import sys, mine_pairs; sys.exit(mine_pairs.main())"
PUSH = "import sys, retrieval_pretraining.hub as hub; sys.exit(hub.main())"

_QUICK = ["--use_cpu", "--disable_tqdm", "True", "--per_device_train_batch_size", "4"]
_TINY_T5 = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_decoder_layers=1,num_heads=4"


def train(workshop, folder: Path, name: str, *flags, push: bool = True, output: str | None = None, **options):
    """A run of six steps from the backbone in `folder`, which saves at each second one."""
    argv = ["run_pretrain.py", "--model_name_or_path", folder / "backbone", "--train_file", folder / "text.txt"]
    argv += ["--output_dir", folder / (output or name.replace("/", "-")), *_QUICK]
    argv += ["--max_steps", "6", "--save_steps", "2", "--max_seq_length", "32"]
    argv += ["--push_to_hub", "True", "--hub_model_id", name] if push else []
    return workshop.run(PRETRAIN, argv=[*argv, *flags], **options)


def train_gur(workshop, folder: Path, name: str):
    """A run of GUR from nothing, of two steps; it pushes to where the name of its output folder says."""
    documents = write_rows(folder / "documents.jsonl", chinese_documents(12))
    argv = ["run_pretrain.py", "--objective", "gur", "--config_name", "t5", "--config_overrides", _TINY_T5, *_QUICK]
    argv += ["--tokenizer_vocab_size", "600", "--train_file", documents, "--output_dir", folder / name]
    argv += ["--max_steps", "2", "--save_steps", "1", "--push_to_hub", "True", "--hub_always_push", "True"]
    return workshop.run(PRETRAIN, argv=argv)


def assert_whole(files: dict, architecture: str = "retromae"):
    """What a commit holds loads everywhere, and nothing in it is nobody's business."""
    config = json.loads(files["config.json"].content)
    assert {"AutoConfig", "AutoModel", "AutoModelForPreTraining"} <= config["auto_map"].keys()
    for reference in config["auto_map"].values():
        assert f"{reference.split('.')[0]}.py" in files
    names = {"model.safetensors", f"configuration_{architecture}.py", "linear_cross_entropy.py", "README.md"}
    names |= {"tokenizer.json", "tokenizer_config.json", "modules.json", "sentence_bert_config.json"}
    assert names <= files.keys(), names - files.keys()
    assert files["model.safetensors"].lfs and not files["config.json"].lfs
    for name, file in files.items():
        assert not name.startswith(("_", "training_args")) and SECRET_PATH.encode() not in file.content, name
        assert TOKEN.encode() not in file.content, name
