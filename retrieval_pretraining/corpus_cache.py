"""What stands for a corpus in the keys of caches, and files that are whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval_pretraining.cleaning_settings import CleaningSettings
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.hub_text import open_hub_dataset
from retrieval_pretraining.remote_files import AnyFile, RemoteFile, file_state
from retrieval_pretraining.source_files import file_labels, resolve_files

if TYPE_CHECKING:
    from datasets import Dataset, Features

CACHE_FOLDER = "retrieval_pretraining"
# Part of every cache key: raise it when the same file would be read as other documents than before.
READER_VERSION = 1


def corpus_fingerprint(
    *,
    train_file: str | os.PathLike | Sequence[str | os.PathLike] | None = None,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    split: str = "train",
    cleaning: CleaningSettings | None = None,
    cache_dir: str | os.PathLike | None = None,
    **options: Any,
) -> dict[str, Any]:
    """What `iterate_documents` of the same arguments would give, by the content of the files or of the dataset."""
    if dataset_name is not None:
        dataset = open_hub_dataset(dataset_name, dataset_config_name, split, streaming=False, cache_dir=cache_dir)
        content: Any = {"dataset": dataset._fingerprint}
    else:
        files = resolve_files(train_file)
        content = [[label, _digest(file)] for label, file in zip(file_labels(files), files, strict=True)]
    return {"reader": READER_VERSION, "content": content, **options, **cleaning_fingerprint(cleaning)}


def cleaning_fingerprint(cleaning: CleaningSettings | None) -> dict[str, Any]:
    """What to add to the key of a cache; nothing for documents that are as they are read."""
    if cleaning is None or cleaning.is_off:
        return {}
    cleaning.check()
    return {"cleaning": cleaning.fingerprint()}


def _digest(file: AnyFile) -> str:
    if isinstance(file, RemoteFile):
        return json.dumps(file.state())  # it would have to be fetched twice
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def file_cache_key(files: Sequence[AnyFile], options: dict) -> str:
    return cache_key([file_state(file) for file in files], options)


def cache_key(content: Any, options: dict) -> str:
    return hashlib.sha256(json.dumps([READER_VERSION, content, options], sort_keys=True).encode()).hexdigest()[:32]


def generated_dataset(
    generate: Callable[[], Iterator[dict[str, Any]]],
    features: Features,
    key: str,
    cache_dir: str | os.PathLike | None,
) -> Dataset:
    """The dataset of the rows that `generate` gives; from the cache if it is there under this key, our own: that of
    `datasets` hashes the code of the generator, and not the state of the files. An `InputError` of a row is raised."""
    import datasets

    cache_dir = None if cache_dir is None else str(cache_dir)
    try:
        return datasets.Dataset.from_generator(generate, features=features, cache_dir=cache_dir, fingerprint=key)
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise


def write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
