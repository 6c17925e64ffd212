"""Learning-rate schedules: the factor of `optimizer.lr` at each update.

Each is called with the update, counted from 0, and the number of updates in all, which a budget in hours estimates
anew as it goes. Warm-up grows linearly and its first update is not zero: (update + 1) / warmup_steps.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@runtime_checkable
class Schedule(Protocol):
    def __call__(self, update: int, total: float) -> float: ...


@dataclass(frozen=True)
class Noam:
    """d_model^-0.5 min(s^-0.5, s warmup_steps^-1.5), s counted from 1 (Vaswani et al. 2017, equation 3).

    `optimizer.lr` is the factor before it: 1 in the paper.
    """

    d_model: int
    warmup_steps: int

    def __post_init__(self) -> None:
        _check(self, self.warmup_steps, least=1)

    def __call__(self, update: int, total: float) -> float:
        step = update + 1
        return self.d_model**-0.5 * min(step**-0.5, step * self.warmup_steps**-1.5)


@dataclass(frozen=True)
class Cosine:
    """Warm-up, then half a cosine down to `min_ratio` of the peak (Loshchilov and Hutter 2017, equation 5)."""

    warmup_steps: int
    min_ratio: float

    def __post_init__(self) -> None:
        _check(self, self.warmup_steps, least=0)
        if not 0 <= self.min_ratio <= 1:
            raise ValueError(
                f"Cosine: min_ratio={self.min_ratio} is not in [0, 1]; set scheduler.min_ratio, such as 0.1"
            )

    def __call__(self, update: int, total: float) -> float:
        if update < self.warmup_steps:
            return (update + 1) / self.warmup_steps
        decay = max(total - 1 - self.warmup_steps, 1)
        position = min((update - self.warmup_steps) / decay, 1.0)
        return self.min_ratio + (1 - self.min_ratio) * 0.5 * (1 + math.cos(math.pi * position))


@dataclass(frozen=True)
class Constant:
    """Warm-up, then no change."""

    warmup_steps: int

    def __post_init__(self) -> None:
        _check(self, self.warmup_steps, least=0)

    def __call__(self, update: int, total: float) -> float:
        return min(1.0, (update + 1) / self.warmup_steps) if self.warmup_steps else 1.0


def _check(schedule: object, warmup_steps: int, least: int) -> None:
    if warmup_steps < least:
        raise ValueError(
            f"{type(schedule).__name__}: warmup_steps={warmup_steps} is below {least};"
            f" set scheduler.warmup_steps to {least} or more optimizer steps"
        )
