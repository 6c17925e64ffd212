"""Intervals, paired differences and Holm's correction against scipy and against figures worked by hand."""

import itertools

import numpy as np
import pytest
from scipy import stats

from triform.analysis.compare.statistics import Difference, estimate, front, half_width, holm, paired


@pytest.mark.parametrize("n", [2, 3, 7])
def test_the_interval_is_students(n: int) -> None:
    values = np.random.default_rng(n).normal(3, 2, n).tolist()
    found = estimate(values)
    assert found is not None
    assert found.half is not None
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high), rel=1e-9)
    assert found.n == n


def test_the_interval_of_two_values_by_hand() -> None:
    # t(1 degree of freedom, 97.5 %) = 12.7062; s of 1 and 3 = sqrt(2); s / sqrt(2) = 1
    assert half_width([1.0, 3.0]) == pytest.approx(12.7062, abs=1e-4)


def test_one_value_has_no_interval_and_none_no_mean() -> None:
    one = estimate([0.5])
    assert one is not None
    assert (one.mean, one.half, one.n) == (0.5, None, 1)
    assert estimate([]) is None
    assert paired({0: 1.0}, {0: 0.25}) == Difference(0.75, None, None, 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_paired_difference_is_scipys(seed: int) -> None:
    generator = np.random.default_rng(seed)
    ours, theirs = generator.normal(1, 1, 6), generator.normal(1.5, 1, 6)
    expected = stats.ttest_rel(ours, theirs)
    found = paired(dict(enumerate(ours)), dict(enumerate(theirs)))
    assert found is not None
    assert found.half is not None
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    low, high = expected.confidence_interval(0.95)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high), rel=1e-9)


def test_only_common_seeds_are_paired() -> None:
    found = paired({0: 1.0, 1: 2.0, 2: 9.0}, {1: 1.5, 0: 0.75, 5: -4.0})
    assert found is not None
    assert (found.n, found.mean) == (2, pytest.approx(0.375))
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_differences_that_are_all_equal() -> None:
    same = paired({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    shifted = paired({0: 1.5, 1: 2.5}, {0: 1.0, 1: 2.0})
    assert same == Difference(0.0, 0.0, 1.0, 2)
    assert shifted == Difference(0.5, 0.0, 0.0, 2)


def test_holm_by_hand() -> None:
    # sorted 0.005 0.01 0.03 0.04 times 4 3 2 1: 0.02 0.03 0.06 0.04, of which the last may not fall below 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_rejects_what_the_closed_test_of_bonferroni_rejects() -> None:
    """Holm 1979: the adjusted p is the largest Bonferroni p over all sets of hypotheses with this one among them."""
    values = [0.02, 0.4, 0.011, 0.03, 0.6]
    for i, found in enumerate(holm(values)):
        sets = [s for n in range(1, 6) for s in itertools.combinations(range(5), n) if i in s]
        assert found == pytest.approx(max(min(1.0, len(s) * min(values[j] for j in s)) for s in sets))


def test_the_front_is_what_nothing_beats() -> None:
    costs, losses = [3.0, 1.0, 2.0, 2.0, 4.0], [0.5, 0.9, 0.6, 0.8, 0.5]
    assert front(costs, losses, "min") == [1, 2, 0]
    assert front(costs, [-loss for loss in losses], "max") == [1, 2, 0]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_front_against_every_pair(mode: str) -> None:
    generator = np.random.default_rng(3)
    costs, figures = generator.integers(0, 9, 40).tolist(), generator.integers(0, 9, 40).tolist()
    sign = 1 if mode == "min" else -1
    points = [(cost, sign * value) for cost, value in zip(costs, figures, strict=True)]
    kept = {point for point in points if not any(o != point and o[0] <= point[0] and o[1] <= point[1] for o in points)}
    assert {points[i] for i in front(costs, figures, mode)} == kept
