"""Intervals and tests over queries: against scipy, against counting every case, and on simulated systems."""

import itertools
import math
import time

import numpy as np
import pytest
from reference.bootstrap_oracle import every_crossed_mean, quantile
from scipy import stats

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.significance import (
    bootstrap_interval,
    bootstrap_p_value,
    crossed_bootstrap,
    holm,
    paired_comparison,
    paired_randomization_test,
)


def every_sign_pattern(difference):
    """The p-value as it is defined: one pattern after the other."""
    patterns = list(itertools.product((1, -1), repeat=len(difference)))
    seen = abs(sum(difference))
    far = sum(abs(sum(s * d for s, d in zip(signs, difference))) >= seen - 1e-12 for signs in patterns)
    return far / len(patterns)


def systems(n=40, gain=0.1, seed=0):
    generator = np.random.default_rng(seed)
    b = generator.random(n)
    return np.clip(b + gain + generator.normal(0, 0.25, n), 0, 1), b


# bootstrap


def test_an_interval_equals_that_of_scipy():
    values, _ = systems(n=50)
    low, high = bootstrap_interval(values, resamples=20_000)
    expected = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000).confidence_interval
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=0.005)
    assert low < values.mean() < high


def test_an_interval_of_two_values_is_counted_out():
    # the mean of two draws from {0, 1} is 0, 0.5 or 1 with chances 1/4, 1/2, 1/4
    assert bootstrap_interval([0.0, 1.0], confidence=0.4) == (0.5, 0.5)
    assert bootstrap_interval([0.0, 1.0], confidence=0.6) == (0.0, 1.0)


def test_intervals_hold_the_true_mean_as_often_as_they_say():
    generator = np.random.default_rng(1)
    held = {0.9: 0, 0.6: 0}
    for trial in range(300):
        values = generator.beta(0.6, 0.4, 80)  # of mean 0.6, most near 0 and 1, as nDCG is
        for confidence in held:
            low, high = bootstrap_interval(values, confidence=confidence, resamples=400, seed=trial)
            held[confidence] += low <= 0.6 <= high
    # three standard errors of a share of 300
    assert held[0.9] / 300 == pytest.approx(0.9, abs=3 * math.sqrt(0.09 / 300))
    assert held[0.6] / 300 == pytest.approx(0.6, abs=3 * math.sqrt(0.24 / 300))


def test_equal_values_have_no_interval_and_one_value_neither():
    assert bootstrap_interval([0.25] * 30) == (0.25, 0.25)
    assert bootstrap_interval([0.7]) == (0.7, 0.7)


def test_an_interval_is_a_function_of_the_seed():
    values, _ = systems()
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(list(values), seed=1)
    assert bootstrap_interval(values, seed=1) != bootstrap_interval(values, seed=2)


# randomisation


@pytest.mark.parametrize("n", [1, 2, 5, 8, 9, 12])
def test_few_queries_are_counted_out(n):
    generator = np.random.default_rng(n)
    a, b = (generator.integers(0, 4, n) / 3 for _ in range(2))  # coarse, so that many sums are equal
    assert paired_randomization_test(a, b) == pytest.approx(every_sign_pattern(a - b), abs=1e-12)


def test_a_pattern_that_is_equal_but_for_rounding_counts():
    # 0.1 + 0.2 + 0.3 - 0.4 = 0.2, and so does 0.1 - 0.2 + ... in other orders, but for the last bit
    difference = [0.1, 0.2, 0.3, -0.4, 0.6, -0.7]
    assert paired_randomization_test(difference, [0.0] * 6) == every_sign_pattern(difference)


def test_both_ways_agree_with_scipy():
    for n, gain in ((12, 0.2), (40, 0.1)):
        a, b = systems(n, gain)
        expected = stats.permutation_test(
            (a, b), lambda x, y, axis: (x - y).mean(axis=axis), permutation_type="samples", n_resamples=20_000
        )
        assert 0.001 < expected.pvalue < 0.3
        assert paired_randomization_test(a, b) == pytest.approx(expected.pvalue, abs=0.008)


def test_drawn_patterns_agree_with_all_patterns():
    a, b = systems(n=20, gain=0.08)
    # of 20 differences 4 are so small that their signs hardly count: then 2^16 patterns are all there are
    a[:4] = b[:4] + 1e-15
    exact = paired_randomization_test(a[4:], b[4:])
    drawn = paired_randomization_test(a, b)
    assert drawn != exact
    assert drawn == pytest.approx(exact, abs=0.005)


def test_identical_systems_have_p_1():
    a, _ = systems()
    assert paired_randomization_test(a, a) == 1
    assert paired_randomization_test([0.5], [0.5]) == 1


def test_the_largest_difference_has_the_smallest_p_that_can_be():
    assert paired_randomization_test([1.0] * 10, [0.0] * 10) == 2 / 2**10
    assert paired_randomization_test([1.0] * 100, [0.0] * 100, permutations=999) == 1 / 1000


def test_p_is_the_same_for_both_directions_and_any_number_of_ties():
    for n in (10, 60):
        a, b = systems(n)
        p = paired_randomization_test(a, b)
        assert paired_randomization_test(b, a) == p
        assert paired_randomization_test(np.append(a, [0.5] * 9), np.append(b, [0.5] * 9)) == p


def test_equal_systems_are_told_apart_as_rarely_as_the_level_says():
    generator = np.random.default_rng(5)
    found = 0
    for trial in range(400):
        a, b = generator.random((2, 25))
        found += paired_randomization_test(a, b, permutations=499, seed=trial) <= 0.1
    assert found / 400 == pytest.approx(0.1, abs=3 * math.sqrt(0.09 / 400))


def test_hundreds_of_queries_take_a_moment_and_little_memory():
    import tracemalloc

    a, b = systems(n=300)
    tracemalloc.start()
    begin = time.perf_counter()
    paired_comparison(dict(enumerate(a)), dict(enumerate(b)))
    seconds, (_, peak) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 2  # 0.1 on an idle core
    assert peak < 15e6  # bytes; the draws of the bootstrap at once would be 24e6


# comparison


def test_a_comparison_counts_and_measures_the_same_queries():
    a = {"q1": 0.9, "q2": 0.5, "q3": 0.2, "q4": 0.1 + 0.2}
    b = {"q4": 0.3, "q3": 0.4, "q2": 0.5, "q1": 0.5}
    result = paired_comparison(a, b)
    assert (result.wins, result.losses, result.ties) == (1, 1, 2)
    assert result.difference == pytest.approx((0.4 - 0.2) / 4)
    # of the four sign patterns of 0.4 and 0.2 all reach |0.2|
    assert result.p_value == 1
    assert -0.2 <= result.low < result.difference < result.high <= 0.4


def test_a_comparison_is_of_pairs_and_not_of_means():
    generator = np.random.default_rng(0)
    b = generator.random(50)
    result = paired_comparison(dict(enumerate(b + 0.01)), dict(enumerate(b)))
    assert (result.low, result.high) == pytest.approx((0.01, 0.01))
    assert result.p_value == 1 / 100_001


def test_a_comparison_turned_round_is_its_mirror():
    a, b = (dict(enumerate(values)) for values in systems(60))
    one, other = paired_comparison(a, b), paired_comparison(b, a)
    assert (other.difference, other.low, other.high) == pytest.approx((-one.difference, -one.high, -one.low))
    assert (other.p_value, other.wins, other.losses) == (one.p_value, one.losses, one.wins)


def test_a_comparison_does_not_depend_on_the_order_of_the_queries():
    a, b = (dict(enumerate(values)) for values in systems(30))
    assert paired_comparison(dict(reversed(a.items())), b) == paired_comparison(a, b)


def test_identical_systems_are_compared_without_a_difference():
    a = dict(enumerate(systems()[0]))
    result = paired_comparison(a, dict(a))
    assert (result.difference, result.low, result.high, result.p_value) == (0, 0, 0, 1)
    assert (result.wins, result.losses, result.ties) == (0, 0, 40)


# several comparisons


def test_holm_equals_values_worked_out_by_hand():
    # ascending: 0.01 * 4, 0.02 * 3, 0.03 * 2 = 0.06 (not below the one before), 0.5 * 1
    assert holm([0.02, 0.5, 0.01, 0.03]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


# mistakes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_interval([]), "no values"),
        (lambda: bootstrap_interval([0.1, math.nan]), r"values\[1\] is nan"),
        (lambda: bootstrap_interval([0.1], confidence=95), "confidence is 95"),
        (lambda: bootstrap_interval([0.1], resamples=0), "resamples is 0"),
        (lambda: paired_randomization_test([0.1, 0.2], [0.1]), "2 values of a and 1 of b"),
        (lambda: paired_randomization_test([], []), "no values of a"),
        (lambda: paired_randomization_test([0.1], [0.2], permutations=0), "permutations is 0"),
        (lambda: paired_comparison({"q1": 1, "q2": 1}, {"q2": 1, "q3": 1, "q4": 1}), "1 queries .* a only and 2 in b"),
        (lambda: paired_comparison({}, {}), "no queries"),
        (lambda: holm([0.1, 1.2]), "not between 0 and 1"),
        (lambda: holm([math.nan]), "not between 0 and 1"),
    ],
)
def test_a_mistake_is_an_error_that_says_what(call, message):
    with pytest.raises(InputError, match=message):
        call()


# seeds and queries


def crossed(values, resamples=40_000, seed=0):
    return crossed_bootstrap(values, resamples=resamples, generator=np.random.default_rng(seed))


@pytest.mark.parametrize("shapes", [[(3, 4)], [(2, 3), (2, 2)], [(1, 5)], [(4, 1)]])
def test_the_crossed_bootstrap_draws_as_if_every_draw_were_counted(shapes):
    generator = np.random.default_rng(3)
    values = [generator.random(shape) ** 2 for shape in shapes]
    every = every_crossed_mean([matrix.tolist() for matrix in values])
    means = crossed(values)
    assert len(means) == 40_000
    assert means.mean() == pytest.approx(np.mean([matrix.mean() for matrix in values]), abs=0.003)
    assert means.mean() == pytest.approx(np.mean(every), abs=0.003)
    assert means.std() == pytest.approx(np.std(every), rel=0.02)
    for share in (0.025, 0.25, 0.5, 0.75, 0.975):
        assert np.quantile(means, share) == pytest.approx(quantile(every, share), abs=0.01)


def test_seeds_that_differ_widen_the_interval_and_queries_alone_give_that_of_the_queries():
    generator = np.random.default_rng(4)
    queries = generator.random(200)
    same = np.stack([queries] * 3)
    low, high = np.quantile(crossed([same], 20_000), [0.025, 0.975])
    assert (low, high) == pytest.approx(bootstrap_interval(queries, resamples=20_000), abs=0.003)
    apart = same + np.array([[-0.1], [0.0], [0.1]])
    wide = np.quantile(crossed([apart], 20_000), [0.025, 0.975])
    # variance of the mean of 3 draws from {-.1, 0, .1} beside that of the queries
    expected = math.sqrt(queries.var() / 200 + 0.02 / 9)
    assert crossed([apart], 20_000).std() == pytest.approx(expected, rel=0.03)
    assert wide[0] < low - 0.05 and wide[1] > high + 0.05


def test_test_sets_share_their_seeds():
    # Rows +1 and -1 in both: drawn together they never cancel out between the test sets, drawn apart they would.
    rows = np.array([[1.0], [-1.0]])
    assert crossed([rows, rows]).std() == pytest.approx(crossed([rows]).std(), rel=0.03)


def test_crossed_draws_follow_their_generator():
    values = [np.random.default_rng(0).random((3, 30))]
    assert (crossed(values, 100, seed=1) == crossed(values, 100, seed=1)).all()
    assert (crossed(values, 100, seed=1) != crossed(values, 100, seed=2)).any()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "for every test set"),
        ([np.ones(3)], "for every test set"),
        ([np.ones((2, 0))], "for every test set"),
        ([np.ones((2, 3)), np.ones((3, 3))], r"\[2, 3\] seeds"),
        ([np.array([[1.0, np.nan]])], "not finite"),
    ],
)
def test_what_cannot_be_drawn_from_is_said(values, message):
    with pytest.raises(InputError, match=message):
        crossed(values)


def test_the_p_value_of_a_bootstrap_is_the_level_whose_interval_touches_zero():
    means = np.random.default_rng(5).normal(0.2, 0.1, 9_999)
    p = bootstrap_p_value(means)
    assert p == pytest.approx(2 * stats.norm.cdf(-2), rel=0.2)
    assert np.quantile(means, p / 2) == pytest.approx(0, abs=0.01)
    assert bootstrap_p_value(-means) == p
    assert bootstrap_p_value(np.ones(999)) == 2 / 1000
    assert bootstrap_p_value(np.zeros(999)) == 1.0
