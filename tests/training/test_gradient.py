"""The gradient, the weights and the figures do not depend on how a batch is cut."""

import csv
import os
from pathlib import Path

import pytest
import torch

from tests.training.runs import documents, gradients, make, mixture
from triform.run.folder import RunFolder
from triform.training.saving import read_checkpoint

Cut = tuple[list[dict[str, torch.Tensor]], RunFolder]
"""Gradients of each step, and the run."""

CUTS = [(1, 3), (1, 4), (2, 1), (2, 3)]
"""(devices, micro-batches): some leave slices of unequal size, the last ones of an epoch empty slices."""

STRATEGIES = {
    "ddp": ("trainer.strategy=ddp",),
    "fsdp": ("trainer.strategy=fsdp",),
    "tensor_parallel": ("trainer.strategy=tensor_parallel", "trainer.tensor_parallel=2"),
    "fsdp_tp": ("trainer.strategy=fsdp", "trainer.tensor_parallel=2"),
}


def cut(folder: Path, family: str, devices: int, accumulate: int, *overrides: str) -> Cut:
    place = folder / f"{devices}x{accumulate}x{len(list(folder.iterdir()))}"
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


def changes(folder: Path, data: str) -> tuple[str, ...]:
    """Overrides for a kind of rows."""
    return {
        "rows": lambda: (),
        "packed": lambda: ("data.packing=true", documents(folder)),
        "mixed": lambda: ("data.packing=true", *mixture(folder)),
    }[data]()


def check_same(expected: Cut, found: Cut, what: str) -> None:
    """Gradients of each step, weights at the end and all that was logged are equal to rounding."""
    (gradients, whole), (other, run) = expected, found
    assert len(gradients) == len(other) == 18
    for step, (a, b) in enumerate(zip(gradients, other, strict=True)):
        assert a.keys() == b.keys()
        largest = max(float(gradient.abs().max()) for gradient in a.values())
        for name, gradient in a.items():
            scale = max(float(gradient.abs().max()), 0.01 * largest)  # that of a key's bias is rounding alone
            error = float((gradient - b[name]).abs().max()) / scale
            assert error < 1e-5, f"{what}, step {step}, {name}: {error}"
    ends = [read_checkpoint(of.checkpoints / "last.ckpt")["state_dict"] for of in (whole, run)]
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        torch.testing.assert_close(ends[1][name], value, rtol=1e-5, atol=1e-6, msg=f"{what}, {name}")
    for c, d in zip(logged(whole), logged(run), strict=True):
        assert c == pytest.approx(d, rel=1e-5)


DATA = [
    *(("encoder", "rows"), ("decoder", "rows"), ("encoder_decoder", "rows")),
    *(("encoder", "packed"), ("decoder", "packed"), ("decoder", "mixed")),
]


@pytest.mark.parametrize(("family", "data"), DATA)
def test_devices_and_micro_batches_only_cut(tmp_path: Path, family: str, data: str) -> None:
    words = changes(tmp_path, data)
    expected = cut(tmp_path, family, 1, 1, *words)
    assert "train/expert_load" not in expected[1].metrics.read_text(), "it has no experts"
    for devices, accumulate in CUTS:
        found = cut(tmp_path, family, devices, accumulate, *words)
        check_same(expected, found, f"{devices} devices, {accumulate} micro-batches")


@pytest.mark.parametrize(
    ("strategy", "accumulate", "family", "data"),
    [("fsdp", 3, "decoder", "packed"), ("tensor_parallel", 1, "encoder_decoder", "rows")],
)
def test_strategies_only_cut(tmp_path: Path, strategy: str, accumulate: int, family: str, data: str) -> None:
    words = changes(tmp_path, data)
    expected = cut(tmp_path, family, 1, 1, *words)
    check_same(expected, cut(tmp_path, family, 2, accumulate, *words, *STRATEGIES[strategy]), strategy)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "data"), DATA)
@pytest.mark.parametrize(
    ("strategy", "devices", "accumulate"),
    [
        *(("ddp", 4, 1), ("fsdp", 2, 1), ("fsdp", 4, 2), ("fsdp", 1, 2)),
        *(("tensor_parallel", 2, 4), ("fsdp_tp", 2, 1), ("fsdp_tp", 4, 1), ("fsdp_tp", 4, 3)),
    ],
)
def test_every_strategy_only_cuts(
    tmp_path: Path,
    family: str,
    data: str,
    strategy: str,
    devices: int,
    accumulate: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)  # more ranks than cores are slow, nothing else
    words = changes(tmp_path, data)
    expected = cut(tmp_path, family, 1, 1, *words)
    check_same(expected, cut(tmp_path, family, devices, accumulate, *words, *STRATEGIES[strategy]), strategy)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "tensor_parallel"])
@pytest.mark.parametrize(
    "parts",
    [
        ("callbacks=ema", "model/adapter=lora"),
        ("optimizer=schedule_free", "scheduler=constant"),
        ("trainer.activation_checkpointing=block",),
    ],
    ids=lambda parts: parts[0],
)
def test_averages_adapters_and_optimizers_are_cut_alike(tmp_path: Path, strategy: str, parts: tuple[str, ...]) -> None:
    expected = cut(tmp_path, "decoder", 1, 1, *parts)
    check_same(expected, cut(tmp_path, "decoder", 2, 1, *parts, *STRATEGIES[strategy]), strategy)


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
