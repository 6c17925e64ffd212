"""Reading what a run left in its folder, also one that was killed or is still going."""

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml reads a config in 2 ms, Python alone in 30


@dataclass(frozen=True)
class Run:
    """A run folder's record. `summary` is empty and `metrics` without rows where the run did not get so far.

    Attributes:
        config: the resolved configuration, plain mappings and lists.
        metrics: column name to values, one per row of metrics.csv, nan where nothing was logged.
    """

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    metrics: dict[str, np.ndarray]

    @property
    def status(self) -> str:
        """`running`, `finished`, `failed` or `preempted`; `unknown` without a summary."""
        return str(self.summary.get("status", "unknown"))


def read_run(folder: Path) -> Run:
    """Read config.yaml, summary.json and metrics.csv of a run folder.

    Raises:
        ValueError: the folder holds no config.yaml, so it is not a run.
    """
    file = folder / "config.yaml"
    if not file.is_file():
        raise ValueError(f"{folder} is not a run folder: it has no config.yaml; give one that a run printed")
    return Run(
        folder=folder,
        config=yaml.load(file.read_text(encoding="utf-8"), Loader=_YAML) or {},
        summary=read_summary(folder / "summary.json"),
        metrics=read_metrics(folder / "metrics.csv"),
    )


def read_summary(file: Path) -> dict[str, Any]:
    """The summary, empty where it is absent or not yet a whole JSON object."""
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def read_metrics(file: Path) -> dict[str, np.ndarray]:
    """Columns of a metrics.csv as float64 arrays of equal length.

    A cell that is blank, missing or no number is nan. A last line without its end was torn by a
    kill and is left out: half a number may still read as a number.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    whole, _, _torn = text.rpartition("\n")
    rows = list(csv.reader(whole.splitlines()))
    if not rows:
        return {}
    names, body = rows[0], rows[1:]
    table = np.full((len(body), len(names)), np.nan)
    for i, row in enumerate(body):
        cells = row[: len(names)]
        try:
            table[i, : len(cells)] = [float(cell) if cell else math.nan for cell in cells]
        except ValueError:
            table[i, : len(cells)] = [_number(cell) for cell in cells]
    return {name: table[:, j] for j, name in enumerate(names)}


def series(metrics: dict[str, np.ndarray], name: str, along: str = "step") -> tuple[np.ndarray, np.ndarray]:
    """The logged values of one column against another, blanks left out; empty where it was never logged."""
    if name not in metrics or along not in metrics:
        return np.empty(0), np.empty(0)
    x, y = metrics[along], metrics[name]
    logged = ~(np.isnan(x) | np.isnan(y))
    return x[logged], y[logged]


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
