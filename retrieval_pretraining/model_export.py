"""A checkpoint of this project in the form that another tool takes: which form, whether it can have it, where it goes.

| format | from | what is written |
|---|---|---|
| encoder | RetroMAE, DupMAE, MLM | the backbone's own class with its MLM head, to go on training or to fill masks |
| sentence-transformers | any | encoder, pooling, normalisation; GUR with its head; no code of ours where that can be |
| t5 | GUR | a plain T5, mT5 or UMT5 with its decoder |
| onnx | any, also models of others | the sentence vector as a graph |
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers

from modeling_gur import GURForPreTraining, GURModel
from modeling_retromae import RetroMAEForMaskedLM, RetroMAEModel
from retrieval_pretraining.arguments import _check_choice, _help
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.export import (
    export_encoder,
    write_sentence_transformers_files,
    write_sentence_vector_files,
)
from retrieval_pretraining.gur_export import why_no_plain_layers, write_plain_layers
from retrieval_pretraining.model_folders import find_model, read_config
from retrieval_pretraining.onnx_export import OPSET, export_onnx
from retrieval_pretraining.systems import load_encoder
from retrieval_pretraining.text_encoder import TextEncoder

FORMATS = ("encoder", "sentence-transformers", "t5", "onnx")
RECORD = "export.json"  # what was exported; also how an earlier export is known, which alone may be overwritten

_PROMPTS = "config_sentence_transformers.json"
_TEXTS = ("a", "A text of a few words.", "another, longer text of words " * 20 + "and an end")


@dataclass
class ExportArguments:
    """Which model, in which form, to where."""

    model_name_or_path: str | None = field(default=None, metadata=_help("A folder, or a name on the Hub."))
    model_revision: str | None = field(default=None, metadata=_help("Branch, tag or commit of the model on the Hub."))
    format: str | None = field(default=None, metadata=_help("What is written.", choices=list(FORMATS)))
    output_dir: str | None = field(default=None, metadata=_help("A new folder."))
    overwrite_output_dir: bool = field(default=False, metadata=_help("Replace an earlier export."))
    pooling: str | None = field(
        default=None,
        metadata=_help("onnx: cls, mean, eos or pooler_output. [default: what the checkpoint is made for]"),
    )
    max_seq_length: int | None = field(
        default=None, metadata=_help("Tokens at which texts are cut. [default: the checkpoint's own]")
    )

    def check(self):
        for name in ("model_name_or_path", "format", "output_dir"):
            if getattr(self, name) is None:
                raise InputError(f"Give --{name}: see --help.")
        _check_choice("format", self.format, FORMATS)
        if self.pooling is not None:
            _check_choice("pooling", self.pooling, ("cls", "mean", "eos", "pooler_output"))
            if self.format != "onnx":
                raise InputError("--pooling has no effect on this format, which keeps the checkpoint's own: omit it.")
        if self.max_seq_length is not None and self.format == "t5":
            raise InputError("--max_seq_length has no effect on --format t5, which has no limit: leave it out.")


def export_model(args: ExportArguments, *, say: Callable[[str], None] = print) -> Path:
    """Writes the export and returns its folder, which is there as a whole or not at all.

    Raises `InputError` for a folder that is not empty, and for a model that has no such form.
    """
    args.check()
    output = Path(args.output_dir)
    _check_output(output, args)
    source, commit = find_model(args.model_name_or_path, revision=args.model_revision)
    if output.exists() and output.resolve() == source.resolve():
        raise InputError(f"--output_dir {output} is --model_name_or_path too: give another folder.")
    model_type = read_config(source, args.model_name_or_path)["model_type"]
    _check_kind(args.format, model_type)
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        try:
            partial.mkdir(parents=True)
        except OSError as error:
            raise InputError(f"--output_dir {output} cannot be written to: {error.strerror}.") from error
        facts = _WRITERS[args.format](source, partial, args, model_type, say)
        # A local path tells nobody but its owner where the model is from.
        named = Path(args.model_name_or_path).expanduser()
        name = named.resolve().name if named.exists() else args.model_name_or_path
        record = {"format": args.format, "model": name, "revision": commit, **facts}
        record |= {"torch": torch.__version__, "transformers": transformers.__version__}
        (partial / RECORD).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if output.exists():
            shutil.rmtree(output)
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return output


def _check_output(output: Path, args: ExportArguments):
    if not output.exists():
        return
    if not output.is_dir():
        raise InputError(f"--output_dir {output} is a file: give a folder.")
    if not any(output.iterdir()):
        return
    if not (output / RECORD).is_file():
        raise InputError(f"--output_dir {output} holds files that are no earlier export: give another folder.")
    if not args.overwrite_output_dir:
        raise InputError(
            f"--output_dir {output} holds an earlier export: give another folder, or --overwrite_output_dir True."
        )


def _check_kind(wanted: str, model_type: str):
    if wanted == "onnx" or (wanted == "sentence-transformers" and model_type in ("retromae", "gur")):
        return
    if wanted == "encoder" and model_type == "gur":
        raise InputError(
            "--format encoder: the sentence vector of GUR is made by its head, which a plain encoder has not; use "
            "sentence-transformers or onnx for its vectors, t5 for the T5 inside."
        )
    if wanted == "t5" and model_type == "retromae":
        raise InputError("--format t5 is for GUR; a RetroMAE model has no T5 in it: use encoder.")
    if model_type not in ("retromae", "gur"):
        raise InputError(
            f"--format {wanted} is for models of this project; this is a plain {model_type}, which other tools load "
            "as it is."
        )


# --- The formats --------------------------------------------------------------------------------------------------


def _write_encoder(source, folder, args, model_type, say):
    text_encoder = _text_encoder(source, args)
    model = _whole(RetroMAEForMaskedLM, source, "sentence-transformers")
    length = text_encoder.max_seq_length
    export_encoder(model, text_encoder.tokenizer, folder, max_seq_length=length)
    _copy_prompts(source, folder)
    return {"pooling": "cls", "normalized": True, "max_seq_length": length}


def _write_sentence_transformers(source, folder, args, model_type, say):
    ours = _text_encoder(source, args)
    tokenizer, length = ours.tokenizer, ours.max_seq_length
    facts = {"normalized": True, "max_seq_length": length}
    if model_type == "retromae":
        # The bare encoder: servers know the names of its weights, and not all of them those below an MLM head.
        RetroMAEModel.from_pretrained(source).encoder.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_sentence_transformers_files(folder, max_seq_length=length)
        facts |= {"pooling": "cls", "trust_remote_code": False}
    else:
        model = GURModel.from_pretrained(source).eval()
        reason = why_no_plain_layers(model, tokenizer)
        facts |= {"pooling": model.config.pooling, "trust_remote_code": reason is not None}
        if reason is None:
            write_plain_layers(model, tokenizer, folder, max_seq_length=length)
        else:
            say(f"It needs trust_remote_code=True, and sentence-transformers 6: {reason}.")
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            write_sentence_vector_files(folder, max_seq_length=length)
    _copy_prompts(source, folder)
    if not facts["trust_remote_code"]:
        check_same_vectors(ours, load_encoder(folder, device="cpu"), "Use another format.")
    return facts


def _write_t5(source, folder, args, model_type, say):
    tokenizer = _text_encoder(source, args).tokenizer
    _whole(GURForPreTraining, source, "sentence-transformers").export_backbone(folder)
    tokenizer.save_pretrained(folder)
    return {}


def _write_onnx(source, folder, args, model_type, say):
    encoder = _text_encoder(source, args)
    export_onnx(encoder, folder)
    if model_type != "gur":
        # What transformers.js asks for. A T5's would say that there is a decoder.
        config = getattr(encoder.model.config, "encoder_config", encoder.model.config)
        config.save_pretrained(folder)
    facts = {"pooling": encoder.pooling, "normalized": True, "max_seq_length": encoder.max_seq_length}
    prompts = {"query_prompt": encoder.query_prompt, "document_prompt": encoder.document_prompt}
    return {**facts, **prompts, "opset": OPSET, "weights_sha256": encoder.weights_sha256}


_WRITERS = {
    "encoder": _write_encoder,
    "sentence-transformers": _write_sentence_transformers,
    "t5": _write_t5,
    "onnx": _write_onnx,
}


def _text_encoder(source: Path, args: ExportArguments) -> TextEncoder:
    return load_encoder(source, pooling=args.pooling, max_seq_length=args.max_seq_length, device="cpu", batch_size=8)


def _whole(model_class, source: Path, otherwise: str):
    """The model, none of whose weights is random."""
    model, info = model_class.from_pretrained(source, output_loading_info=True)
    if info["missing_keys"]:
        parts = ", ".join(sorted({name.split(".")[0] for name in info["missing_keys"]}))
        raise InputError(f"{source}: has no {parts}, which this format needs; use {otherwise}, which needs none.")
    return model


def _copy_prompts(source: Path, folder: Path):
    """Prompts that the user gave the checkpoint go with it."""
    if (source / _PROMPTS).is_file():
        prompts = json.loads((source / _PROMPTS).read_text(encoding="utf-8"))
        path = folder / _PROMPTS
        written = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        kept = {name: prompts[name] for name in ("prompts", "default_prompt_name") if name in prompts}
        path.write_text(json.dumps({**written, **kept}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def check_same_vectors(ours: TextEncoder, theirs: TextEncoder, advice: str):
    """`InputError` unless two forms of a model give the same vectors."""
    off = np.abs(theirs.encode(_TEXTS) - ours.encode(_TEXTS)).max()
    if not off < 1e-4:
        raise InputError(f"In this form the model gives other vectors than the checkpoint, by {off:.2g}. {advice}")
