"""Figures of related and random pairs, against values worked out by hand and loops over all pairs."""

import json
import math

import numpy as np
import pytest

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.vector_health import row_cosines, sample_of_cosines, vector_health

FIELDS = [
    "positive_cosine_mean",
    "positive_cosine_std",
    "random_cosine_mean",
    "random_cosine_std",
    "auc",
    "alignment",
    "uniformity",
    "isotropy",
    "collapsed",
]


def pairs(count=50, size=8, noise=0.3, seed=0):
    """Related pairs: a vector, and the same with noise."""
    generator = np.random.default_rng(seed)
    a = generator.normal(size=(count, size)) + 0.5
    return unit(a), unit(a + noise * generator.normal(size=(count, size)))


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def oracle(a, b):
    """Item by item, from the formulas; isotropy by the steps of the paper, with eigenvectors."""
    n, h = len(a), a.shape[1]
    a, b = a.astype(np.float64), b.astype(np.float64)
    related = [float(a[i] @ b[i]) for i in range(n)]
    random = [float(a[i] @ b[j]) for i in range(n) for j in range(n) if i != j]
    above = [1.0 if r > u else 0.5 if r == u else 0.0 for r in related for u in random]
    uniformity = [
        math.log(np.mean([math.exp(-2 * ((x[i] - x[j]) ** 2).sum()) for i in range(n) for j in range(n) if i != j]))
        for x in (a, b)
    ]
    variances = np.linalg.eigvalsh(np.cov(np.concatenate([a, b]).T))
    normalised = math.sqrt(h) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(normalised - 1) / math.sqrt(2 * (h - math.sqrt(h)))
    used = (h - defect**2 * (h - math.sqrt(h))) ** 2 / h**2
    return {
        "positive_cosine_mean": np.mean(related),
        "positive_cosine_std": np.std(related),
        "random_cosine_mean": np.mean(random),
        "random_cosine_std": np.std(random),
        "auc": np.mean(above),
        "alignment": np.mean([((a[i] - b[i]) ** 2).sum() for i in range(n)]),
        "uniformity": np.mean(uniformity),
        "isotropy": (h * used - 1) / (h - 1),
        "collapsed": False,
    }


# --- Figures ---------------------------------------------------------------------------------------------------------


def test_figures_equal_those_of_loops_over_all_pairs():
    a, b = pairs()
    found = vector_health(a, b)
    assert list(found) == FIELDS
    assert found == pytest.approx(oracle(a, b), abs=1e-6)
    assert json.loads(json.dumps(found)) == found


def test_figures_equal_values_worked_out_by_hand():
    # a: east, north; b: east, and 3-4-5 up from east. Related cosines 1 and 0.8, random 0.6 and 0.
    a, b = np.eye(2, dtype=np.float32), np.array([[1.0, 0.0], [0.6, 0.8]], dtype=np.float32)
    found = vector_health(a, b)
    assert found["positive_cosine_mean"] == pytest.approx(0.9) and found["positive_cosine_std"] == pytest.approx(0.1)
    assert found["random_cosine_mean"] == pytest.approx(0.3) and found["random_cosine_std"] == pytest.approx(0.3)
    assert found["auc"] == 1.0
    assert found["alignment"] == pytest.approx(0.2)  # (0 + 2 - 1.6) / 2
    assert found["uniformity"] == pytest.approx((-4 - 1.6) / 2, abs=1e-6)  # squared distances 2 and 0.8, times -2
    assert found["collapsed"] is False


def test_auc_counts_a_tie_as_half_and_sees_no_rounding():
    a = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    b = a.copy()
    b[0] = [1.0, 1e-8]  # another cosine in the last bits only
    # related 1 1 1 1; random: 4 of 12 are 1, the others 0
    assert vector_health(a, b)["auc"] == pytest.approx((8 + 4 / 2) / 12)


def test_the_length_of_vectors_does_not_matter():
    a, b = pairs()
    lengths = np.random.default_rng(1).uniform(0.5, 9, size=(50, 1))
    assert vector_health(a * lengths, b * 3) == pytest.approx(vector_health(a, b), abs=1e-6)


def test_isotropy_is_1_for_all_directions_and_0_for_one():
    corners = np.concatenate([np.eye(4), -np.eye(4)])
    assert vector_health(corners, corners)["isotropy"] == pytest.approx(1.0)
    line = np.array([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    assert vector_health(line, line)["isotropy"] == pytest.approx(0.0)
    # two of four dimensions are used: (2 - 1) / (4 - 1)
    plane = np.concatenate([np.eye(4)[:2], -np.eye(4)[:2]])
    assert vector_health(plane, plane)["isotropy"] == pytest.approx(1 / 3)


def test_isotropy_does_not_change_with_a_rotation():
    a, b = pairs()
    rotation, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(8, 8)))
    assert vector_health(a @ rotation, b @ rotation)["isotropy"] == pytest.approx(vector_health(a, b)["isotropy"])


def test_blocks_change_nothing(monkeypatch):
    a, b = pairs()
    whole = vector_health(a, b)
    monkeypatch.setattr("retrieval_pretraining.vector_health._VALUES_AT_ONCE", 24)
    assert vector_health(a, b) == pytest.approx(whole, abs=1e-12)


def test_a_vector_without_length_has_cosine_0():
    cosines = row_cosines(np.array([[0.0, 0.0], [3.0, 0.0]]), np.array([[1.0, 0.0], [5.0, 0.0]]))
    assert cosines.tolist() == [0.0, 1.0]


# --- The alarm -------------------------------------------------------------------------------------------------------


def test_a_constant_encoder_gives_the_alarm():
    constant = np.tile(unit(np.random.default_rng(0).normal(size=(1, 16))), (50, 1))
    found = vector_health(constant, constant)
    assert found["collapsed"] is True
    assert (found["auc"], found["isotropy"]) == (0.5, 0.0)
    assert found["random_cosine_mean"] == pytest.approx(1.0) and found["uniformity"] == pytest.approx(0.0, abs=1e-12)


def test_a_constant_encoder_with_the_rounding_of_batches_gives_the_same():
    generator = np.random.default_rng(0)
    constant = unit(generator.normal(size=(1, 16))) + generator.uniform(-1, 1, size=(50, 16)).astype(np.float32) * 1e-7
    found = vector_health(constant, constant[::-1])
    assert found["collapsed"] is True and (found["auc"], found["isotropy"]) == (0.5, 0.0)


def test_a_dead_encoder_gives_the_alarm():
    found = vector_health(np.zeros((50, 16)), np.zeros((50, 16)))
    assert found["collapsed"] is True and all(math.isfinite(value) for value in found.values())


@pytest.mark.parametrize(
    ("mean", "deviation", "collapsed"),
    [(0.951, 0.02, True), (0.949, 0.02, False), (0.5, 0.009, True), (0.5, 0.011, False)],
)
def test_the_alarm_is_at_a_mean_of_95_and_a_deviation_of_1_hundredth(mean, deviation, collapsed):
    east = np.array([[1.0, 0.0]] * 2)
    turned = np.array([[cosine, math.sqrt(1 - cosine**2)] for cosine in (mean - deviation, mean + deviation)])
    found = vector_health(*pairs(size=2), unrelated=(east, turned))
    assert found["random_cosine_mean"] == pytest.approx(mean)
    assert found["random_cosine_std"] == pytest.approx(deviation)
    assert found["collapsed"] is collapsed


def test_vectors_all_at_one_distance_give_the_alarm():
    assert vector_health(np.eye(9), np.eye(9))["collapsed"] is True  # all random cosines are 0


def test_related_and_unrelated_pairs_of_a_working_encoder_give_none():
    a, b = pairs(50)
    unrelated = pairs(50, seed=1)[0], pairs(50, seed=2)[1]
    found = vector_health(a, b, unrelated=unrelated)
    assert found["collapsed"] is False
    assert found["random_cosine_mean"] == pytest.approx(np.mean(np.sum(unrelated[0] * unrelated[1], axis=1)), abs=1e-6)
    assert found["positive_cosine_mean"] == pytest.approx(np.mean(np.sum(a * b, axis=1)), abs=1e-6)
    assert found["auc"] > 0.9


# --- Random pairs ----------------------------------------------------------------------------------------------------


def test_many_pairs_are_sampled_close_to_all_of_them_and_by_the_seed():
    a, b = pairs(300)
    exact = vector_health(a, b)
    sampled = vector_health(a, b, random_pairs=20_000, seed=1)
    assert sampled == pytest.approx(exact, abs=0.02) and sampled != exact
    assert vector_health(a, b, random_pairs=20_000, seed=1) == sampled
    assert vector_health(a, b, random_pairs=20_000, seed=2) != sampled


def test_a_sampled_pair_is_never_a_related_one():
    # related pairs have the cosine 1, all others 0
    found = vector_health(np.eye(40), np.eye(40), random_pairs=1000)
    assert (found["random_cosine_mean"], found["auc"], found["uniformity"]) == (0.0, 1.0, pytest.approx(-4.0))


def test_rows_of_one_query_or_document_make_no_random_pair():
    # q0 with d0 and d1, q1 with d1: only q0, d1 of rows 0 and 2 are of different queries and documents
    q, d = np.eye(2), np.array([[0.6, 0.8], [0.8, 0.6]])
    a, b = q[[0, 0, 1]], d[[0, 1, 1]]
    found = vector_health(a, b, ids_a=["q0", "q0", "q1"], ids_b=["d0", "d1", "d1"])
    assert found["random_cosine_mean"] == pytest.approx((0.8 + 0.8) / 2)  # q0 . d1 and q1 . d0
    assert found["uniformity"] == pytest.approx((-4 + math.log(math.exp(-2 * 0.08))) / 2)
    sampled = vector_health(a, b, ids_a=["q0", "q0", "q1"], ids_b=["d0", "d1", "d1"], random_pairs=5)
    assert sampled["random_cosine_mean"] == pytest.approx(0.8)


def test_a_plot_gets_a_sample_of_each_kind():
    a, b = pairs(60)
    related, random = sample_of_cosines(a, b, most=40, seed=3)
    assert (related.shape, random.shape) == ((40,), (40,))
    assert set(related) <= set(row_cosines(a, b))
    everything = {cosine for i in range(60) for cosine in row_cosines(a, np.roll(b, i, axis=0)) if i}
    assert set(random) <= everything
    again = sample_of_cosines(a, b, most=40, seed=3)
    np.testing.assert_array_equal(again[0], related)
    np.testing.assert_array_equal(again[1], random)


def test_a_plot_of_few_pairs_gets_all_of_them():
    a, b = pairs(10)
    related, random = sample_of_cosines(a, b)
    np.testing.assert_array_equal(related, row_cosines(a, b))
    assert random.shape == (90,)


def test_a_plot_of_given_unrelated_pairs_gets_those():
    a, b = pairs(10)
    _, random = sample_of_cosines(a, b, unrelated=(a[:6], -a[:6]), most=4)
    assert random == pytest.approx([-1.0] * 4, abs=1e-6)


# --- Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vectors_a": np.ones((1, 2)), "vectors_b": np.ones((1, 2))}, "There are 1 pairs; give 2"),
        ({"vectors_a": np.ones((0, 2)), "vectors_b": np.ones((0, 2))}, "There are 0 pairs"),
        ({"vectors_b": np.ones((3, 5))}, r"shapes \(4, 2\) and \(3, 5\)"),
        ({"vectors_b": np.full((4, 2), np.inf)}, "not finite"),
        ({"vectors_b": np.ones(4)}, r"have the shape \(4,\)"),
        ({"random_pairs": 0}, "random pairs is 0"),
        ({"ids_a": ["q"] * 4}, "All pairs are of the same query"),
        ({"ids_b": ["d"] * 3}, "3 ids for 4 pairs"),
        ({"unrelated": (np.ones((2, 3)), np.ones((2, 3)))}, "different sizes"),
    ],
)
def test_bad_input_is_an_error_in_a_sentence(options, said):
    with pytest.raises(InputError, match=said):
        vector_health(**{"vectors_a": np.eye(4)[:, :2], "vectors_b": np.ones((4, 2)), **options})
