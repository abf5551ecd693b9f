"""Where a model is, on disk or on the Hub, and what the files beside its weights say about its vectors."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

from retrieval_pretraining.errors import InputError

_WEIGHTS = "model.safetensors"

# What a model is read from. Pickles are not among it: reading one runs code.
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.py")
_OTHER_FORMATS = ("onnx/*", "openvino/*", "original/*")

_POOLINGS = {"cls": "cls", "mean": "mean", "lasttoken": "eos"}  # sentence-transformers' word: ours
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # names of it, first one first


def find_model(name_or_path: str | Path, *, revision: str | None = None) -> tuple[Path, str | None]:
    """The folder of a model, and the commit that it is of; a model of the Hub is downloaded, its weights as well.

    The commit is None for a folder of one's own. `InputError` if there is no such folder or model, if the Hub cannot
    be reached, or for a `revision` of a folder.
    """
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        if revision is not None and path.parent.name != "snapshots":
            raise InputError(f"{path} is a folder and has no revision {revision}; leave the revision out.")
        return path, path.resolve().name if path.resolve().parent.name == "snapshots" else None
    if path.is_file():
        raise InputError(f"{path} is a file; give the folder that it is in.")
    try:
        options = dict(allow_patterns=_FILES, ignore_patterns=_OTHER_FORMATS)
        folder = snapshot_download(str(name_or_path), revision=revision, **options)
    except HFValidationError as error:
        raise InputError(f"{name_or_path}: there is no such folder; check the path.") from error
    except GatedRepoError as error:
        raise InputError(
            f"{name_or_path}: ask for access on its page on the Hub, then log in (hf auth login)."
        ) from error
    except RevisionNotFoundError as error:
        raise InputError(f"{name_or_path}: the Hub has no revision {revision} of it; check the revision.") from error
    except RepositoryNotFoundError as error:
        raise InputError(
            f"{name_or_path}: there is no such folder, and no such model on the Hub that you may read; check the name."
        ) from error
    except Exception as error:  # of the network: what the client raises differs between its versions
        at = "" if revision is None else f" at revision {revision}"
        raise InputError(
            f"{name_or_path}: there is no such folder, no such model{at} among those downloaded before, and the Hub "
            f"cannot be reached ({type(error).__name__}); check the name, or download it where there is a network."
        ) from error
    return Path(folder), Path(folder).name


def read_config(folder: Path, name: str) -> dict[str, Any]:
    """The config.json of a model; `InputError` if there is none, or no model's."""
    path = folder / "config.json"
    if not path.is_file():
        inside = sorted(
            found.parent.name for found in folder.glob("*/config.json") if (found.parent / _WEIGHTS).exists()
        )
        hint = f"give a folder in it, such as {', '.join(inside[:4])}" if inside else "give the folder of a model"
        raise InputError(f"{name}: there is no config.json; {hint}.")
    fields = _read_json(path)
    if "model_type" not in fields:
        raise InputError(f"{path}: names no model_type; give the folder of a model that transformers can load.")
    return fields


def weight_files(folder: Path, name: str) -> list[Path]:
    """The safetensors files of a model, by name; `InputError` if there are none, or if one of several is missing."""
    if (folder / _WEIGHTS).is_file():
        return [folder / _WEIGHTS]
    index = folder / f"{_WEIGHTS}.index.json"
    if not index.is_file():
        raise InputError(
            f"{name}: there is no {_WEIGHTS}; a pickle, such as pytorch_model.bin, can run code when it is read and "
            "is not loaded: load it where you trust it and save it with save_pretrained."
        )
    paths = [_inside(folder, file) for file in sorted(set(_read_json(index).get("weight_map", {}).values()))]
    missing = [path.name for path in paths if not path.is_file()]
    if missing or not paths:
        raise InputError(f"{name}: {', '.join(missing) or 'all'} of its weights are missing; get the files again.")
    return paths


def only_pickled_on_hub(name: str, *, revision: str | None = None, token: str | None = None) -> bool:
    """Whether a model of the Hub has its weights in a pickle alone; False where that cannot be found out."""
    try:
        files = HfApi().list_repo_files(name, revision=revision, token=token)
    except Exception:  # no name on the Hub, no network: what the client raises differs between its versions
        return False
    return any(file.endswith(".bin") for file in files) and not any(file.endswith(".safetensors") for file in files)


def _inside(folder: Path, name: str) -> Path:
    """A file or folder that a model names; `InputError` for one that is not in the model's own folder."""
    path = Path(os.path.normpath(folder / name))
    if not path.is_relative_to(os.path.normpath(folder)):
        raise InputError(f"{folder} names {name}, which lies outside of it; get the folder again, from who made it.")
    return path


def sha256_of(paths: list[Path]) -> str:
    """Of one file what `sha256sum` prints; of several the hash of their contents, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


@dataclass
class SentenceTransformersFiles:
    """What the files of sentence-transformers say.

    `transformer`: the folder of the model itself. `modules`: the kinds of its modules. `pooling`: "cls", "mean" or
    "eos"; None for no pooling module, or one of another kind. `max_seq_length`: None where the tokenizer says it.
    `plain`: whether that model, this pooling and a length of 1 are all that makes the vector, so that it can be made
    without sentence-transformers. `cosine`: whether the folder compares by cosine.
    """

    transformer: Path
    modules: tuple[str, ...]
    pooling: str | None = None
    query_prompt: str = ""
    document_prompt: str = ""
    max_seq_length: int | None = None
    plain: bool = True
    cosine: bool = True


def read_sentence_transformers_files(folder: Path) -> SentenceTransformersFiles | None:
    """None for a folder without modules.json; `InputError` for broken files, or weights of a module in a pickle."""
    if not (folder / "modules.json").is_file():
        return None
    modules = _read_json(folder / "modules.json")
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    foreign = [module for module in modules if not str(module.get("type", "")).startswith("sentence_transformers.")]
    if not modules:
        raise InputError(f"{folder / 'modules.json'}: names no module; get the folder again.")
    paths = [_inside(folder, module.get("path", "")) for module in modules]
    for path in paths:
        if (path / "pytorch_model.bin").is_file() and not list(path.glob("*.safetensors")):
            raise InputError(
                f"{path / 'pytorch_model.bin'} can run code when it is read and is not loaded: load the folder where "
                "you trust it and save it again, in safetensors format."
            )
    settings = _read_json(folder / "config_sentence_transformers.json", missing={})
    own = _read_json(paths[0] / "sentence_bert_config.json", missing={})
    prompts = settings.get("prompts") or {}
    default = prompts.get(settings.get("default_prompt_name") or "") or ""
    found = SentenceTransformersFiles(
        transformer=paths[0],
        modules=tuple(kinds),
        query_prompt=prompts.get("query") or default,
        document_prompt=next((prompts[name] for name in _DOCUMENT_PROMPTS if prompts.get(name)), default),
        max_seq_length=own.get("max_seq_length"),
        cosine="Normalize" in kinds or settings.get("similarity_fn_name") in (None, "cosine"),
    )
    found.plain = not foreign and kinds[:2] == ["Transformer", "Pooling"] and kinds[2:] in ([], ["Normalize"])
    if found.plain:
        mode = _pooling_mode(_read_json(paths[1] / "config.json", missing={}))
        found.pooling = _POOLINGS.get(mode)
        found.plain = mode in _POOLINGS and _is_plain_transformer(own)
    return found


def _pooling_mode(config: dict[str, Any]) -> str | None:
    """The one pooling of a 1_Pooling/config.json, as sentence-transformers names it; None for several, or one that
    leaves out the prompt."""
    if not config.get("include_prompt", True):
        return None
    if "pooling_mode" in config:  # from version 6 on
        return config["pooling_mode"] if isinstance(config["pooling_mode"], str) else None
    names = {"cls_token": "cls", "mean_tokens": "mean", "lasttoken": "lasttoken"}
    modes = [
        name.removeprefix("pooling_mode_") for name, on in config.items() if name.startswith("pooling_mode") and on
    ]
    return names.get(modes[0], modes[0]) if len(modes) == 1 else None


def _is_plain_transformer(config: dict[str, Any]) -> bool:
    """Whether a sentence_bert_config.json asks for nothing but the states of the model for its texts."""
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    usual = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": text},
        "module_output_name": "token_embeddings",
        "do_lower_case": False,
    }
    return all(name == "max_seq_length" or value in (None, usual.get(name), {}) for name, value in config.items())


def _read_json(path: Path, missing: Any = None) -> Any:
    if missing is not None and not path.is_file():
        return missing
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON ({error}); get the file again.") from error
