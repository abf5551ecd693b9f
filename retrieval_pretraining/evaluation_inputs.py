"""What the evaluations of classification and similarity take: an encoder as a function, and rows of files.

Shapes: n texts, H size of a vector.
"""

import glob
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrieval_pretraining.encoding import check_texts
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.readers import READERS, CorpusCounts, SourceFile, is_supported, split_suffix

# Texts -> vectors of length 1, float32 [n, H]; pooling, lengths and prompts are bound by whoever makes it.
Encode = Callable[[Sequence[str]], np.ndarray]

_SPLITS = ("train", "dev", "validation", "test")


def encode_checked(encode: Encode, texts: Sequence[str], what: str = "texts") -> np.ndarray:
    """`encode(texts)`; `InputError` for texts that are no strings, and for what is not one finite vector a text."""
    check_texts(texts, what)
    return check_vectors(encode(list(texts)), len(texts), what)


def check_vectors(vectors: np.ndarray, count: int, what: str = "texts") -> np.ndarray:
    """The vectors [count, H]; `InputError` for another number of them or values that are not finite."""
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or len(vectors) != count:
        raise InputError(f"The vectors of {count} {what} have the shape {vectors.shape}; give one vector a text.")
    if not np.isfinite(vectors).all():
        raise InputError(
            f"Some vectors of {what} are not finite: the model has diverged; train it with a lower learning rate."
        )
    return vectors


def read_rows(
    path: str | Path, columns: Sequence[str], *, needs: str, optional: Sequence[str] = ()
) -> list[tuple[str, list[Any]]]:
    """(place for a message, values of `columns`) of each row of a jsonl, json, csv, tsv or parquet file.

    A value that a row lacks is None. `needs` says in the error for a missing column what the file must have; those in
    `optional` may be absent. `InputError` as the readers, and for a file that does not exist or has no columns.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: there is no such file; check the path.")
    file = SourceFile(path, CorpusCounts(), optional=frozenset(optional))
    file.column_advice = f"give {needs}."
    if file.kind == ".txt":
        raise InputError(f"{path}: text without columns; convert it to jsonl, csv, tsv or parquet with {needs}.")
    # A list: that no row of a jsonl file has a column is known at its end, and says more than that the first lacks it.
    return [(f"{path}, {place}", values) for place, values in READERS[file.kind](file, list(columns))]


def split_file(folder: Path, split: str) -> Path | None:
    """The file `<split>.jsonl`, `.csv`, ... of a folder, None without one; `InputError` if there are several."""
    files = sorted(file for file in folder.glob(f"{glob.escape(split)}.*") if file.is_file() and is_supported(file))
    files = [file for file in files if split_suffix(file)[0] != ".txt"]
    if len(files) > 1:
        raise InputError(f"{folder}: {files[0].name} and {files[1].name} are the same split; keep one of them.")
    return files[0] if files else None


def dataset_name(file: Path) -> str:
    """What a dataset of one file is called: by the file, or by its folder where the file is only called "test"."""
    stem = file.name.split(".")[0]
    return file.resolve().parent.name if stem in _SPLITS else stem
