"""What a run writes loads anywhere: in a fresh process, from another folder, without this package."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fresh_process import in_fresh_process, run_ours
from safetensors.torch import load_file, save_file
from tokenizers_for_tests import SENTENCES, bert_tokenizer
from toy_models import retromae_config

from modeling_retromae import RetroMAEForPreTraining, RetroMAEModel
from retrieval_pretraining.export import export_encoder, write_sentence_transformers_files

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder as the Trainer writes it, and the vectors that it should give."""
    torch.manual_seed(0)
    tokenizer = bert_tokenizer()
    config = retromae_config(initializer_range=0.3)
    config.encoder_config.initializer_range = 0.3
    config.vocab_size = len(tokenizer)
    model = RetroMAEForPreTraining(config).eval()
    folder = tmp_path_factory.mktemp("saved") / "my model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_sentence_transformers_files(folder, max_seq_length=32)
    export_encoder(model, tokenizer, folder / "encoder", max_seq_length=32)
    texts = SENTENCES[:5]
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=32, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    vectors = model.retromae(**inputs).pooler_output.detach().numpy()
    return folder, texts, vectors


def test_auto_classes_load_every_head_in_a_process_without_the_package(saved, tmp_path):
    folder, texts, vectors = saved
    code = f"""
import json, torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model, info = AutoModel.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
assert not info["missing_keys"], info
inputs = tokenizer({texts!r}, padding=True, return_tensors="pt")
vectors = model.eval()(**inputs).pooler_output.detach()
for auto in (AutoModelForMaskedLM, AutoModelForPreTraining):
    head, info = auto.from_pretrained(folder, trust_remote_code=True, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], (auto, info)
    assert head.mlm_head.decoder.weight is head.get_input_embeddings().weight
head.save_pretrained("again")
model.save_pretrained("only the encoder")
print(json.dumps(vectors.tolist()))
"""
    loaded = np.array(json.loads(in_fresh_process(code, folder, tmp_path).splitlines()[-1]))
    assert np.abs(loaded - vectors).max() < 1e-6
    # Saved again by a process that had the classes from the folder only, it is as complete as before.
    again = tmp_path / "again"
    assert (
        json.loads((again / "config.json").read_text())["auto_map"]
        == json.loads((folder / "config.json").read_text())["auto_map"]
    )
    for name in ("modeling_retromae.py", "configuration_retromae.py", "linear_cross_entropy.py"):
        assert (again / name).read_text() == (folder / name).read_text()
    first, second = load_file(folder / "model.safetensors"), load_file(again / "model.safetensors")
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    RetroMAEModel.from_pretrained(tmp_path / "only the encoder")


def test_sentence_transformers_gives_our_vectors_from_the_folder_and_from_the_plain_encoder(saved, tmp_path):
    folder, texts, vectors = saved
    code = f"""
import json
from sentence_transformers import SentenceTransformer
for path, flags in ((folder, dict(trust_remote_code=True)), (folder + "/encoder", dict())):
    model = SentenceTransformer(path, device="cpu", **flags)
    assert model.max_seq_length == 32, model.max_seq_length
    kinds = [type(module).__name__ for module in model]
    assert kinds == ["Transformer", "Pooling", "Normalize"], kinds
    print(json.dumps(model.encode({texts!r}).tolist()))
model.save("saved by sentence-transformers")
print(json.dumps(SentenceTransformer("saved by sentence-transformers", device="cpu").encode({texts!r}).tolist()))
"""
    expected = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    lines = in_fresh_process(code, folder, tmp_path).splitlines()[-3:]
    for line in lines:
        assert np.abs(np.array(json.loads(line)) - expected).max() < 1e-5


def test_fine_tuning_with_sentence_transformers_keeps_the_code_files(saved, tmp_path):
    pytest.importorskip("sentence_transformers")
    folder, texts, _ = saved
    code = f"""
import os
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(folder, device="cpu", trust_remote_code=True)
model.save("saved")
files = os.listdir("saved")
for name in ("modeling_retromae.py", "configuration_retromae.py", "linear_cross_entropy.py"):
    assert name in files, files
SentenceTransformer("saved", device="cpu", trust_remote_code=True).encode({texts!r})
"""
    in_fresh_process(code, folder, tmp_path)


def test_the_plain_encoder_is_a_bert_without_remote_code(saved, tmp_path):
    folder, texts, vectors = saved
    code = f"""
import json
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(folder + "/encoder")
model, info = AutoModelForMaskedLM.from_pretrained(folder + "/encoder", output_loading_info=True)
assert type(model).__name__ == "BertForMaskedLM" and not info["missing_keys"], info
states = model.eval().bert(**tokenizer({texts!r}, padding=True, return_tensors="pt")).last_hidden_state
print(json.dumps(states[:, 0].tolist()))
"""
    loaded = np.array(json.loads(in_fresh_process(code, folder, tmp_path).splitlines()[-1]))
    assert np.abs(loaded - vectors).max() < 1e-6


def test_importing_the_package_registers_the_auto_classes(saved):
    folder, _, _ = saved
    code = (
        "import sys, retrieval_pretraining\n"
        "from transformers import AutoModel, AutoModelForPreTraining\n"
        "print(type(AutoModel.from_pretrained(sys.argv[1])).__module__,"
        " type(AutoModelForPreTraining.from_pretrained(sys.argv[1])).__name__)"
    )
    assert run_ours(code, ROOT, folder).split() == ["modeling_retromae", "RetroMAEForPreTraining"]


def test_shipped_code_imports_flat_siblings_torch_and_transformers_only():
    siblings = {"configuration_gur", "configuration_retromae", "linear_cross_entropy"}
    for name in sorted(siblings | {"modeling_gur", "modeling_retromae"}):
        for line in (ROOT / f"{name}.py").read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]):
                module = words[1].split(".")
                allowed = {"torch", "transformers", *sys.stdlib_module_names}
                assert module[0] in allowed | siblings or (module[0] == "" and module[1] in siblings), line
                assert not (module[0] == "" and len(module) > 2), line


def test_half_precision_weights_are_trained_in_fp32(saved, tmp_path):
    folder, _, _ = saved
    weights = load_file(folder / "encoder/model.safetensors")
    target = tmp_path / "half"
    target.mkdir()
    save_file({name: value.half() for name, value in weights.items()}, target / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "encoder/config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))
    model = RetroMAEForPreTraining.from_backbone(target)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
