"""The gradient, the weights and the figures do not depend on how a batch is cut."""

import csv
from pathlib import Path

import pytest
import torch

from tests.training.runs import documents, gradients, make, mixture
from triform.run.folder import RunFolder

CUTS = [(1, 3), (1, 4), (2, 1), (2, 3)]
"""(devices, micro-batches): some leave slices of unequal size, the last ones of an epoch empty slices."""


def cut(
    folder: Path, family: str, devices: int, accumulate: int, *overrides: str
) -> tuple[list[dict[str, torch.Tensor]], RunFolder]:
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
        *overrides,
    )
    return gradients(run, devices), run


def logged(run: RunFolder) -> list[dict[str, float]]:
    """Losses, measures and counts of a run's record, row by row."""
    with run.metrics.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = ("step", "tokens", "train/loss", "validation/loss", "validation/accuracy")
    return [{name: float(row[name]) for name in names if row[name]} for row in rows]


@pytest.mark.parametrize(
    ("family", "data"),
    [
        *(("encoder", "rows"), ("decoder", "rows"), ("encoder_decoder", "rows")),
        *(("encoder", "packed"), ("decoder", "packed"), ("decoder", "mixed")),
    ],
)
def test_devices_and_micro_batches_only_cut(tmp_path: Path, family: str, data: str) -> None:
    changes = {
        "rows": (),
        "packed": ("data.packing=true", documents(tmp_path)),
        "mixed": ("data.packing=true", *mixture(tmp_path)),
    }[data]
    expected, whole = cut(tmp_path, family, 1, 1, *changes)
    assert "train/expert_load" not in whole.metrics.read_text(), "it has no experts"
    for devices, accumulate in CUTS:
        found, run = cut(tmp_path, family, devices, accumulate, *changes)
        assert len(found) == len(expected) == 18
        for step, (a, b) in enumerate(zip(expected, found, strict=True)):
            largest = max(float(gradient.abs().max()) for gradient in a.values())
            for name, gradient in a.items():
                scale = max(float(gradient.abs().max()), 0.01 * largest)  # that of a key's bias is rounding alone
                error = float((gradient - b[name]).abs().max()) / scale
                assert error < 1e-5, f"{devices} devices, {accumulate} micro-batches, step {step}, {name}: {error}"
        for a, b in zip(logged(whole), logged(run), strict=True):
            assert a == pytest.approx(b, rel=1e-5)


def test_what_keeps_experts_busy_is_over_the_global_batch(tmp_path: Path) -> None:
    """Cut by devices the auxiliary loss has the same gradient; by micro-batches its mean differs, their count not."""
    parts = (
        "model/feed_forward=mixture",
        "model.feed_forward.balance_loss=1.0",
        "model.feed_forward.balance_rate=0.01",
    )
    made = {(d, a): cut(tmp_path, "decoder", d, a, *parts) for d, a in ((1, 1), (2, 1), (1, 3))}
    runs = {cuts: gradients for cuts, (gradients, _) in made.items()}
    router = "model.stack.layers.1.feed_forward.router.weight"
    scale = max(float(gradient.abs().max()) for gradient in runs[1, 1][0].values())
    for name, gradient in runs[1, 1][0].items():
        assert float((gradient - runs[2, 1][0][name]).abs().max()) / scale < 1e-5, name
    for a, b in zip(runs[1, 1], runs[2, 1], strict=True):
        torch.testing.assert_close(a[router], b[router], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(runs[1, 1][0][router], runs[1, 3][0][router], rtol=1e-4, atol=0)
    whole, halves = (expert_loads(made[cuts][1]) for cuts in ((1, 1), (2, 1)))
    assert whole == pytest.approx(halves)
    assert len(whole) == 9
    assert all(1 <= load <= 4 for load in whole), "of four experts"


def expert_loads(run: RunFolder) -> list[float]:
    """The capacity factor that each record would have needed."""
    with run.metrics.open(newline="") as file:
        return [float(row["train/expert_load"]) for row in csv.DictReader(file) if row["train/loss"]]
