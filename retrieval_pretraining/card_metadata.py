"""The YAML at the head of a model card, which the Hub reads and, if it does not like it, refuses with the whole push.

data = ModelCardData(**without_nothing({"license": "mit", "datasets": [hub_id("me/mine")], "tags": []}))
check_card(text)  # as the Hub would, without it
"""

import math
import re
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from .errors import InputError

LANGUAGE = "[a-z]{2,3}|code|multilingual"
_LICENSES = frozenset(
    """
    afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
    bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
    cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0 etalab-2.0
    eupl-1.1 eupl-1.2 gemma gfdl gpl gpl-2.0 gpl-3.0 h-research intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr
    llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 open-mdw
    openrail openrail++ osl-3.0 other pddl postgresql unknown unlicense wtfpl zlib
    """.split()
)
_STRINGS = ("library_name", "pipeline_tag", "license", "license_name", "license_link", "model_name")
_STRINGS_OR_LISTS = ("language", "tags", "datasets", "base_model", "metrics")


def hub_id(name: str | None) -> str | None:
    """The name, if it is one of the Hub: of `hf://datasets/me/mine/a.txt` me/mine; None for what lies on this machine,
    other places, and what no repository may be called."""
    if not name:
        return None
    found = re.match(r"hf://(?:datasets/)?([^/@]+/[^/@]+)", name)
    if found:
        name = found[1]
    elif Path(name).exists() or name.startswith(("~", ".", "/")):
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name


def license_fields(license: str | None) -> dict[str, str]:
    """The Hub knows some licences by name; what it does not know is its `other`, under that name."""
    if license is None:
        return {}
    name = re.sub(r"[^a-z0-9.+]+", "-", license.lower()).strip("-.")
    if name in _LICENSES:
        return {"license": name}
    return {"license": "other", "license_name": re.sub(r"\+", "-", name) or "other"}


def without_nothing(value: Any) -> Any:
    """Without what is None, empty or not a number, at any depth."""
    if isinstance(value, dict):
        kept = {key: without_nothing(inner) for key, inner in value.items()}
        return {key: inner for key, inner in kept.items() if not _is_nothing(inner)}
    if isinstance(value, (list, tuple)):
        return [inner for inner in map(without_nothing, value) if not _is_nothing(inner)]
    return value


def check_card(text: str) -> dict[str, Any]:
    """The metadata of a card, checked as the Hub does when it is pushed. `InputError` says what is wrong with it."""
    found = re.match(r"---\r?\n(.*?)\r?\n---\r?\n", text, flags=re.DOTALL)
    if not found:
        raise InputError("The model card has no metadata: it begins with --- and YAML.")
    try:
        data = yaml.safe_load(found[1])
    except yaml.YAMLError as error:
        raise InputError(f"The metadata of the model card is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise InputError("The metadata of the model card is not a list of `name: value`.")
    for place, value in _places(data):
        if _is_nothing(value):
            raise InputError(f"The metadata of the model card has {place} {value!r}: leave it out.")
    for name in _STRINGS:
        if name in data and not isinstance(data[name], str):
            raise InputError(f"The metadata of the model card has {name} {data[name]!r}, which is no text: quote it.")
    for name in _STRINGS_OR_LISTS:
        values = data.get(name, [])
        values = [values] if isinstance(values, str) else values
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise InputError(f"The metadata of the model card has {name} {values!r}, which is no text: quote it.")
        for value in values:
            if name in ("base_model", "datasets") and hub_id(value) != value:
                raise InputError(f"The metadata of the model card has {name} {value!r}, which is no name on the Hub.")
            if name == "language" and not re.fullmatch(LANGUAGE, value):
                raise InputError(f"The metadata of the model card has language {value!r}, which is no ISO 639 code.")
    if data.get("license") not in (None, *_LICENSES):
        raise InputError(f"The metadata of the model card has license {data['license']!r}, which the Hub lacks.")
    try:
        ModelCard(text)  # reads the `model-index` as the Hub does
    except ValueError as error:
        raise InputError(f"The metadata of the model card cannot be read: {error}") from error
    return data


def _is_nothing(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    return value is None or (isinstance(value, (str, list, tuple, dict)) and len(value) == 0)


def _places(value: Any, place: str = ""):
    """(where, what) of every value in it."""
    if place:
        yield place, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _places(each, f"{place}.{key}" if place else str(key))
