"""Any model as a function from texts to vectors: a checkpoint of ours, an AutoModel, a sentence-transformers folder.

    encoder = load_encoder("outputs/gur", query_prompt="bge_en")
    queries, documents = encoder.encode_queries(questions), encoder.encode_documents(texts)
    encoder.describe()  # all it takes to get the same vectors again

Shapes: n texts, H size of a vector, C chunks.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel, T5EncoderModel, UMT5EncoderModel
from transformers.utils import logging as transformers_logging

from retrieval_pretraining.encoding import (
    check_length,
    check_pooling,
    check_texts,
    encode_sequences,
    model_sequences,
)
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.extras import import_extra

logger = logging.getLogger(__name__)

PROMPTS = {  # of the BGE models (arXiv 2309.07597): before queries, not before documents
    "bge_en": "Represent this sentence for searching relevant passages: ",
    "bge_zh": "为这个句子生成表示以用于检索相关文章：",
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_ENCODER_ONLY = {"t5": T5EncoderModel, "mt5": T5EncoderModel, "umt5": UMT5EncoderModel}
_SHOWN_KEYS = 3


def load_encoder(
    model_name_or_path: str | Path,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    pooling: str | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    max_seq_length: int | None = None,
    dtype: str = "float32",
    device: str | None = None,
    batch_size: int = 64,
    random_weights: bool = False,
    seed: int = 0,
) -> TextEncoder:
    """A model that encodes, in evaluation mode, on `device` (by default CUDA where there is one).

    Args:
        model_name_or_path: a checkpoint of this project, which needs no `trust_remote_code`; any AutoModel; or a
            sentence-transformers folder, whose own pooling, normalisation and prompts are taken unless `pooling` is
            given: then it is loaded as an AutoModel.
        pooling: "cls", "mean", "eos" or "pooler_output"; None for what the checkpoint was made for, the first token
            of an AutoModel, or the mean of a T5.
        query_prompt, document_prompt: stand before each text, or a name in `PROMPTS`; None for the prompts of a
            sentence-transformers folder, else for none.
        max_seq_length: where texts are cut; None for what model and tokenizer take, 512 at most.
        dtype: of the weights, a name in `DTYPES`; vectors are float32 all the same.
        batch_size: texts that are encoded at once.
        random_weights: the same architecture and tokenizer, with weights drawn anew by `seed`.

    Raises:
        InputError: there is no such model or it cannot be loaded here, it lacks weights that its vectors depend on,
            its weights are a pickle, or an option does not suit it.
    """
    if dtype not in DTYPES:
        raise InputError(f'dtype is "{dtype}"; choose "{", ".join(DTYPES)}".')
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; use 1 or more.")
    name = str(model_name_or_path)
    config = _load("config", name, AutoConfig, revision=revision, trust_remote_code=trust_remote_code)
    options = {
        "name": name,
        "revision": revision or getattr(config, "_commit_hash", None),
        "prompts": (query_prompt, document_prompt),
        "max_seq_length": max_seq_length,
        "dtype": dtype,
        "device": device or ("cuda" if torch.cuda.is_available() else "cpu"),
        "batch_size": batch_size,
        "random_weights": random_weights,
        "trust_remote_code": trust_remote_code,
    }
    with _seeded(seed), _quiet():
        if pooling is None and config.model_type not in ("gur", "retromae") and _has_modules(name, revision):
            return _SentenceTransformersEncoder(config, **options)
        return _TransformersEncoder(config, pooling, **options)


class TextEncoder(ABC):
    """Texts -> vectors of length 1, float32 [n, H], in the order of the texts; see `load_encoder`.

    A text's vector does not depend on the others or on the size of a batch, but for rounding. All methods raise
    `InputError` for no texts, for what is no string, and for vectors that are not finite.
    """

    name: str
    query_prompt: str
    document_prompt: str

    def encode_queries(self, texts: Sequence[str], *, progress: bool | None = None) -> np.ndarray:
        return self.encode(texts, prompt=self.query_prompt, progress=progress)

    def encode_documents(self, texts: Sequence[str], *, progress: bool | None = None) -> np.ndarray:
        return self.encode(texts, prompt=self.document_prompt, progress=progress)

    def encode(self, texts: Sequence[str], *, prompt: str = "", progress: bool | None = None) -> np.ndarray:
        """Vectors of texts with a prompt before each; `progress` None shows a bar for many texts only."""
        check_texts(texts)
        vectors = self._encode([prompt + text for text in texts], progress)
        if not np.isfinite(vectors).all():
            raise InputError(
                f"{self.name} gives vectors that are not finite: it has diverged, or needs another dtype."
            )
        return vectors

    @abstractmethod
    def encode_document_chunks(
        self, texts: Sequence[str], *, chunk_size: int, progress: bool | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of chunks of up to `chunk_size` tokens [C, H], and the document that each is of, [C], ascending."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The entry of a dense system in the results of an evaluation."""

    @abstractmethod
    def _encode(self, texts: list[str], progress: bool | None) -> np.ndarray: ...


class _TransformersEncoder(TextEncoder):
    def __init__(self, config, pooling, *, name, revision, prompts, max_seq_length, dtype, device, **options):
        self.name = name
        self.query_prompt, self.document_prompt = (PROMPTS.get(prompt, prompt) or "" for prompt in prompts)
        hub = {"revision": revision, "trust_remote_code": options["trust_remote_code"]}
        self.tokenizer = _load("tokenizer", name, AutoTokenizer, **hub)
        self.model = _load_model(config, name, hub, dtype=dtype, random_weights=options["random_weights"])
        self.model.to(device).eval()
        if pooling is None and config.model_type in _ENCODER_ONLY:
            pooling = "mean"  # its first token is a word like any other
        self.pooling = check_pooling(self.model, pooling)
        self.max_seq_length = check_length(self.model.base_model, self.tokenizer, max_seq_length)
        self.batch_size = options["batch_size"]
        if self.tokenizer.pad_token_id is None:
            raise InputError(f"{name}: its tokenizer has no padding token, so texts cannot be encoded together.")
        _check_vocabulary(self.model, self.tokenizer, name)
        self._described = {"revision": revision, "dtype": dtype, "random_weights": options["random_weights"]}

    def encode_document_chunks(self, texts, *, chunk_size, progress=None):
        check_texts(texts, "documents")
        options = {"max_seq_length": chunk_size, "overflow": "chunk", "progress": progress}
        documents = [self.document_prompt + text for text in texts]
        sequences, document_of_chunk = model_sequences(self.model, self.tokenizer, documents, **options)
        return self._vectors(sequences, progress), document_of_chunk

    def describe(self):
        return {
            "model_name_or_path": self.name,
            "model_type": self.model.config.model_type,
            **self._described,
            "weights_sha256": None if self._described["random_weights"] else weights_hash(self.name),
            "pooling": self.pooling,
            "query_prompt": self.query_prompt,
            "document_prompt": self.document_prompt,
            "max_seq_length": self.max_seq_length,
            "vector_size": int(self._vectors([np.array([0])], False).shape[1]),
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "batch_size": self.batch_size,
        }

    def _encode(self, texts, progress):
        options = {"max_seq_length": self.max_seq_length, "progress": progress}
        return self._vectors(model_sequences(self.model, self.tokenizer, texts, **options)[0], progress)

    def _vectors(self, sequences, progress) -> np.ndarray:
        options = {"batch_size": self.batch_size, "pooling": self.pooling, "progress": progress}
        return encode_sequences(self.model, sequences, pad_token_id=self.tokenizer.pad_token_id, **options)


class _SentenceTransformersEncoder(TextEncoder):
    def __init__(self, config, *, name, revision, prompts, max_seq_length, dtype, device, **options):
        library = import_extra("sentence_transformers", "sentence-transformers")
        self.name, self.batch_size = name, options["batch_size"]
        try:
            self.model = library.SentenceTransformer(
                name,
                revision=revision,
                device=device,
                trust_remote_code=options["trust_remote_code"],
                model_kwargs={"dtype": DTYPES[dtype], "use_safetensors": True},
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise InputError(f"{name} cannot be loaded by sentence-transformers: {_first_line(error)}") from error
        if not options["random_weights"]:
            _check_loaded(self.model[0], name)
        elif hasattr(self.model[0], "auto_model"):
            fresh = AutoModel.from_config(config, trust_remote_code=options["trust_remote_code"])
            self.model[0].auto_model.load_state_dict(fresh.state_dict())
        else:
            raise InputError(f"{name} is no transformer: there is nothing to draw at random.")
        self.model.eval()
        if max_seq_length is not None:
            self.model.max_seq_length = max_seq_length
        own = self.model.prompts or {}
        defaults = (own.get("query", ""), own.get("document", "") or own.get("passage", ""))
        self.query_prompt, self.document_prompt = (
            default if prompt is None else PROMPTS.get(prompt, prompt)
            for prompt, default in zip(prompts, defaults, strict=True)
        )
        self._described = {"revision": revision, "dtype": dtype, "random_weights": options["random_weights"]}
        self._model_type = config.model_type

    def encode_document_chunks(self, texts, *, chunk_size, progress=None):
        raise InputError(
            f"{self.name} is a sentence-transformers folder, which takes whole texts: give --pooling to search chunks."
        )

    def describe(self):
        pooling = next((module for module in self.model if type(module).__name__ == "Pooling"), None)
        mode = getattr(pooling, "pooling_mode", None) or "its own modules"
        return {
            "model_name_or_path": self.name,
            "model_type": self._model_type,
            **self._described,
            "weights_sha256": None if self._described["random_weights"] else weights_hash(self.name),
            "pooling": f"sentence-transformers: {mode}",
            "query_prompt": self.query_prompt,
            "document_prompt": self.document_prompt,
            "max_seq_length": self.model.max_seq_length,
            "vector_size": int(self.encode(["a"], progress=False).shape[1]),
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "batch_size": self.batch_size,
        }

    def _encode(self, texts, progress):
        shown = len(texts) >= 1000 if progress is None else progress
        vectors = self.model.encode(
            texts, prompt="", batch_size=self.batch_size, normalize_embeddings=True, show_progress_bar=shown
        )
        return np.asarray(vectors, dtype=np.float32)


# --- Loading ------------------------------------------------------------------------------------------------------


def weights_hash(folder: str | Path) -> str | None:
    """SHA-256 of the safetensors files of a local folder, in the order of their names; None where it has none."""
    files = sorted(Path(folder).glob("*.safetensors")) if Path(folder).is_dir() else []
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _load_model(config, name: str, hub: dict, *, dtype: str, random_weights: bool) -> PreTrainedModel:
    model_class = _ENCODER_ONLY.get(config.model_type, AutoModel)
    if random_weights:
        make = model_class.from_config if model_class is AutoModel else model_class._from_config
        extra = {"trust_remote_code": hub["trust_remote_code"]} if model_class is AutoModel else {}
        return make(config, **extra).to(DTYPES[dtype])
    more = {"dtype": DTYPES[dtype], "use_safetensors": True, "output_loading_info": True}
    model, info = _load("model", name, model_class, **hub, **more)
    _refuse_missing(info["missing_keys"], name)
    if info.get("mismatched_keys"):
        raise InputError(f"{name}: weights have another shape than config.json says; it is of another checkpoint.")
    return model


def _refuse_missing(missing, name: str):
    # The layer for next-sentence prediction, which no pooling of an AutoModel here reads.
    missing = sorted(key for key in missing if not key.startswith(("pooler.", "encoder.pooler.")))
    if missing:
        shown = ", ".join(missing[:_SHOWN_KEYS]) + (", ..." if len(missing) > _SHOWN_KEYS else "")
        raise InputError(
            f"{name} lacks {len(missing)} weights ({shown}): its vectors would be random; give a whole checkpoint."
        )


def _check_loaded(module, name: str):
    """What sentence-transformers loaded is all in the files: it says nothing of what it had to draw at random."""
    model = getattr(module, "auto_model", None)
    if isinstance(model, PreTrainedModel):
        files = sorted(Path(name).rglob("*.safetensors")) if Path(name).is_dir() else []
        if not files:
            return
        from safetensors import safe_open

        present: set[str] = set()
        for file in files:
            with safe_open(file, framework="pt") as content:
                present.update(content.keys())
        tied = getattr(model, "all_tied_weights_keys", None) or {}
        prefix = f"{model.base_model_prefix}."
        wanted = {key for key, _ in model.named_parameters() if key not in tied}
        _refuse_missing({key for key in wanted if not present & {key, prefix + key}}, name)


def _load(what: str, name: str, auto, **options):
    try:
        return auto.from_pretrained(name, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, TypeError) as error:
        raise InputError(f"{name}: its {what} cannot be loaded: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _has_modules(name: str, revision: str | None) -> bool:
    if Path(name).is_dir():
        return (Path(name) / "modules.json").is_file()
    from transformers.utils import cached_file

    found = cached_file(name, "modules.json", revision=revision, _raise_exceptions_for_missing_entries=False)
    return found is not None


def _check_vocabulary(model, tokenizer, name: str):
    known = model.get_input_embeddings().num_embeddings
    highest = max(tokenizer.get_vocab().values(), default=0)
    if highest >= known:
        raise InputError(
            f"{name}: its tokenizer has token {highest}, but the model knows {known} tokens; they do not fit."
        )


@contextmanager
def _seeded(seed: int):
    """Whatever is drawn in here is drawn by `seed`, and leaves no trace outside."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


@contextmanager
def _quiet():
    """Without the bars and tables of loading: what matters of them is an error here."""
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
