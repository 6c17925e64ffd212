"""Learning-rate schedules: the factor of `optimizer.lr` at each update.

Each is called with the update, counted from 0, and the number of updates in all, which a budget in tokens or epochs
says and one in hours estimates anew as it goes. Warm-up grows linearly and its first update is not zero:
(update + 1) / warmup_steps. What falls ends at the last update.

A length, such as `warmup_steps`, is a whole number of optimizer steps, or below 1 a share of the run. How many
steps fit into hours is not known before the first update, which a share of them as warm-up makes close to nothing.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@runtime_checkable
class Schedule(Protocol):
    def __call__(self, update: int, total: float) -> float: ...


@dataclass(frozen=True)
class Constant:
    """Warm-up, then no change."""

    warmup_steps: float

    def __post_init__(self) -> None:
        _check_length(self, "warmup_steps")

    def __call__(self, update: int, total: float) -> float:
        return _warmup(update, steps(self.warmup_steps, total))


@dataclass(frozen=True)
class Cosine:
    """Warm-up, then half a cosine down to `min_ratio` of the peak (Loshchilov and Hutter 2017, equation 5)."""

    warmup_steps: float
    min_ratio: float

    def __post_init__(self) -> None:
        _check_length(self, "warmup_steps")
        _check_ratio(self, self.min_ratio)

    def __call__(self, update: int, total: float) -> float:
        warmup = steps(self.warmup_steps, total)
        if update < warmup:
            return _warmup(update, warmup)
        return _between(self.min_ratio, 0.5 * (1 + math.cos(math.pi * _position(update, warmup, total))))


@dataclass(frozen=True)
class Linear:
    """Warm-up, then a straight line down to `min_ratio` of the peak (Devlin et al. 2019, appendix A.2)."""

    warmup_steps: float
    min_ratio: float

    def __post_init__(self) -> None:
        _check_length(self, "warmup_steps")
        _check_ratio(self, self.min_ratio)

    def __call__(self, update: int, total: float) -> float:
        warmup = steps(self.warmup_steps, total)
        if update < warmup:
            return _warmup(update, warmup)
        return _between(self.min_ratio, 1 - _position(update, warmup, total))


@dataclass(frozen=True)
class InverseSqrt:
    """Warm-up, then sqrt(warmup_steps / s), s counted from 1 (Vaswani et al. 2017, equation 3, called Noam).

    The paper's k d_model^-0.5 min(s^-0.5, s warmup_steps^-1.5) with its peak written as `optimizer.lr`, as under every
    other schedule: optimizer.lr = k (d_model warmup_steps)^-0.5.
    """

    warmup_steps: float

    def __post_init__(self) -> None:
        _check_length(self, "warmup_steps", needed=True)

    def __call__(self, update: int, total: float) -> float:
        warmup = max(steps(self.warmup_steps, total), 1)
        return min(_warmup(update, warmup), (warmup / (update + 1)) ** 0.5)


@dataclass(frozen=True)
class WarmupStableDecay:
    """Warm-up, a level, and in the last `decay_steps` a fall to `min_ratio` of the peak (Hu et al. 2024, section 4).

    Args:
        decay_steps: length of the fall; where it and the warm-up are longer than the run, what the warm-up leaves.
        decay_shape: "linear", or "sqrt": 1 - sqrt of the share that is over (Hägele et al. 2024, section 4.1).
    """

    warmup_steps: float
    decay_steps: float
    decay_shape: str
    min_ratio: float

    def __post_init__(self) -> None:
        _check_length(self, "warmup_steps")
        _check_length(self, "decay_steps")
        _check_ratio(self, self.min_ratio)
        if self.decay_shape not in ("linear", "sqrt"):
            raise ValueError(
                f"WarmupStableDecay: decay_shape={self.decay_shape} is unknown; "
                "set scheduler.decay_shape to linear or sqrt"
            )

    def __call__(self, update: int, total: float) -> float:
        warmup, decay = steps(self.warmup_steps, total), steps(self.decay_steps, total)
        if update < warmup:
            return _warmup(update, warmup)
        start = max(total - 1 - decay, warmup)  # the last update that is level
        if update <= start or not decay:
            return 1.0
        over = _position(update, start, total)
        return _between(self.min_ratio, 1 - (over**0.5 if self.decay_shape == "sqrt" else over))


def steps(length: float, total: float) -> float:
    """Optimizer steps that a length stands for in a run of `total`: itself, or below 1 that share of them."""
    return length * total if length < 1 else length


def _warmup(update: int, warmup: float) -> float:
    return min(1.0, (update + 1) / warmup) if warmup else 1.0


def _position(update: int, start: float, total: float) -> float:
    """Share of the way from `start` to the last update, in [0, 1]."""
    return min((update - start) / max(total - 1 - start, 1), 1.0)


def _between(least: float, factor: float) -> float:
    return least + (1 - least) * factor


def _check_length(schedule: object, name: str, needed: bool = False) -> None:
    value = getattr(schedule, name)
    least = "above 0" if needed else "0 or more"
    if not math.isfinite(value) or value < 0 or (needed and not value) or (value >= 1 and value != int(value)):
        raise ValueError(
            f"{type(schedule).__name__}: {name}={value} is no length; set scheduler.{name} to {least}: "
            "whole optimizer steps, or below 1 a share of the run, such as 0.05"
        )


def _check_ratio(schedule: object, min_ratio: float) -> None:
    if not 0 <= min_ratio <= 1:
        raise ValueError(
            f"{type(schedule).__name__}: min_ratio={min_ratio} is not in [0, 1]; set scheduler.min_ratio, such as 0.1"
        )
