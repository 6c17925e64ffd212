"""Which figure variants are judged by, and what each run reached."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from triform.analysis.runs import Run
from triform.run.errors import BadInput, nearest

LOSS = "validation/loss"
SMALLER = ("loss", "perplexity", "bits_per_byte", "mse", "mae", "error", "rate", "seconds", "bytes", "gradient_norm")
"""Ends of the names of figures of which less is better. A run says so itself only of the one that picks its best
checkpoint."""
SIZES = ("parameters", "flops_per_token", "tokens", "seconds", "tokens_per_second", "peak_memory_bytes", "mfu")
PLACES = {"validation": ("best", "last", "final"), "test": ("final",), "train": ("last",)}
"""Parts of a summary that hold a split's figures, the one to be judged by first."""


@dataclass(frozen=True)
class Metric:
    """A figure by its split and name, such as `validation/loss`; `mode` is "min" where less is better, else "max"."""

    name: str
    mode: str

    @property
    def on_test(self) -> "Metric":
        """The same figure on test data."""
        return Metric(f"test/{self.name.rpartition('/')[2]}", self.mode)


def judged_by(runs: Sequence[Run], wanted: str | None, mode: str | None = None) -> Metric:
    """The figure to compare by: the one asked for, else the one that picked most runs' best checkpoints.

    Args:
        wanted: with its split, or without: on validation data where there are such figures.

    Raises:
        BadInput: no run has logged it.
    """
    monitors = Counter(metric for run in runs if (metric := monitor(run)) is not None)
    usual = monitors.most_common(1)[0][0] if monitors else Metric(LOSS, "min")
    if wanted is None:
        return Metric(usual.name, mode or usual.mode)
    logged = names(runs)
    for name in (wanted, *(f"{split}/{wanted}" for split in PLACES)):
        if name in logged:
            known = {metric.name.rpartition("/")[2]: metric.mode for metric in monitors}
            return Metric(name, mode or known.get(name.rpartition("/")[2]) or direction(name))
    close = nearest(wanted, logged if "/" in wanted else [name.rpartition("/")[2] for name in logged])
    raise BadInput(
        f"--metric {wanted}: no run has logged it{close}; there are {', '.join(logged) or 'no figures at all'}"
    )


def monitor(run: Run) -> Metric | None:
    """The figure that picked a run's best checkpoint; None: the run did not get so far as to say."""
    said = run.summary.get("monitor")
    if isinstance(said, dict) and isinstance(said.get("name"), str) and said.get("mode") in ("min", "max"):
        return Metric(said["name"], said["mode"])
    return None


def direction(name: str) -> str:
    """Whether less ("min") or more ("max") of a figure is better, by its name."""
    return "min" if name.endswith(SMALLER) and not name.endswith("tokens_per_second") else "max"


def names(runs: Sequence[Run]) -> list[str]:
    """Of every figure that a run ended with."""
    found: dict[str, None] = {}
    for run in runs:
        for places in PLACES.values():
            for place in places:
                part = run.summary.get(place)
                found |= dict.fromkeys(part if isinstance(part, dict) else ())
    found.pop("step", None)
    found |= dict.fromkeys(size for size in SIZES if any(number(run.summary.get(size)) is not None for run in runs))
    return list(found)


def figure(run: Run, name: str) -> float | None:
    """What a run reached: on validation and test data with its best checkpoint, else at its end.

    None: nothing, or no finite number.
    """
    for place in PLACES.get(name.partition("/")[0], ()):
        part = run.summary.get(place)
        if isinstance(part, dict) and (value := number(part.get(name))) is not None:
            return value
    return number(run.summary.get(name)) if name in SIZES else None


def total_flops(run: Run) -> float | None:
    """Of all training, forward and backward."""
    tokens, each = number(run.summary.get("tokens")), number(run.summary.get("flops_per_token"))
    return None if tokens is None or each is None else tokens * each


def number(value: object) -> float | None:
    """A finite number; None: anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
