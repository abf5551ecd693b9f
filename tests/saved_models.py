"""Models of every kind that an encoder is loaded from, saved as their own classes save them."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers_for_tests import bert_tokenizer, t5_tokenizer, unigram_tokenizer
from toy_models import encoder_config, gur_config, retromae_config, toy_t5
from transformers import BertForMaskedLM, XLMRobertaModel

from modeling_gur import GURForPreTraining
from modeling_retromae import RetroMAEForPreTraining

KINDS = ("bert", "xlm-roberta", "t5", "retromae", "gur")


def toy(kind: str):
    """A model whose vectors differ a lot, and its tokenizer."""
    torch.manual_seed(0)
    tokenizer = {"xlm-roberta": unigram_tokenizer, "t5": t5_tokenizer, "gur": t5_tokenizer}.get(kind, bert_tokenizer)()
    size = {"vocab_size": len(tokenizer), "initializer_range": 0.3}
    if kind == "bert":
        model = BertForMaskedLM(encoder_config("bert", **size))
    elif kind == "xlm-roberta":
        model = XLMRobertaModel(encoder_config("xlm-roberta", **size), add_pooling_layer=False)
    elif kind == "t5":
        model = toy_t5()
        model.resize_token_embeddings(len(tokenizer))
    elif kind == "gur":
        model = GURForPreTraining(gur_config(vocab_size=len(tokenizer)))
    else:
        config = retromae_config()
        config.vocab_size = len(tokenizer)
        config.initializer_range = config.encoder_config.initializer_range = 0.3
        model = RetroMAEForPreTraining(config)
    return model.eval(), tokenizer


def save(kind: str, folder: Path) -> Path:
    model, tokenizer = toy(kind)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_all(root: Path) -> dict[str, Path]:
    return {kind: save(kind, root / kind) for kind in KINDS}


def copy_to(folder: Path, target: Path) -> Path:
    """One to spoil."""
    target.mkdir(exist_ok=True)
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def change(path: Path, **fields):
    """Sets fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **fields}), encoding="utf-8")


def sentence_transformers_folder(folders, folder, *, dense=False, pooling="mean", normalize=True):
    """Written by the installed version itself, whatever its format is."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

    modules = [Transformer(str(folders["bert"]), max_seq_length=20), Pooling(32, pooling)]
    modules += [Dense(32, 8)] * dense + [Normalize()] * normalize
    prompts = {"query": "query: ", "document": "text: "}
    model = SentenceTransformer(modules=modules, device="cpu", prompts=prompts)
    model.save(str(folder))
    return model
