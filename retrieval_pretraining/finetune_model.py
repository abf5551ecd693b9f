"""Any model as a `SentenceTransformer` to train: the backbone's own class, pooling, length 1; no code of ours in it.

encoder = load_trainable("outputs/mine")
encoder.model                             # the SentenceTransformer
encoder.encode_queries(["a query"])       # its vectors, as the evaluations take them
"""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.export import write_sentence_transformers_files, write_sentence_vector_files
from retrieval_pretraining.extras import import_extra, sentence_transformers_part
from retrieval_pretraining.gur_export import why_no_plain_layers, write_plain_layers
from retrieval_pretraining.model_export import check_same_vectors
from retrieval_pretraining.systems import load_encoder, quiet_loading
from retrieval_pretraining.text_encoder import SentenceTransformersEncoder, TextEncoder

_POOLINGS = {"cls": "cls", "mean": "mean", "eos": "lasttoken"}  # ours: sentence-transformers'


def load_trainable(
    model_name_or_path: str,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    pooling: str | None = None,
    max_seq_length: int | None = None,
    batch_size: int = 64,
    staging: Path | None = None,
) -> SentenceTransformersEncoder:
    """The model on the CPU, with the prompts of its own; every weight is that of the checkpoint.

    `pooling` and `max_seq_length` are by default what the checkpoint says, see `systems.load_encoder`. A GUR model
    with a head that is no layer of sentence-transformers keeps its code, which version 6 can run. `InputError` as
    `load_encoder`, and for a model that cannot be trained in this form. `staging` is a folder that the model goes
    through: of several processes only the first one can write it, so it comes first, and the others find it there.
    """
    sentence_transformers = import_extra("sentence_transformers", "sentence-transformers")
    options = {"pooling": pooling, "max_seq_length": max_seq_length, "batch_size": batch_size, "device": "cpu"}
    options |= {"revision": revision, "trust_remote_code": trust_remote_code}
    loaded = load_encoder(model_name_or_path, **options)
    with quiet_loading(loaded.name):
        if isinstance(loaded, SentenceTransformersEncoder):
            model = loaded.model
        else:
            with tempfile.TemporaryDirectory() if staging is None else nullcontext(staging) as folder:
                if not (Path(folder) / "modules.json").is_file():
                    _write(loaded, Path(folder), version=int(sentence_transformers.__version__.split(".")[0]))
                trusted = any(Path(folder).glob("*.py"))
                model = sentence_transformers.SentenceTransformer(str(folder), device="cpu", trust_remote_code=trusted)
        model = _trimmed(model)
    if not hasattr(model[0], "auto_model"):
        raise InputError(f"{model_name_or_path}: begins with {type(model[0]).__name__}, not with a transformer.")
    model.prompts = {"query": loaded.query_prompt, "document": loaded.document_prompt}
    prompts = {"query_prompt": loaded.query_prompt, "document_prompt": loaded.document_prompt}
    facts = {"name": loaded.name, "model_name_or_path": model_name_or_path, "revision": loaded.revision}
    encoder = SentenceTransformersEncoder(model, batch_size=batch_size, **prompts, **facts)
    check_same_vectors(loaded, encoder, "It cannot be fine-tuned here.")
    return encoder


def reload_weights(model, folder: str | Path):
    """The weights of a checkpoint that was saved of this model."""
    sentence_transformers = import_extra("sentence_transformers", "sentence-transformers")
    options = {"device": "cpu", "trust_remote_code": needs_remote_code(model)}
    with quiet_loading(str(folder)):
        saved = sentence_transformers.SentenceTransformer(str(folder), **options)
    model.load_state_dict(_trimmed(saved).state_dict())


def needs_remote_code(model) -> bool:
    """Whether who loads the model runs code that comes with it."""
    return bool(getattr(model[0].auto_model.config, "auto_map", None))


def _write(encoder: TextEncoder, folder: Path, *, version: int):
    """The model as a folder of sentence-transformers, of that major version."""
    model, tokenizer, length = encoder.model.float(), encoder.tokenizer, encoder.max_seq_length
    if encoder.model_type == "gur":
        if encoder.pooling != "pooler_output":
            raise InputError(f"{encoder.name}: --pooling has no effect on GUR, whose head was trained with its own.")
        reason = why_no_plain_layers(model, tokenizer)
        if reason is None:
            write_plain_layers(model, tokenizer, folder, max_seq_length=length)
            return
        if version < 6:
            raise InputError(
                f"{encoder.name}: {reason}; sentence-transformers runs it with our code from version 6 on: install "
                "that, or train it on pairs with run_pretrain.py --objective gur."
            )
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_sentence_vector_files(folder, max_seq_length=length)
        return
    pooling = encoder.pooling
    if encoder.model_type == "retromae":
        model, pooling = model.encoder, "cls" if pooling == "pooler_output" else pooling
    if pooling not in _POOLINGS:
        raise InputError(f"{encoder.name}: --pooling {pooling} cannot be trained here; use cls, mean or eos.")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    options = {"hidden_size": encoder.vector_size, "pooling": _POOLINGS[pooling]}
    write_sentence_transformers_files(folder, max_seq_length=length, **options)


def _trimmed(model):
    """Without a layer that nothing reads, BERT's for next-sentence prediction, and with vectors of length 1."""
    modules = sentence_transformers_part("modules")
    transformer = getattr(model[0], "auto_model", None)
    if getattr(transformer, "pooler", None) is not None and any(isinstance(each, modules.Pooling) for each in model):
        transformer.pooler = None
    if len(model) > 1 and not isinstance(model[-1], modules.Normalize):
        model.append(modules.Normalize())
    return model.to(torch.float32)
