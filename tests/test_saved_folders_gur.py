"""A GUR folder loads anywhere: in a fresh process, from another folder, without this package."""

import json

import numpy as np
import pytest
import torch
from fresh_process import in_fresh_process
from safetensors.torch import load_file
from tokenizers_for_tests import SENTENCES, t5_tokenizer
from toy_models import gur_config

from modeling_gur import GURForConditionalGeneration, GURForPreTraining, GURModel

TEXTS = SENTENCES[:5]
CODE_FILES = ("modeling_gur.py", "configuration_gur.py", "linear_cross_entropy.py")

# How sentence-transformers 6 takes the vectors of a model that has a head of its own.
SENTENCE_TRANSFORMERS_FILES = {
    "modules.json": [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}],
    "sentence_bert_config.json": {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}},
        "module_output_name": "sentence_embedding",
    },
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A pre-training checkpoint with its tokenizer, and the vectors and the text that it should give."""
    torch.manual_seed(0)
    tokenizer = t5_tokenizer()
    config = gur_config(vocab_size=len(tokenizer), tie_word_embeddings=False, feed_forward_proj="gated-gelu")
    model = GURForPreTraining(config).eval()
    folder = tmp_path_factory.mktemp("saved") / "my model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    vectors = model.base_model(**inputs).pooler_output.detach().numpy()
    writer = GURForConditionalGeneration.from_pretrained(folder).eval()
    return folder, vectors, writer.generate(**inputs, max_new_tokens=8, num_beams=2).tolist()


def test_auto_classes_load_every_head_in_a_process_without_the_package(saved, tmp_path):
    folder, vectors, text = saved
    code = f"""
import json, torch
from transformers import AutoModel, AutoModelForPreTraining, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers import AutoModelForSequenceClassification
options = dict(trust_remote_code=True, output_loading_info=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
inputs = tokenizer({TEXTS!r}, padding=True, return_tensors="pt")
heads = dict()
for auto in (AutoModel, AutoModelForPreTraining, AutoModelForSeq2SeqLM):
    head, info = auto.from_pretrained(folder, **options)
    assert not info["missing_keys"] and not info["unexpected_keys"], (auto, info)
    heads[auto] = head.eval()
    assert head.encoder.embed_tokens.weight is head.shared.weight
classifier, info = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3, **options)
assert set(info["missing_keys"]) == {{"classifier.weight", "classifier.bias"}}, info
assert classifier(**inputs).logits.shape == (5, 3)
writer = heads[AutoModelForSeq2SeqLM]
assert writer.lm_head.weight is not writer.shared.weight
heads[AutoModelForPreTraining].save_pretrained("again")
heads[AutoModel].save_pretrained("only the encoder")
print(json.dumps(heads[AutoModel](**inputs).pooler_output.tolist()))
print(json.dumps(writer.generate(**inputs, max_new_tokens=8, num_beams=2).tolist()))
"""
    lines = in_fresh_process(code, folder, tmp_path).splitlines()[-2:]
    assert np.abs(np.array(json.loads(lines[0])) - vectors).max() < 1e-6
    assert json.loads(lines[1]) == text
    # Saved again by a process that had the classes from the folder only, it is as complete as before.
    again = tmp_path / "again"
    maps = [json.loads((each / "config.json").read_text())["auto_map"] for each in (folder, again)]
    assert maps[0] == maps[1] and len(maps[0]) == 5
    for name in CODE_FILES:
        assert (again / name).read_text() == (folder / name).read_text()
    first, second = load_file(folder / "model.safetensors"), load_file(again / "model.safetensors")
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    GURModel.from_pretrained(tmp_path / "only the encoder")


def test_the_exported_backbone_needs_no_remote_code(saved, tmp_path):
    folder, _, text = saved
    GURForPreTraining.from_pretrained(folder).export_backbone(tmp_path / "plain")
    t5_tokenizer().save_pretrained(tmp_path / "plain")
    code = f"""
import json
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(folder)
model, info = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
assert type(model).__name__ == "T5ForConditionalGeneration" and not info["missing_keys"], info
inputs = tokenizer({TEXTS!r}, padding=True, return_tensors="pt")
print(json.dumps(model.eval().generate(**inputs, max_new_tokens=8, num_beams=2).tolist()))
"""
    assert json.loads(in_fresh_process(code, tmp_path / "plain", tmp_path).splitlines()[-1]) == text


@pytest.mark.parametrize("head", [GURModel, GURForPreTraining])
def test_sentence_transformers_gives_our_vectors(saved, head, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    if int(sentence_transformers.__version__.split(".")[0]) < 6:
        pytest.skip("sentence-transformers takes the output of a head from version 6 on")
    folder, vectors, _ = saved
    target = tmp_path / "for sentence-transformers"
    head.from_pretrained(folder).save_pretrained(target)
    t5_tokenizer().save_pretrained(target)
    for name, content in SENTENCE_TRANSFORMERS_FILES.items():
        (target / name).write_text(json.dumps(content))
    code = f"""
import json, os
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(folder, device="cpu", trust_remote_code=True)
print(json.dumps(model.encode({TEXTS!r}, batch_size=2).tolist()))
model.save("saved again")
assert set({CODE_FILES!r}) <= set(os.listdir("saved again")), os.listdir("saved again")
again = SentenceTransformer("saved again", device="cpu", trust_remote_code=True)
print(json.dumps(again.encode({TEXTS!r}).tolist()))
"""
    for line in in_fresh_process(code, target, tmp_path).splitlines()[-2:]:
        assert np.abs(np.array(json.loads(line)) - vectors).max() < 1e-6
