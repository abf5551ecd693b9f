"""Sentence similarity: do the cosines of a model order pairs of sentences as people do?

data = load_similarity_data("stsb/test.csv")
similarity_scores(encode, data)  # {"spearman": 0.61, "pearson": 0.58}
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.evaluation_inputs import Encode, dataset_name, encode_checked, read_rows
from retrieval_pretraining.readers import INVISIBLE, type_name
from retrieval_pretraining.vector_health import row_cosines

logger = logging.getLogger(__name__)

_SENTENCES = (("sentence1", "sentence2"), ("text", "text_pair"))
_NEEDS = "the columns sentence1 and sentence2 (or text and text_pair) and score"
_EQUAL = 1e-6  # cosines that differ by less differ by rounding


@dataclass
class SimilarityData:
    """Pairs of sentences, and a score for each: the higher, the more alike."""

    name: str
    sentences1: list[str]
    sentences2: list[str]
    scores: list[float]


def load_similarity_data(path: str | Path) -> SimilarityData:
    """A jsonl, json, csv, tsv or parquet file with the columns sentence1, sentence2 and score, or text, text_pair and
    score. It is called by the name of the file, or of its folder if the file is called train, dev, validation or test.

    Empty sentences are counted in a warning and stay. `InputError` if the file cannot be read, lacks a column, has
    fewer than 2 pairs, a sentence that is no text, a score that is no finite number (with the line), or scores that
    are all the same.
    """
    path = Path(path)
    sentences1, sentences2, scores, empty = [], [], [], 0
    for place, (first, second, score) in read_rows(path, [*_sentence_columns(path), "score"], needs=_NEEDS):
        for sentence in (first, second):
            if not isinstance(sentence, str):
                raise InputError(f"{place}: a sentence is {type_name(sentence)}; every pair needs two texts.")
        empty += not (first.strip(INVISIBLE) and second.strip(INVISIBLE))
        sentences1.append(first)
        sentences2.append(second)
        scores.append(_number(place, score))
    data = SimilarityData(dataset_name(path), sentences1, sentences2, scores)
    _check(data, path)
    if empty:
        logger.warning("%s: %d of %d pairs have an empty sentence.", path, empty, len(scores))
    return data


def similarity_scores(encode: Encode, data: SimilarityData) -> dict[str, float]:
    """Rank correlation (Spearman) and correlation (Pearson) of the cosines with the scores, from -1 to 1.

    If all cosines are equal both are 0, with a warning: such vectors say nothing, and the correlation has no value.

    `InputError` for data as `load_similarity_data` refuses them and for vectors that are not one a text or not finite.
    """
    from scipy.stats import pearsonr, spearmanr

    _check(data, data.name)
    texts = {text: row for row, text in enumerate(dict.fromkeys([*data.sentences1, *data.sentences2]))}
    vectors = encode_checked(encode, list(texts), "sentences")
    rows = [np.array([texts[text] for text in side]) for side in (data.sentences1, data.sentences2)]
    cosines = row_cosines(vectors, vectors, *rows)
    if np.ptp(cosines) < _EQUAL:
        logger.warning(
            "%s: all pairs have the cosine %.3f, so the vectors say nothing; counted as 0.", data.name, cosines[0]
        )
        return {"spearman": 0.0, "pearson": 0.0}
    return {
        "spearman": float(spearmanr(cosines, data.scores)[0]),
        "pearson": float(pearsonr(cosines, data.scores)[0]),
    }


def _sentence_columns(path: Path) -> tuple[str, str]:
    """Which of the two spellings the file has: that of its first row with one of them, else the first one."""
    firsts = [first for first, _ in _SENTENCES]
    for _, values in read_rows(path, firsts, needs=_NEEDS, optional=firsts):
        for names, value in zip(_SENTENCES, values, strict=True):
            if value is not None:
                return names
    return _SENTENCES[0]


def _number(place: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{place}: the score {value!r} is no finite number; give each pair one, or leave it out.")
    return number


def _check(data: SimilarityData, source: str | Path):
    sides: Sequence[Sequence] = (data.sentences1, data.sentences2, data.scores)
    if len({len(side) for side in sides}) > 1:
        raise InputError(
            f"{source}: {' and '.join(str(len(side)) for side in sides)} sentences and scores; give one each."
        )
    if len(data.scores) < 2:
        raise InputError(f"{source}: {len(data.scores)} pairs; give 2 or more.")
    if not np.isfinite(data.scores).all():
        raise InputError(f"{source}: some scores are no finite numbers; give each pair one, or leave it out.")
    if min(data.scores) == max(data.scores):
        raise InputError(f"{source}: all scores are {data.scores[0]:g}, so there is no order; give pairs that differ.")
