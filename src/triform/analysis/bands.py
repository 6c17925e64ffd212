"""What several seeds of a recipe's short form did, and whether a further run does the same.

Of a further run each point of the curve lies in a band that Student's t makes of the seeds' values: a prediction
interval, so wide that all points together are inside with a chance of `LEVEL` where nothing has changed (Bonferroni).
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from triform.analysis.compare.variants import flat
from triform.analysis.runs import Run
from triform.data.prepare import Prepared
from triform.data.sources.base import digest
from triform.run.errors import BadInput
from triform.run.folder import write_whole

LEVEL = 0.99
"""Chance that an unchanged recipe is said to be so."""

LEAST_SEEDS = 3
"""Of a record, as a band from fewer would be too wide to say anything."""

CURVES = ("train/loss", "validation/loss")
"""What is judged: a measure such as accuracy follows from the loss, but is coarser."""

N_POINTS = 6
"""Of a curve, at equal distances; each is the mean of the values logged since the point before."""

UNRECORDED = ("seed", "name", "trust", "traceback", "paths", "logger", "data.train_files", "data.validation_files")
"""Of a config: what changes no figure, and where files lie (what is in them is recorded)."""


@dataclass(frozen=True)
class Made:
    """What a run was made from, as far as its figures may depend on it."""

    versions: dict[str, str | None]
    cpu: str | None
    threads: int
    data: dict[str, str]
    config: dict[str, Any]

    def differences(self, now: "Made") -> list[str]:
        """What is another in `now`, in words."""
        found = []
        for name in dict.fromkeys([*self.versions, *now.versions]):
            before, after = self.versions.get(name), now.versions.get(name)
            if before != after:
                found.append(f"{name} {after}, recorded with {before}")
        if self.threads != now.threads:
            found.append(f"{now.threads} threads, recorded with {self.threads}")
        if self.cpu != now.cpu:
            found.append(f"processor {now.cpu}, recorded on {self.cpu}")
        found += [f"data: the {name} split is another" for name in self.data if self.data[name] != now.data.get(name)]
        absent = "absent"
        for key in dict.fromkeys([*self.config, *now.config]):
            before, after = self.config.get(key, absent), now.config.get(key, absent)
            if before != after:
                found.append(f"{key}={_word(after)}, recorded with {_word(before)}")
        return found


@dataclass(frozen=True)
class Record:
    """What several seeds of a recipe's short form did.

    Attributes:
        overrides: of the short form.
        curves: metric -> step -> the value of each seed, in their order.
    """

    overrides: list[str]
    seeds: list[int]
    curves: dict[str, dict[int, list[float]]]
    made: Made

    def write(self, file: Path) -> None:
        write_whole(file, json.dumps(asdict(self), indent=1) + "\n")


@dataclass(frozen=True)
class Point:
    """A value of the run beside the band that it should lie in."""

    metric: str
    step: int
    value: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        return self.low <= self.value <= self.high  # never, if it is not finite


def read_record(file: Path) -> Record:
    """A record.

    Raises:
        BadInput: there is none, or it is broken.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        curves = {
            metric: {int(step): [float(value) for value in values] for step, values in points.items()}
            for metric, points in content["curves"].items()
        }
        record = Record(content["overrides"], content["seeds"], curves, Made(**content["made"]))
        _check(record)
    except FileNotFoundError:
        raise BadInput(
            f"{file.stem}: no run of this recipe is recorded; triform verify lists those that are, and "
            f"triform verify {file.stem} --record 5 makes a record"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{file} is no record: {error}; put it back as triform verify --record wrote it") from error
    return record


def _check(record: Record) -> None:
    """Refuse what a run could not be judged by.

    Raises:
        ValueError: it has no point, or not one value of each seed.
    """
    values = [values for points in record.curves.values() for values in points.values()]
    if not values:
        raise ValueError("it has no point of a curve")
    if len(record.seeds) < LEAST_SEEDS or any(len(one) != len(record.seeds) for one in values):
        raise ValueError(f"a point has not one value of each of {LEAST_SEEDS} seeds or more")


def made(run: Run, prepared: Prepared, environment: Mapping[str, Any]) -> Made:
    """What a run was made from, of its folder's record."""
    config = {key: value for key, value in flat(run.config).items() if not is_unrecorded(key)}
    return Made(
        versions={"python": environment["python"], **environment["versions"]},
        cpu=environment["hardware"]["cpu"],
        threads=environment["threads"]["torch"],
        data={name: content(prepared.folder, name) for name in ("train", "validation") if name in prepared.splits},
        config=config,
    )


def content(folder: Path, split: str) -> str:
    """A hash of a split as it is read: tokens, labels and all, whichever files they came from."""
    return digest(file.read_bytes() for file in sorted(folder.glob(f"{split}.*")))


def curves(metrics: Mapping[str, np.ndarray]) -> dict[str, dict[int, float]]:
    """The points of a run that are judged: metric -> step -> value."""
    steps = metrics["step"]
    found = {}
    for metric in CURVES:
        values = metrics.get(metric, np.full(len(steps), math.nan))
        logged = ~np.isnan(values)
        known, at = values[logged], steps[logged].astype(int)
        pieces = np.array_split(np.arange(len(known)), min(N_POINTS, len(known))) if len(known) else []
        found[metric] = {int(at[piece[-1]]): float(np.mean(known[piece])) for piece in pieces}
    return found


def judge(record: Record, found: Mapping[str, Mapping[int, float]]) -> list[Point]:
    """The points of a run beside the bands of its recipe's record; one that the run has not is not a number."""
    n_points = sum(len(points) for points in record.curves.values())
    return [
        Point(metric, step, found.get(metric, {}).get(step, math.nan), *band(values, n_points))
        for metric, points in record.curves.items()
        for step, values in points.items()
    ]


def band(values: Sequence[float], n_points: int) -> tuple[float, float]:
    """Where a further value lies: mean -+ t(n - 1) s sqrt(1 + 1/n), at a level that holds for all points together."""
    n = len(values)
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
    half = float(stdtrit(n - 1, 1 - (1 - LEVEL) / n_points / 2)) * spread * math.sqrt(1 + 1 / n)
    return mean - half, mean + half


def same_seed(record: Record, seed: int, found: Mapping[str, Mapping[int, float]]) -> bool:
    """Whether the record has a run of this seed, and this one is equal to it to the last bit."""
    if seed not in record.seeds:
        return False
    i = record.seeds.index(seed)
    return all(
        found.get(metric, {}).get(step) == values[i]
        for metric, points in record.curves.items()
        for step, values in points.items()
    )


def page(name: str, record: Record, points: Sequence[Point], seed: int, now: Made, same: bool) -> Iterator[str]:
    """The verdict in lines, its last line in one sentence."""
    width = max(len(point.metric) for point in points)
    yield f"{'':{width}}   step     here   recorded, {len(record.seeds)} seeds"
    for point in points:
        mark = "" if point.inside else "   outside"
        yield (f"{point.metric:{width}} {point.step:6} {point.value:8.4f}   {point.low:.4f} to {point.high:.4f}{mark}")
    yield ""
    differences = record.made.differences(now)
    outside = [point for point in points if not point.inside]
    if outside:
        yield from (f"differs: {line}" for line in differences)
        if not differences:
            yield "versions, threads, processor, data and config are as recorded: the code does something else"
        yield f"{name}: {len(outside)} of {len(points)} points of the curve lie outside the recorded band"
    elif same:
        yield f"{name}: as recorded, bit for bit (seed {seed})"
    else:
        yield from (f"differs, without harm: {line}" for line in differences)
        yield f"{name}: as recorded, all {len(points)} points of the curve lie in the band"


def is_unrecorded(key: str) -> bool:
    """Whether a key of the config, or what is above it, is one of `UNRECORDED`."""
    return any(key == name or key.startswith(f"{name}.") for name in UNRECORDED)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
