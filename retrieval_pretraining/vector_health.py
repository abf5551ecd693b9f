"""Are the vectors any good, and can their cosines be told apart? Figures of related pairs and of random ones.

The cosines of a model may all lie between 0.7 and 0.9: their order is what counts, and a threshold has to be read from
these figures. A model whose vectors all point the same way has collapsed.

Shapes: n related pairs, m random ones, H size of a vector.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.evaluation_inputs import check_vectors

COLLAPSED_MEAN = 0.95  # of the cosines of random pairs: above it
COLLAPSED_STD = 0.01  # below it

_UNIFORMITY_SCALE = 2.0  # t of Wang and Isola
_TIE = 6  # decimals of a cosine; the rounding of a batch is smaller, and what it decides is chance
_NO_VARIANCE = 1e-10  # of unit vectors that differ by rounding only
_VALUES_AT_ONCE = 2**21  # of vectors, in float64


def vector_health(
    vectors_a: np.ndarray,
    vectors_b: np.ndarray,
    *,
    ids_a: Sequence[Any] | None = None,
    ids_b: Sequence[Any] | None = None,
    unrelated: tuple[np.ndarray, np.ndarray] | None = None,
    random_pairs: int = 100_000,
    seed: int = 0,
) -> dict[str, float | bool]:
    """How near related texts lie, and how near any two. Only directions count: vectors are scaled to length 1.

    - `positive_cosine_mean`, `_std`: of the related pairs (a[i], b[i]).
    - `random_cosine_mean`, `_std`: of pairs (a[i], b[j]) of unrelated ones.
    - `auc`: the probability that a related pair is closer than a random one; a tie (to 6 decimals) counts a half.
    - `alignment`: mean squared distance of related pairs, 0 is best, 2 what right angles give (Wang and Isola 2020,
      arXiv 2005.10242, eq. 1 with alpha 2).
    - `uniformity`: log of the mean of exp(-2 d^2), d the distances of any two vectors of a side, the mean of both
      sides; 0 if all are the same, nearly -4 if they fill a sphere of many dimensions (eq. 2 with t 2).
    - `isotropy`: the share of dimensions that the vectors make even use of, 0 (one, or none) to 1 (all): IsoScore
      (Rudman et al. 2022, arXiv 2108.07344). Its steps come to `(P - 1) / (H - 1)` with
      `P = trace(C)^2 / trace(C^2)`, C the covariance of all vectors. Chosen because rotation, shift and scale leave it
      as it is and it needs no eigenvectors; the partition ratio of Mu and Viswanath (2018) is near 1 for any unit
      vectors of many dimensions. From n vectors it is (n - 2) / (H - 1) at most: compare it at equal n, above H.
    - `collapsed`: the mean of random cosines is above 0.95 or their deviation below 0.01. For
      H above some 10,000, vectors that are perfectly spread have such a deviation.

    Args:
        vectors_a, vectors_b: [n, H] each, row by row related, such as a query and a relevant document.
        ids_a, ids_b: what each row is of, where a query or a document comes more than once: two rows of one query or
            of one document then make no random pair.
        unrelated: two arrays [m, H] whose rows are unrelated, in place of random pairs.
        random_pairs: all pairs i != j are taken if they are no more, else as many are drawn; the same holds for
            uniformity. No n x n matrix is made.

    Raises:
        InputError: fewer than 2 related pairs, arrays of different shapes, values that are not finite, ids that are
            not one a row or all the same, or `random_pairs` below 1.
    """
    vectors_a, vectors_b = _check_pairs(vectors_a, vectors_b, least=2)
    related, random = _related_and_random(vectors_a, vectors_b, (ids_a, ids_b), unrelated, random_pairs, seed)
    # of the cosine, 2 - 2 cos is the squared distance of unit vectors
    uniformity = np.mean(
        [
            _uniformity(vectors, _other_pairs(len(vectors), random_pairs, [seed, number], ids))
            for number, (vectors, ids) in enumerate(((vectors_a, ids_a), (vectors_b, ids_b)), start=1)
        ]
    )
    mean, deviation = float(random.mean()), float(random.std())
    collapsed = mean > COLLAPSED_MEAN or deviation < COLLAPSED_STD
    return {
        "positive_cosine_mean": float(related.mean()),
        "positive_cosine_std": float(related.std()),
        "random_cosine_mean": mean,
        "random_cosine_std": deviation,
        "auc": _auc(related, random),
        "alignment": float((2 - 2 * related).mean()),
        "uniformity": float(uniformity),
        "isotropy": _isotropy([vectors_a, vectors_b]),
        "collapsed": collapsed,
    }


def sample_of_cosines(
    vectors_a: np.ndarray,
    vectors_b: np.ndarray,
    *,
    ids_a: Sequence[Any] | None = None,
    ids_b: Sequence[Any] | None = None,
    unrelated: tuple[np.ndarray, np.ndarray] | None = None,
    most: int = 2000,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Cosines of related pairs and of random ones, at most `most` each, drawn by `seed`; for plots.

    Arguments and errors as `vector_health`. Returns float64 [<= most] twice.
    """
    vectors_a, vectors_b = _check_pairs(vectors_a, vectors_b, least=2)
    related, random = _related_and_random(vectors_a, vectors_b, (ids_a, ids_b), unrelated, most, seed)
    generator = np.random.default_rng([seed, 3])
    return tuple(
        values if len(values) <= most else values[np.sort(generator.choice(len(values), most, replace=False))]
        for values in (related, random)
    )


def row_cosines(
    vectors_a: np.ndarray, vectors_b: np.ndarray, rows_a: np.ndarray | None = None, rows_b: np.ndarray | None = None
) -> np.ndarray:
    """The cosine of each row of a and the same row of b, float64; 0 where a vector has no length.

    `rows_a`, `rows_b`: which rows to compare in place of all in their order, [n] each.
    """
    count = len(vectors_a) if rows_a is None else len(rows_a)
    cosines = np.zeros(count)
    step = max(1, _VALUES_AT_ONCE // max(1, vectors_a.shape[1]))
    for start in range(0, count, step):
        part = slice(start, start + step)
        a, b = (
            vectors[part if rows is None else rows[part]].astype(np.float64)
            for vectors, rows in ((vectors_a, rows_a), (vectors_b, rows_b))
        )
        dots, squares = np.einsum("nh,nh->n", a, b), np.einsum("nh,nh->n", a, a) * np.einsum("nh,nh->n", b, b)
        np.divide(dots, np.sqrt(squares), out=cosines[part], where=squares > 0)
    return np.clip(cosines, -1.0, 1.0)


def _related_and_random(vectors_a, vectors_b, ids, unrelated, random_pairs, seed) -> tuple[np.ndarray, np.ndarray]:
    if unrelated is None:
        random = row_cosines(vectors_a, vectors_b, *_other_pairs(len(vectors_a), random_pairs, [seed, 0], *ids))
    else:
        unrelated_a, unrelated_b = _check_pairs(*unrelated, least=1)
        if unrelated_a.shape[1] != vectors_a.shape[1]:
            raise InputError("Related and unrelated pairs have vectors of different sizes; encode both alike.")
        random = row_cosines(unrelated_a, unrelated_b)
    return row_cosines(vectors_a, vectors_b), random


def _check_pairs(vectors_a: np.ndarray, vectors_b: np.ndarray, *, least: int) -> tuple[np.ndarray, np.ndarray]:
    pairs = tuple(check_vectors(vectors, len(vectors), "pairs") for vectors in (vectors_a, vectors_b))
    if pairs[0].shape != pairs[1].shape:
        raise InputError(f"The pairs have vectors of shapes {pairs[0].shape} and {pairs[1].shape}; give one a side.")
    if len(pairs[0]) < least:
        raise InputError(f"There are {len(pairs[0])} pairs; give {least} or more.")
    return pairs


def _other_pairs(count: int, most: int, seed: list[int], *ids) -> tuple[np.ndarray, np.ndarray]:
    """Rows i and j, int64 [<= most] each, of different ids: all such pairs, or as many as were drawn."""
    if most < 1:
        raise InputError(f"The number of random pairs is {most}; draw 1 or more.")
    if count * (count - 1) <= most:
        first, second = np.divmod(np.arange(count * count), count)
        different = first != second
    else:
        generator = np.random.default_rng(seed)
        first = generator.integers(count, size=most)
        second = (first + generator.integers(1, count, size=most)) % count
        different = np.ones(most, dtype=bool)
    for of_rows in ids:
        if of_rows is not None:
            if len(of_rows) != count:
                raise InputError(f"There are {len(of_rows)} ids for {count} pairs; give one a pair.")
            _, number = np.unique(np.asarray(of_rows), return_inverse=True)
            different &= number[first] != number[second]
    if not different.any():
        raise InputError("All pairs are of the same query or document, so none is random; give more of them.")
    return first[different], second[different]


def _auc(related: np.ndarray, random: np.ndarray) -> float:
    """The statistic of Mann and Whitney over n m, with mid-ranks for ties."""
    from scipy.stats import rankdata

    ranks = rankdata(np.round(np.concatenate([related, random]), _TIE))
    above = ranks[: len(related)].sum() - len(related) * (len(related) + 1) / 2
    return float(above / (len(related) * len(random)))


def _uniformity(vectors: np.ndarray, pairs: tuple[np.ndarray, np.ndarray]) -> float:
    squared_distances = 2 - 2 * row_cosines(vectors, vectors, *pairs)
    return float(np.log(np.exp(-_UNIFORMITY_SCALE * squared_distances).mean()))


def _isotropy(sides: list[np.ndarray]) -> float:
    size = sides[0].shape[1]
    mean = sum(part.sum(axis=0) for part in _unit_parts(sides)) / sum(map(len, sides))
    covariance = np.zeros((size, size))
    for part in _unit_parts(sides):
        centred = part - mean
        covariance += centred.T @ centred
    covariance /= sum(map(len, sides))
    trace = np.trace(covariance)
    if size == 1 or trace < _NO_VARIANCE:
        return 0.0
    return float((trace**2 / np.square(covariance).sum() - 1) / (size - 1))


def _unit_parts(sides: list[np.ndarray]):
    """All vectors, scaled to length 1, in float64, some at a time."""
    for vectors in sides:
        step = max(1, _VALUES_AT_ONCE // max(1, vectors.shape[1]))
        for start in range(0, len(vectors), step):
            part = vectors[start : start + step].astype(np.float64)
            yield part / np.linalg.norm(part, axis=1, keepdims=True).clip(min=np.finfo(np.float64).tiny)
