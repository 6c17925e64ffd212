"""The progress line, watched over a real training run of a tiny module."""

import io
import re

import lightning as L
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader

from triform.training.progress import Progress, duration, figures, rate

STEPS = 6


class Line(L.LightningModule):
    """One weight that learns 1, with the figures that a progress line reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.status: dict[str, float] = {}

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        if self.global_step == 2:  # figures appear when they are first recorded, and may not come each time
            self.status = {"loss": 0.5, "lr": 1e-3, "tokens_per_second": 12345.0, "gradient_norm": 1.0}
        elif self.global_step == 4:
            self.status = {"loss": 0.25}
        return (self.weight - 1).square().sum()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.status["validation_loss"] = 0.75 if self.global_step < STEPS else 0.7

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(progress: Progress, accumulate: int = 1, fail_at: int | None = None) -> None:
    class Fail(L.Callback):
        def on_train_batch_start(self, trainer: L.Trainer, *args: object) -> None:
            if trainer.global_step == fail_at:
                raise RuntimeError("stop here")

    trainer = L.Trainer(
        max_steps=STEPS,
        max_epochs=-1,
        accumulate_grad_batches=accumulate,
        val_check_interval=3 * accumulate,
        check_val_every_n_epoch=None,
        callbacks=[progress, Fail()],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    rows = torch.zeros(STEPS * accumulate, 1)
    trainer.fit(Line(), DataLoader(rows), DataLoader(torch.zeros(2, 1)))


# Lightning's advice on workers is no news for a tiny run.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*isinstance.treespec.*")


def test_without_a_terminal_lines_are_printed_at_most_every_interval() -> None:
    out = io.StringIO()
    train(Progress(line_seconds=3600, console=Console(file=out, width=200)))
    assert out.getvalue() == (
        f"train  step {STEPS}/{STEPS}  loss 0.2500  12.3k tokens/s  validation 0.7000  lr 1.0e-03\n"
    ), "one line at the end: the last known value of each figure, and no other"


def test_without_a_terminal_every_step_shows_when_the_interval_is_over() -> None:
    out = io.StringIO()
    train(Progress(line_seconds=0, console=Console(file=out, width=200)), accumulate=2)
    lines = out.getvalue().splitlines()
    assert not any("\x1b" in line for line in lines)
    assert any(line.startswith(f"validate 1/2  step 3/{STEPS}  ") and "  loss 0.5000  " in line for line in lines)
    steps = [int(re.search(r"step (\d+)/6", line)[1]) for line in lines]  # type: ignore[index]
    assert steps == sorted(steps)
    assert set(steps) == set(range(STEPS + 1)), "steps are optimizer steps, whatever the accumulation"
    left = [re.search(r"step \d/6  0:0\d left  loss", line) for line in lines if "step 4/6" in line]
    assert left
    assert all(left)
    assert "validation 0.7500" in next(line for line in lines if line.startswith("train  step 6/6"))
    assert "validation 0.7000" in lines[-1], "the last validation comes after the last step"


def test_on_a_terminal_one_line_is_redrawn_and_the_last_figures_stay() -> None:
    out = io.StringIO()
    train(Progress(console=Console(file=out, width=120, force_terminal=True)))
    text = out.getvalue()
    assert "\x1b[2K" in text, "the line is erased before it is drawn again"
    assert text.endswith(f"train  step {STEPS}/{STEPS}  loss 0.2500  12.3k tokens/s  validation 0.7000  lr 1.0e-03\n")
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l"), "the cursor is shown again"


def test_a_failure_gives_the_terminal_back() -> None:
    out = io.StringIO()
    with pytest.raises(RuntimeError, match="stop here"):
        train(Progress(console=Console(file=out, width=120, force_terminal=True)), fail_at=3)
    assert out.getvalue().rfind("\x1b[?25h") > out.getvalue().rfind("\x1b[?25l")


def test_disabled_it_draws_nothing() -> None:
    out = io.StringIO()
    progress = Progress(line_seconds=0, console=Console(file=out))
    progress.disable()
    train(progress)
    assert out.getvalue() == ""


def test_figures_come_in_one_order_and_leave_out_what_is_unknown() -> None:
    assert figures({}) == []
    assert figures({"tokens_per_second": 950.0, "loss": 2.0}) == ["loss 2.0000", "950 tokens/s"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (950, "950"), (1000, "1k"), (12345, "12.3k"), (123456, "123k"), (1.25e6, "1.25M"), (2e9, "2G")],
)
def test_rate(value: float, text: str) -> None:
    assert rate(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (40.6, "0:41"), (725, "12:05"), (3599.7, "1:00:00"), (11229, "3:07:09"), (184029, "2d 03:07:09")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_on_a_narrow_terminal_the_line_is_cut_not_wrapped() -> None:
    out = io.StringIO()
    train(Progress(console=Console(file=out, width=60, force_terminal=True)))
    live = out.getvalue()[: out.getvalue().rfind("\x1b[?25h")]
    assert live.count("\n") == 1, "rich ends the bar with one line break; a second is a wrapped line"
