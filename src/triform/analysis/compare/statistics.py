"""Means over seeds with intervals, paired differences, and the correction for many of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit

LEVEL = 0.95
"""Of every interval."""


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` runs; its 95 % interval is `mean` plus and minus `half`, which one run does not have."""

    mean: float
    half: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """The mean over `n` seeds of a variant's figure less the baseline's at the same seed.

    Attributes:
        half: of the 95 % interval, for this variant alone; None: there are fewer than two seeds.
        p: two-sided, of the hypothesis that the mean is 0; None as `half`.
    """

    mean: float
    half: float | None
    p: float | None
    n: int


def estimate(values: Sequence[float]) -> Estimate | None:
    """The mean with Student's t interval; None: no value."""
    if not values:
        return None
    return Estimate(float(np.mean(values)), half_width(values), len(values))


def half_width(values: Sequence[float]) -> float | None:
    """Of the 95 % t interval of a mean (Student 1908): t(n - 1) s / sqrt(n). None: fewer than two values."""
    n = len(values)
    if n < 2:
        return None
    return float(stdtrit(n - 1, (1 + LEVEL) / 2) * np.std(values, ddof=1) / math.sqrt(n))


def paired(values: Mapping[Any, float], baseline: Mapping[Any, float]) -> Difference | None:
    """Difference over the seeds that both have, by the paired t test; None: they have none in common.

    Where all differences are equal, p is 1 if they are 0, else 0.
    """
    differences = [value - baseline[seed] for seed, value in values.items() if seed in baseline]
    if not differences:
        return None
    n, mean, half = len(differences), float(np.mean(differences)), half_width(differences)
    if half is None:
        return Difference(mean, None, None, n)
    error = float(np.std(differences, ddof=1)) / math.sqrt(n)
    if error == 0:
        return Difference(mean, half, 1.0 if mean == 0 else 0.0, n)
    return Difference(mean, half, float(2 * stdtr(n - 1, -abs(mean) / error)), n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values, in the order given (Holm 1979): rejecting those below a holds the chance of any false
    rejection to a, whatever depends on what."""
    adjusted = [0.0] * len(p_values)
    so_far = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        so_far = max(so_far, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = so_far
    return adjusted


def front(costs: Sequence[float], figures: Sequence[float], mode: str) -> list[int]:
    """Indices of what nothing else beats: none is as cheap and better, or as good and cheaper. Cheapest first.

    Args:
        mode: "min": smaller figures are better; "max": larger ones.
    """
    sign = 1 if mode == "min" else -1
    best, kept = math.inf, []
    for i in sorted(range(len(costs)), key=lambda i: (costs[i], sign * figures[i])):
        if sign * figures[i] < best:
            best = sign * figures[i]
            kept.append(i)
    return kept
