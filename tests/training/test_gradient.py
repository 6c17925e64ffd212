"""The gradient, the weights and the figures do not depend on how a batch is cut."""

import csv
from pathlib import Path

import pytest
import torch

from tests.training.runs import gradients, make
from triform.run.folder import RunFolder

CUTS = [(1, 3), (1, 4), (2, 1), (2, 3)]
"""(devices, micro-batches): some leave slices of unequal size, the last ones of an epoch empty slices."""


def cut(folder: Path, family: str, devices: int, accumulate: int) -> tuple[list[dict[str, torch.Tensor]], RunFolder]:
    place = folder / f"{devices}x{accumulate}"
    place.mkdir()
    run = make(
        place,
        family,
        "model.dropout=0",
        "data.batch_size=11",
        "trainer.max_steps=18",  # more than one epoch: its last batch is short
        f"trainer.devices={devices}",
        f"trainer.accumulate={accumulate}",
        "optimizer.eps=0.1",  # steps nearly proportional to the gradient, so that rounding stays rounding
    )
    return gradients(run, devices), run


def logged(run: RunFolder) -> list[dict[str, float]]:
    """Losses, measures and counts of a run's record, row by row."""
    with run.metrics.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = ("step", "tokens", "train/loss", "validation/loss", "validation/accuracy")
    return [{name: float(row[name]) for name in names if row[name]} for row in rows]


@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder_decoder"])
def test_devices_and_micro_batches_only_cut(tmp_path: Path, family: str) -> None:
    expected, whole = cut(tmp_path, family, 1, 1)
    for devices, accumulate in CUTS:
        found, run = cut(tmp_path, family, devices, accumulate)
        assert len(found) == len(expected) == 18
        for step, (a, b) in enumerate(zip(expected, found, strict=True)):
            scale = max(float(gradient.abs().max()) for gradient in a.values())
            for name, gradient in a.items():
                error = float((gradient - b[name]).abs().max()) / scale
                assert error < 1e-5, f"{devices} devices, {accumulate} micro-batches, step {step}, {name}: {error}"
        for a, b in zip(logged(whole), logged(run), strict=True):
            assert a == pytest.approx(b, rel=1e-5)
