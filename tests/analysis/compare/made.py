"""Run folders made by the product's own writers, without training."""

import copy
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from triform.analysis.report import as_text
from triform.run.compose import compose
from triform.run.folder import RunFolder, create
from triform.run.job import settled
from triform.tasks.objective import Sample
from triform.training.record import TRAIN, Metrics, Summary

COLUMNS = [*(f"train/{name}" for name in TRAIN), "validation/loss", "validation/accuracy", "test/loss", "test/accuracy"]
SHAPE = ["logger=csv", "model.d_model=24", "model.n_heads=3", "model.d_ff=36"]


@functools.cache
def composed(*overrides: str) -> dict[str, Any]:
    return settled(compose([*SHAPE, *overrides]))


def config_of(outputs: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """The config that these give; composed once for each choice of options, which takes long."""
    choices = [word for word in overrides if "/" in word.partition("=")[0] or word.startswith("model=")]
    config = copy.deepcopy(composed(*choices))
    config["paths"] |= {"outputs": str(outputs), "cache": str(outputs / ".cache")}
    for word in overrides:
        key, _, value = word.partition("=")
        *path, last = key.split(".")
        if word not in choices:
            functools.reduce(lambda node, part: node[part], path, config)[last] = yaml.safe_load(value)
    return config


def make_run(
    folder: Path,
    loss: float,
    *overrides: str,
    status: str = "finished",
    error: str | None = None,
    parameters: int = 1000,
    steps: int = 20,
    monitor: tuple[str, str] = ("validation/loss", "min"),
    samples: list[Sample] | None = None,
) -> RunFolder:
    """A run that fell from 4 to `loss` in `steps` optimizer steps of 50 tokens and half a second.

    Its accuracy is exp(-loss); on test data both losses are 0.5 higher.
    """
    run = create(folder.parent, config_of(folder.parent.parent, overrides), overrides, folder.name)
    flops = 6.0 * parameters
    summary = Summary(
        run.summary,
        parameters=parameters,
        flops_per_token=flops,
        monitor=dict(zip(("name", "mode"), monitor, strict=True)),
        status="running",
        error=None,
    )
    metrics = Metrics(run.metrics, COLUMNS)
    for step in range(1, steps + 1):
        now = loss + (4 - loss) * math.exp(-6 * step / steps)
        row = {"step": step, "tokens": 50 * step, "seconds": 0.5 * step, "epoch": step / steps}
        metrics.append(row | {"train/loss": now + 0.1, "train/lr": 0.001 * step})
        if step % 5 == 0:
            metrics.append(row | {"validation/loss": now, "validation/accuracy": math.exp(-now)})
    measured = {"validation/loss": loss, "validation/accuracy": math.exp(-loss)}
    summary.update(
        status=status,
        error=error,
        tokens=50 * steps,
        seconds=0.5 * steps,
        tokens_per_second=100.0,
        mfu=0.25,
        peak_memory_bytes=3 * 2**20,
        last={"train/loss": loss + 0.1} | measured,
    )
    if status == "finished":
        final = {"test/loss": loss + 0.5, "test/accuracy": math.exp(-loss - 0.5)}
        summary.update(best={"step": steps} | measured, final=final)
    run.samples.write_text(
        as_text(samples or [Sample("2 May 1970", "1970-05-02", "1970-05-02", True)]), encoding="utf-8"
    )
    return run


def noise(seed: int) -> float:
    """A small number of a seed, the same for every variant."""
    return float(np.random.default_rng(seed).normal(0, 0.02))
