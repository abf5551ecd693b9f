"""Optional packages: imported where they are used, and asked for by the command that installs them."""

import importlib
from types import ModuleType

from retrieval_pretraining.errors import InputError


def import_extra(module: str, extra: str = "eval") -> ModuleType:
    """The module, which one of the package's extras brings; `InputError` with the pip command if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f'{module} is not installed; pip install "retromae-gur[{extra}]".') from error
