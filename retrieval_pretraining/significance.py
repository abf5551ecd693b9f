"""Is a difference more than luck? Intervals and tests over the queries of a test set.

    bm25 = retrieval_metrics(bm25_run, qrels, per_query=True)["ndcg@10"]
    dense = retrieval_metrics(dense_run, qrels, per_query=True)["ndcg@10"]
    bootstrap_interval(list(dense.values()))  # where the mean would lie with other queries like these
    paired_comparison(dense, bm25)            # the same queries for both: dense minus BM25
    crossed_bootstrap([values_SQ])            # where it would lie with other queries and other seeds of the training

Smucker, Allan and Carterette 2007, "A Comparison of Statistical Significance Tests for Information Retrieval
Evaluation": randomisation and bootstrap agree; sign and Wilcoxon tests mislead. Every number is a function of the
values and the seed. Shapes: n or Q queries, S seeds, R repetitions, W bytes, B = 256 values of a byte.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retrieval_pretraining.errors import InputError

_EXACT_UP_TO = 16  # queries that differ; their 65,536 sign patterns are fewer than the random ones by default
_NUMBERS_AT_ONCE = 2**19  # 4 MB


@dataclass(frozen=True)
class Comparison:
    """System a minus system b: the mean `difference`, its interval from `low` to `high`, the `p_value` of the
    randomisation test, and on how many queries a is better, worse and equal."""

    difference: float
    low: float
    high: float
    p_value: float
    wins: int
    losses: int
    ties: int


def bootstrap_interval(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values` [n]: low and high.

    The mean of n values drawn with replacement, `resamples` times; the interval leaves out (1 - confidence) / 2 of the
    means on each side. Efron 1979, "Bootstrap Methods: Another Look at the Jackknife"; Efron and Tibshirani 1993, "An
    Introduction to the Bootstrap", 13.3. With fewer than some 20 values it is too narrow.

    `InputError` for no values, one that is not finite, a confidence outside 0 to 1, or no resamples.
    """
    values_n = _check_values(values, "values")
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence}; give a number between 0 and 1, such as 0.95.")
    generator = np.random.default_rng(seed)
    means_R = np.empty(_check_count(resamples, "resamples"))
    for rows in _chunks(resamples, len(values_n)):
        draws = generator.integers(0, len(values_n), size=(rows.stop - rows.start, len(values_n)))
        means_R[rows] = values_n[draws].mean(axis=1)
    low, high = np.quantile(means_R, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def crossed_bootstrap(
    values: Sequence[np.ndarray], *, resamples: int = 10_000, generator: np.random.Generator
) -> np.ndarray:
    """Means [R] that other seeds and other queries like these could have given; take quantiles of them.

    `values` are one matrix [S, Q] for each test set: a row for each of the S seeds of the training, the same seeds in
    all of them, and a column for each query, the same queries for all seeds. A repetition draws S rows and, in each
    test set, Q columns with replacement; its value is the mean over the drawn rows and columns, then over the test
    sets. Both levels are drawn because both are samples: a mean over the queries of a few seeds says nothing about
    the next seed. Owen 2007, "The Pigeonhole Bootstrap", Annals of Applied Statistics 1 (2): the variance of a mean
    over two crossed factors is not underestimated as with one of them, nor with cells drawn one by one. Of the few
    seeds that there are the spread is underestimated by (S - 1) / S; of one seed it is not seen at all.

    `InputError` for no test sets, another number of seeds in one of them, no queries, or values that are not finite.
    """
    matrices = [np.asarray(matrix, dtype=np.float64) for matrix in values]
    if not matrices or any(matrix.ndim != 2 or not matrix.size for matrix in matrices):
        raise InputError("Give a matrix [seeds, queries] with at least one of each for every test set.")
    if len({len(matrix) for matrix in matrices}) > 1:
        raise InputError(f"The test sets have {sorted({len(m) for m in matrices})} seeds; give the same ones for all.")
    if not all(np.isfinite(matrix).all() for matrix in matrices):
        raise InputError("A value is not finite; give finite numbers.")
    seeds = len(matrices[0])
    shares_RS = generator.multinomial(seeds, [1 / seeds] * seeds, size=_check_count(resamples, "resamples")) / seeds
    means_R = np.zeros(resamples)
    for matrix in matrices:
        queries = matrix.shape[1]
        for rows in _chunks(resamples, queries):
            counts_RQ = generator.multinomial(queries, [1 / queries] * queries, size=rows.stop - rows.start)
            means_R[rows] += (shares_RS[rows] * (counts_RQ @ matrix.T / queries)).sum(axis=1)
    return means_R / len(matrices)


def bootstrap_p_value(means_R: np.ndarray) -> float:
    """Two-sided p-value of a mean difference being 0: twice the share of its bootstrap means [R] on the rarer side.

    What equals 0 counts for both sides, and one repetition more is counted on each, so that p is never 0. Efron and
    Tibshirani 1993, 15.4: the level at which the percentile interval just touches 0.
    """
    sides = (np.count_nonzero(means_R <= 0), np.count_nonzero(means_R >= 0))
    return min(1.0, 2 * (1 + min(sides)) / (1 + len(means_R)))


def paired_randomization_test(
    a: Sequence[float], b: Sequence[float], *, permutations: int = 100_000, seed: int = 0
) -> float:
    """Two-sided p-value of the difference between the means of `a` and `b`, [n] values of the same queries in order.

    If the systems were the same, the sign of each difference would be chance: p is the share of sign patterns whose
    mean difference is at least as far from 0 as the one seen. All 2^n patterns are counted where at most 16 queries
    differ; otherwise `permutations` random ones, and p = (1 + hits) / (1 + permutations), which counts the one seen
    and is never 0 (Phipson and Smyth 2010). Fisher 1935, "The Design of Experiments"; Smucker et al. 2007.

    `InputError` if the lengths differ, for no values, one that is not finite, or no permutations.
    """
    a_n, b_n = _check_values(a, "values of a"), _check_values(b, "values of b")
    if len(a_n) != len(b_n):
        raise InputError(f"There are {len(a_n)} values of a and {len(b_n)} of b; give both for the same queries.")
    _check_count(permutations, "permutations")
    difference_n = a_n - b_n
    difference_n = difference_n[difference_n != 0]  # a sign changes nothing there
    # what is equal but for the order of a sum counts as equal
    reached = abs(difference_n.sum()) - 1e-12 * np.abs(difference_n).sum()
    # a byte holds the signs of 8 differences; the 256 sums that each of the W bytes can give are looked up
    width = max(1, -(-len(difference_n) // 8))
    difference_W8 = np.pad(difference_n, (0, 8 * width - len(difference_n))).reshape(width, 8)
    signs_8B = 1.0 - 2.0 * np.unpackbits(np.arange(256, dtype=np.uint8)[None, :], axis=0)
    sums_WB = difference_W8 @ signs_8B
    generator = np.random.default_rng(seed)
    exact = len(difference_n) <= _EXACT_UP_TO
    tries = 256**width if exact else permutations
    hits = 0
    for rows in _chunks(tries, width):
        if exact:
            bytes_RW = np.arange(rows.start, rows.stop)[:, None] >> 8 * np.arange(width) & 255
        else:
            drawn = generator.bytes((rows.stop - rows.start) * width)
            bytes_RW = np.frombuffer(drawn, dtype=np.uint8).reshape(-1, width)
        sums_R = sums_WB[np.arange(width), bytes_RW].sum(axis=1)
        hits += int(np.count_nonzero(np.abs(sums_R) >= reached))
    return hits / tries if exact else (1 + hits) / (1 + tries)


def paired_comparison(
    a: Mapping[str, float],
    b: Mapping[str, float],
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    permutations: int = 100_000,
    seed: int = 0,
) -> Comparison:
    """Compare two systems on the same queries: `a` and `b` are query id -> value, in any order.

    The interval is `bootstrap_interval` of the differences, the p-value that of `paired_randomization_test`; values
    that differ by rounding only are ties. `InputError` as those, and if the ids of `a` and `b` differ.
    """
    if a.keys() != b.keys():
        only_a, only_b = len(a.keys() - b.keys()), len(b.keys() - a.keys())
        raise InputError(f"{only_a} queries are in a only and {only_b} in b only; compare both on the same queries.")
    ids = sorted(a, key=str)  # the draws do not depend on the order of the dicts
    a_n, b_n = (_check_values([values[query] for query in ids], "queries") for values in (a, b))
    tie_n = np.isclose(a_n, b_n, rtol=1e-9, atol=1e-12)
    difference_n = np.where(tie_n, 0.0, a_n - b_n)
    low, high = bootstrap_interval(difference_n, confidence=confidence, resamples=resamples, seed=seed)
    return Comparison(
        difference=float(difference_n.mean()),
        low=low,
        high=high,
        p_value=paired_randomization_test(
            difference_n, np.zeros_like(difference_n), permutations=permutations, seed=seed
        ),
        wins=int(np.count_nonzero(difference_n > 0)),
        losses=int(np.count_nonzero(difference_n < 0)),
        ties=int(np.count_nonzero(tie_n)),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for being several, in the order given: compare each with the level meant for all together.

    With m of them in ascending order p_1 ... p_m, the k-th becomes max over j <= k of min(1, (m - j + 1) * p_j). The
    chance of even one false difference then stays below the level, however the tests depend on each other. Holm 1979,
    "A Simple Sequentially Rejective Multiple Test Procedure". `InputError` if one is not between 0 and 1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if not ((p >= 0) & (p <= 1)).all():
        raise InputError("A p-value is not between 0 and 1; give p-values.")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(len(p), 0, -1) * p[order]))
    return adjusted.tolist()


def _chunks(rows: int, columns: int) -> Iterator[slice]:
    """Ranges of rows with at most 4 MB of numbers."""
    step = max(1, _NUMBERS_AT_ONCE // columns)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _check_values(values: Sequence[float], what: str) -> np.ndarray:
    values_n = np.asarray(values, dtype=np.float64)
    if values_n.ndim != 1 or not len(values_n):
        raise InputError(f"There are no {what}; give at least one number.")
    if not np.isfinite(values_n).all():
        number = next(i for i, value in enumerate(values_n) if not math.isfinite(value))
        raise InputError(f"{what}[{number}] is {values_n[number]}; give finite numbers.")
    return values_n


def _check_count(count: int, name: str) -> int:
    if count < 1:
        raise InputError(f"{name} is {count}; give 1 or more, such as 10000.")
    return count
