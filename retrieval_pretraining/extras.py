"""Optional packages: imported where they are used, and asked for by the command that installs them."""

import importlib
from importlib.util import find_spec
from types import ModuleType

from retrieval_pretraining.errors import InputError


def import_extra(module: str, extra: str = "eval") -> ModuleType:
    """The module, which one of the package's extras brings; `InputError` with the pip command if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f'{module} is not installed; pip install "retromae-gur[{extra}]".') from error


def sentence_transformers_part(name: str) -> ModuleType:
    """Its `modules`, `losses` or `evaluation`, which moved with version 6."""
    import_extra("sentence_transformers", "sentence-transformers")
    if find_spec("sentence_transformers.sentence_transformer") is not None:
        return importlib.import_module(f"sentence_transformers.sentence_transformer.{name}")
    return importlib.import_module(f"sentence_transformers.{'models' if name == 'modules' else name}")
