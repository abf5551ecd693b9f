"""Which files of a folder go to the Hub. They are named, so that nothing goes there by accident: no pickle, no log, no
arguments of a run, none of the user's own files."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

from transformers.dynamic_module_utils import get_relative_import_files

from .errors import InputError

# What a file is sent as: where it lies, or its content.
Files = dict[str, Path | bytes]

_MODEL = (
    *("README.md", "LICENSE*", "config.json", "generation_config.json", "all_results.json"),
    *("*.safetensors", "*.safetensors.index.json"),
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model", "*.jinja"),
    *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
)
_FOLDERS = {
    **{name: _MODEL for name in ("encoder", "backbone")},
    "onnx": ("*.onnx", "*.onnx.data", "*.onnx_data", "*.json"),
    ".eval_results": ("*.yaml",),
    "images": ("losses.png", "retrieval.png"),  # of the card
}
_MODULE = ("*.json", "*.safetensors")  # a layer of sentence-transformers in a folder of its own
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_ARGUMENTS = ("training_args.json", "training_args.bin")  # of one machine: paths, host names
_WEIGHTS = ("model*.safetensors", "model.safetensors.index.json")


def model_files(folder: str | Path) -> Files:
    """The files of a whole model: weights, configuration, all code that it names, tokenizer, card.

    Raises `InputError` for a folder in which one of them is missing.
    """
    folder = Path(folder)
    files: Files = {}
    layers = {place: _MODULE for inner in ("", "encoder") for place in _layer_folders(folder, inner)}
    for place, names in {"": _MODEL, **layers, **_FOLDERS}.items():
        for path in sorted((folder / place).glob("*")):
            wanted = any(fnmatchcase(path.name, name) for name in names)
            if wanted and path.is_file() and path.suffix not in _PICKLES:
                files[f"{place}/{path.name}" if place else path.name] = path
    for name in ("config.json", "README.md"):
        if name not in files:
            raise InputError(f"{folder} has no {name}: give the folder of a finished model.")
    files |= _code_files(folder)
    _check_weights(folder)
    return files


def _layer_folders(folder: Path, inner: str) -> list[str]:
    """The folders that the `modules.json` of a model, or of the one inside it, names."""
    path = folder / inner / "modules.json"
    if not path.is_file():
        return []
    places = [str(module.get("path", "")) for module in json.loads(path.read_text(encoding="utf-8"))]
    for place in filter(None, places):
        if not re.fullmatch(r"\w+", place):
            raise InputError(f"{path} names {place!r}, which is no folder beside it; save the model anew.")
        if not (path.parent / place).is_dir() and not place.endswith("_Normalize"):  # which has no settings
            raise InputError(f"{path.parent} has no {place}, which its modules.json needs; save the model anew.")
    return [f"{inner}/{place}" if inner else place for place in filter(None, places)]


def checkpoint_files(folder: str | Path, place: str) -> Files:
    """All files of a checkpoint that a run goes on from, under `place`; optimizer and random states are pickles."""
    folder = Path(folder)
    files: Files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in _ARGUMENTS:
            files[f"{place}/{path.relative_to(folder).as_posix()}"] = path
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    if state.get("best_model_checkpoint"):
        state["best_model_checkpoint"] = Path(
            state["best_model_checkpoint"]
        ).name  # it tells nobody about this machine
    files[f"{place}/trainer_state.json"] = json.dumps(state, indent=2).encode()
    return files


def pair_files(folder: str | Path) -> Files:
    """The files of mined pairs: the pairs, their counts, the card. Raises `InputError` where one is missing."""
    folder = Path(folder)
    pairs = [path for path in (folder / "pairs.parquet", folder / "pairs.jsonl") if path.is_file()]
    files = [*pairs, folder / "counts.json", folder / "README.md"]
    missing = [path.name for path in files if not path.is_file()]
    if not pairs or missing:
        raise InputError(f"{folder} has no {', '.join(missing) or 'pairs'}: give a folder that mine_pairs.py wrote.")
    return {path.name: path for path in files}


def superseded(there: list[str], files: Files) -> list[str]:
    """Weights of an earlier push that would be loaded beside or instead of those of `files`."""
    folders = {Path(name).parent for name in files if _is_weight(name)}
    return [name for name in there if name not in files and _is_weight(name) and Path(name).parent in folders]


def _is_weight(name: str) -> bool:
    return any(fnmatchcase(Path(name).name, pattern) for pattern in _WEIGHTS)


def _code_files(folder: Path) -> Files:
    """Every file that `auto_map` names, and those that they import."""
    auto_map = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("auto_map") or {}
    files: Files = {}
    for entry in auto_map.values():
        for reference in filter(None, entry if isinstance(entry, list) else [entry]):
            if not re.fullmatch(r"[A-Za-z_]\w*\.[A-Za-z_]\w*", reference):
                raise InputError(
                    f"{folder / 'config.json'}: auto_map names {reference!r}, which is no class of a file beside it; "
                    "correct it."
                )
            try:
                paths = [folder / f"{reference.split('.')[0]}.py"]
                paths += map(Path, get_relative_import_files(paths[0]))
            except FileNotFoundError as error:
                name = Path(error.filename).name
                raise InputError(f"{folder} has no {name}, which its auto_map needs; save the model anew.") from error
            files |= {path.name: path for path in paths if path.parent == folder}
    return files


def _check_weights(folder: Path):
    index = folder / "model.safetensors.index.json"
    needed = {"model.safetensors"}
    if index.is_file() and not (folder / "model.safetensors").is_file():
        needed = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    missing = sorted(name for name in needed if not (folder / name).is_file())
    if missing:
        raise InputError(f"{folder} has no {', '.join(missing)}: give the folder of a finished model.")
