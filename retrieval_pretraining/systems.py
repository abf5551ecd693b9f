"""Any model as an encoder of queries and documents: what an evaluation compares.

    encoder = load_encoder("outputs/gur")
    documents, scores = search(encoder.encode_queries(queries), encoder.encode_documents(texts), k=10)

Checkpoints of this project, models of transformers and folders of sentence-transformers, all from safetensors. No
weight is left to chance: what the vectors need and the checkpoint lacks is an error, and random weights are asked for.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, AutoTokenizer
from transformers.utils import logging as library_logging

from retrieval_pretraining.encoding import OUR_MODELS, check_length, check_pooling
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.extras import import_extra
from retrieval_pretraining.model_folders import (
    SentenceTransformersFiles,
    find_model,
    read_config,
    read_sentence_transformers_files,
    sha256_of,
    weight_files,
)
from retrieval_pretraining.search import check_device
from retrieval_pretraining.text_encoder import SentenceTransformersEncoder, TextEncoder, check_batch_size

__all__ = ["DTYPES", "PROMPTS", "TextEncoder", "load_encoder", "resolve_prompt"]

logger = logging.getLogger(__name__)

# Known prompts by name: what the English and the Chinese BGE models were trained with before each query.
PROMPTS = {
    "bge_en": "Represent this sentence for searching relevant passages: ",
    "bge_zh": "为这个句子生成表示以用于检索相关文章：",
}
DTYPES = ("float32", "bfloat16", "float16")

_T5_MODELS = ("t5", "mt5", "umt5")


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
    device: str | torch.device | None = None,
    batch_size: int = 64,
    random_weights: bool = False,
    seed: int = 0,
) -> TextEncoder:
    """The encoder in a folder or on the Hub.

    Args:
        model_name_or_path: a checkpoint of this project, whose code is that of this package; a model of transformers,
            of a T5 the encoder; or a folder of sentence-transformers. What the files of the latter say about pooling,
            prompts and length holds wherever the options leave it open.
        trust_remote_code: whether other code that comes with a model may run.
        pooling: "cls", "mean", "eos" or "pooler_output", see `encode_texts`. None or "auto": that of the folder; else
            the sentence vector of our models, "mean" for the encoder of a T5, "cls" for others. A pooling that is
            named leaves out what sentence-transformers has after the model, such as a dense layer.
        query_prompt, document_prompt: stand before each query and document; names in `PROMPTS` stand for those. None:
            that of the folder, else none. "" is none.
        dtype: "float32", "bfloat16" or "float16", whatever the checkpoint is in; the vectors are float32 in any case.
        device: by default a GPU if there is one.
        random_weights: the same model and tokenizer, with weights drawn anew from `seed`: what to compare with.

    Raises:
        InputError: no such model, or the Hub cannot be reached; no configuration, tokenizer or safetensors; weights
            that the vectors need are missing or of another size; custom code without `trust_remote_code`; an option
            that does not suit the model; sentence-transformers is needed and not installed.
    """
    name = str(model_name_or_path)
    if dtype not in DTYPES:
        raise InputError(f'dtype is "{dtype}"; choose "float32", "bfloat16" or "float16".')
    check_batch_size(batch_size)
    device = check_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    folder, commit = find_model(model_name_or_path, revision=revision)
    files = read_sentence_transformers_files(folder)
    pooling = None if pooling == "auto" else pooling
    options = dict(
        name=(Path(name).expanduser().resolve() if Path(name).expanduser().is_dir() else Path(name)).name,
        query_prompt=resolve_prompt(query_prompt, "" if files is None else files.query_prompt),
        document_prompt=resolve_prompt(document_prompt, "" if files is None else files.document_prompt),
        batch_size=batch_size,
        model_name_or_path=name,
        revision=commit,
        random_weights=random_weights,
    )
    if files is not None and not files.cosine:
        logger.warning("%s compares by dot products of vectors of any length; here they get length 1: cosine.", name)
    loading = dict(name=name, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code)
    if files is not None and pooling is None and not _is_all_of_it(files, name):
        model = _load_sentence_transformers(folder, files, **loading)
        if random_weights:
            _draw_anew(model, files, seed=seed, **loading)
        else:
            options["weights_sha256"] = sha256_of(sorted(folder.rglob("*.safetensors")))
        return SentenceTransformersEncoder(model.to(device).eval(), max_seq_length=max_seq_length, **options)

    transformer = folder if files is None else files.transformer
    tokenizer = _load_tokenizer(transformer, name, trust_remote_code)
    missing: list[str] = []
    if random_weights:
        model = _random_model(transformer, seed=seed, **loading)
    else:
        model, missing = _load_model(transformer, **loading)
        options["weights_sha256"] = sha256_of(weight_files(transformer, name))
    if pooling is None and files is not None:
        pooling = files.pooling
    if pooling is None and model.config.model_type in _T5_MODELS:
        pooling = "mean"
    pooling = check_pooling(model, pooling)
    _check_missing(missing, model, pooling, name)
    if pooling != "pooler_output" and "add_pooling_layer" in signature(type(model).__init__).parameters:
        model.pooler = None  # a layer for next-sentence prediction, which nothing reads
    if max_seq_length is None and files is not None:
        max_seq_length = files.max_seq_length or _longest(model, tokenizer)
    model = model.to(device).eval()
    return TextEncoder(model, tokenizer, pooling=pooling, max_seq_length=max_seq_length, **options)


def resolve_prompt(given: str | None, own: str) -> str:
    """The prompt that was given, or that it is the name of; without one that of the model."""
    return own if given is None else PROMPTS.get(given, given)


def _is_all_of_it(files: SentenceTransformersFiles, name: str) -> bool:
    """Whether model and pooling make the vector, so that no module of sentence-transformers has to run."""
    if files.plain:
        return True
    only_transformer = files.modules in (("Transformer",), ("Transformer", "Normalize"))
    return only_transformer and read_config(files.transformer, name)["model_type"] in OUR_MODELS


def _longest(model, tokenizer) -> int | None:
    """What model and tokenizer take, also more than 512; None if neither says."""
    unknown = 10**9
    longest = check_length(model.base_model, tokenizer, None, most=unknown)
    return None if longest == unknown else longest


# --- Loading ---------------------------------------------------------------------------------------------------------


@contextmanager
def quiet_loading(name: str) -> Iterator[None]:
    """The library says nothing about weights, which are checked here; its errors become `InputError`."""
    verbosity, bars = library_logging.get_verbosity(), library_logging.is_progress_bar_enabled()
    library_logging.set_verbosity_error()
    library_logging.disable_progress_bar()
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        custom = "trust_remote_code" in str(error)
        reason = "it brings code of its own, which runs only with trust_remote_code" if custom else _first_line(error)
        raise InputError(f"{name}: cannot be loaded: {reason}.") from error
    finally:
        library_logging.set_verbosity(verbosity)
        if bars:
            library_logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _load_tokenizer(folder: Path, name: str, trust_remote_code: bool):
    with quiet_loading(f"{name}: its tokenizer"):
        read_config(folder, name)  # which the library reads too, with an error of many lines
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    if len(tokenizer) < len(tokenizer.all_special_ids) + 10:  # what the library makes of a folder without one
        raise InputError(
            f"{name}: there is no tokenizer; copy tokenizer.json and tokenizer_config.json into its folder."
        )
    return tokenizer


def _config_and_class(folder: Path, name: str, trust_remote_code: bool) -> tuple[Any, Any, bool]:
    """Configuration, Auto class and whether the model's own code runs: ours does not, the package has it."""
    model_type = read_config(folder, name)["model_type"]
    trusted = trust_remote_code and model_type not in OUR_MODELS
    config = AutoConfig.from_pretrained(folder, trust_remote_code=trusted)
    return config, AutoModelForTextEncoding if model_type in _T5_MODELS else AutoModel, trusted


def _load_model(folder: Path, *, name: str, dtype: torch.dtype, trust_remote_code: bool) -> tuple[Any, list[str]]:
    """The model, and the names of the weights that are not in the checkpoint or of another size there."""
    weight_files(folder, name)
    with quiet_loading(name):
        config, auto, trusted = _config_and_class(folder, name, trust_remote_code)
        model, info = auto.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=trusted,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    mismatched = (each if isinstance(each, str) else each[0] for each in info["mismatched_keys"])
    return model, sorted({*info["missing_keys"], *mismatched})


def _random_model(folder: Path, *, name: str, dtype: torch.dtype, trust_remote_code: bool, seed: int):
    with quiet_loading(name), torch.random.fork_rng(devices=[]):
        config, auto, trusted = _config_and_class(folder, name, trust_remote_code)
        torch.random.default_generator.manual_seed(seed)  # not torch.manual_seed: it seeds the GPUs as well
        # in float32 first, so that the weights are those of the seed in any type
        return auto.from_config(config, dtype=torch.float32, trust_remote_code=trusted).to(dtype)


def _check_missing(missing: list[str], model, pooling: str, name: str):
    unread = ["logit_scale"]
    if pooling != "pooler_output":
        unread += ["pooler.", "projection.", "token_weights."]
    needed = [key for key in missing if not key.startswith(tuple(unread))]
    if needed:
        total = len(model.state_dict())
        some = ", ".join(needed[:3]) + (" ..." if len(needed) > 3 else "")
        raise InputError(
            f"{name}: {len(needed)} of {total} weights of {type(model).__name__} are missing or of another size and "
            f"would be random: {some}; load a complete checkpoint of this architecture (random_weights asks for them)."
        )


def _load_sentence_transformers(
    folder: Path, files: SentenceTransformersFiles, *, name: str, dtype: torch.dtype, trust_remote_code: bool
):
    sentence_transformers = import_extra("sentence_transformers", "sentence-transformers")
    if files.modules[0] == "Transformer":
        # once more by itself: sentence-transformers does not say what is missing
        model, missing = _load_model(files.transformer, name=name, dtype=dtype, trust_remote_code=trust_remote_code)
        _check_missing(missing, model, "cls", name)
        _load_tokenizer(files.transformer, name, trust_remote_code)
    with quiet_loading(name):
        return sentence_transformers.SentenceTransformer(
            str(folder),
            device="cpu",
            trust_remote_code=trust_remote_code,
            model_kwargs={"dtype": torch.float32, "use_safetensors": True},
        ).to(dtype)


def _draw_anew(model, files: SentenceTransformersFiles, *, seed: int, **loading):
    """Random weights in all modules of a `SentenceTransformer`."""
    first, *others = model
    if files.modules[0] == "Transformer":
        random = _random_model(files.transformer, seed=seed, **loading)
        first.auto_model.load_state_dict(random.state_dict(), strict=False)  # it may lack a pooler
    else:
        others = [first, *others]
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        for module in (part for other in others for part in other.modules()):
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
