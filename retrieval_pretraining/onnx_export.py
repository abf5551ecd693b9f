"""The sentence vector as one ONNX graph: token ids in, vectors of length 1 out, for any runtime.

    onnx/model.onnx     input_ids, attention_mask [batch, sequence] int64 -> sentence_embedding [batch, size] float32
    tokenizer.json      cuts at the model's length and pads, without being told to

Pooling and normalisation are in the graph; batch and sequence are of any size, and padding may be on either side. What
was written is run by onnxruntime and compared with the model before anybody sees it. Needs the extra `onnx`.
"""

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from modeling_retromae import first_states
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.extras import import_extra
from retrieval_pretraining.text_encoder import SentenceTransformersEncoder, TextEncoder

OPSET = 18
TOLERANCE = 1e-4  # of a vector of length 1, in every coordinate

_INPUTS, _OUTPUT = ("input_ids", "attention_mask"), "sentence_embedding"
_MOST_BYTES_IN_ONE_FILE = 1_900_000_000  # protobuf holds 2 GB


class SentenceVector(torch.nn.Module):
    """A model as a function of two tensors: `[B, L]` ids and mask -> `[B, H]`, of length 1."""

    def __init__(self, model, pooling: str):
        super().__init__()
        self.encoder, self.pooling = model, pooling

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        output = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        if self.pooling == "pooler_output":
            vectors_BH = output.pooler_output
        elif self.pooling == "mean":
            mask_BL1 = attention_mask[..., None].float()
            vectors_BH = (output.last_hidden_state * mask_BL1).sum(1) / mask_BL1.sum(1).clamp(min=1)
        elif self.pooling == "cls":
            vectors_BH = first_states(output.last_hidden_state, attention_mask)
        else:  # eos: the first of the texts read backwards
            vectors_BH = first_states(output.last_hidden_state.flip(1), attention_mask.flip(1))
        return F.normalize(vectors_BH.float(), dim=-1)


def export_onnx(encoder: TextEncoder, folder: str | Path, *, opset: int = OPSET) -> Path:
    """Writes the model, with the encoder's pooling, and its tokenizer; returns the path of the ONNX file.

    Raises `InputError` where a package is missing, for vectors that only sentence-transformers can make, for a model
    that the exporter of torch cannot take, and if the graph does not give the model's vectors.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        import_extra(package, "onnx")
    if isinstance(encoder, SentenceTransformersEncoder):
        raise InputError(
            f"{encoder.name}: its vectors come out of modules of sentence-transformers, which are not exported: name "
            "a pooling, to export the model without them, or export the checkpoint that the folder was made from."
        )
    model = copy.deepcopy(encoder.model.base_model).float().cpu().eval()
    if "T5" in type(getattr(model, "encoder", model)).__name__:
        model.set_attn_implementation("eager")  # the graph of its sdpa cannot be decomposed
    function = SentenceVector(model, encoder.pooling).eval()
    path = Path(folder) / "onnx/model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    with _quiet():
        try:
            program = torch.onnx.export(
                function,
                _example(encoder, 2, 8),
                input_names=_INPUTS,
                output_names=(_OUTPUT,),
                dynamic_shapes={name: dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC) for name in _INPUTS},
                opset_version=opset,
                dynamo=True,
                verbose=False,
            )
        except Exception as error:  # of many kinds
            raise InputError(
                f"{encoder.name}: the exporter of torch {torch.__version__} cannot take this {encoder.model_type} "
                f"({_cause(error)}); use another format."
            ) from error
    _forget_the_machine(program.model)
    program.save(path, external_data=size > _MOST_BYTES_IN_ONE_FILE)
    _check(encoder, function, path)
    _save_tokenizer(encoder, folder)
    return path


def onnx_vectors(path: str | Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """What onnxruntime makes of token ids and mask, `[B, L]` int64 each: vectors float32 `[B, H]`."""
    onnxruntime = import_extra("onnxruntime", "onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run([_OUTPUT], dict(inputs))[0]


def _example(encoder: TextEncoder, batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of no special token, and a mask whose later rows are padded more and more."""
    known = np.setdiff1d(np.arange(len(encoder.tokenizer)), encoder.tokenizer.all_special_ids)
    ids_BL = torch.from_numpy(np.random.default_rng(length).choice(known, (batch, length)))
    lengths_B1 = (length - torch.arange(batch)[:, None]).clamp(min=1)
    return ids_BL, (torch.arange(length) < lengths_B1).long()


def _check(encoder: TextEncoder, function: SentenceVector, path: Path):
    longest = min(encoder.max_seq_length or 512, 512)
    for batch, length in ((1, 3), (3, min(17, longest)), (1, longest)):
        ids_BL, mask_BL = _example(encoder, batch, length)
        with torch.no_grad():
            expected = function(ids_BL, mask_BL).numpy()
        found = onnx_vectors(path, dict(zip(_INPUTS, (ids_BL.numpy(), mask_BL.numpy()), strict=True)))
        off = np.abs(found - expected).max()
        if not off <= TOLERANCE:  # nor is a number that is none
            raise InputError(
                f"{encoder.name}: the ONNX graph gives other vectors than the model (by {off:.2g} for {batch} x "
                f"{length} tokens); this {encoder.model_type} cannot be exported with torch {torch.__version__}."
            )


def _forget_the_machine(model):
    """Takes out the lines of code, with their paths, that the exporter notes at each node."""
    for graph in (model.graph, *model.functions.values()):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.metadata_props.clear()


def _save_tokenizer(encoder: TextEncoder, folder: str | Path):
    tokenizer = copy.deepcopy(encoder.tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.enable_truncation(encoder.max_seq_length)
        backend.enable_padding(
            pad_id=tokenizer.pad_token_id, pad_token=tokenizer.pad_token, direction=tokenizer.padding_side
        )
    tokenizer.model_max_length = encoder.max_seq_length
    tokenizer.save_pretrained(folder)


def _cause(error: BaseException) -> str:
    """What the exporter stumbled over, below its own advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks about packages that it does not need."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
