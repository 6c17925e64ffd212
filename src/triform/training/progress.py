"""The line that a training run shows while it works."""

import sys
import time
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from triform.training.budget import ENDLESS, Budget
from triform.training.units import duration, rate

REFRESH_SECONDS = 0.5  # as often as rich redraws, in 2 ms; between two redraws a step costs one clock read


class Progress(ProgressBar):
    """Steps done, time left, loss, tokens per second, validation loss and learning rate, on one line.

    Redraws the line on a terminal; elsewhere (a file, a cluster's log) prints it anew every
    `line_seconds`. Figures come from the mapping `status` of the LightningModule, keys `loss`,
    `validation_loss`, `lr` and `tokens_per_second`; one that it lacks keeps its last value. Nothing
    is read from the device, so that watching a run does not slow it.

    Steps are optimizer steps. Time left is what remains at the mean rate of this process,
    validation included, the first step (compiling, warming up) left out.

    Args:
        budget: when training ends, which a limit in hours alone estimates anew; None: the trainer's `max_steps`.
        line_seconds: seconds between two lines where there is no terminal.
        console: where to draw; None: standard error, so that standard output holds results only.
    """

    def __init__(
        self, budget: Budget | None = None, line_seconds: float = 10.0, console: Console | None = None
    ) -> None:
        super().__init__()
        self.budget = budget
        self.line_seconds = line_seconds
        self.console = console if console is not None else Console(stderr=True)
        self._enabled = True
        self._bar: Bar | None = None
        self._task = TaskID(0)
        self._drawn = float("-inf")
        self._printed = ""
        self._began: tuple[int, float] | None = None
        self._status: dict[str, float] = {}

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False
        self._close()

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print above the line; what `trainer.print` and `module.print` call."""
        if self._enabled:
            self.console.print(*args, **kwargs)

    # training

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._began = None
        self._printed = ""
        self._status = {}
        self._drawn = float("-inf") if self.console.is_terminal else time.monotonic()
        if self._enabled and self.console.is_terminal:
            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=16, table_column=Column(min_width=8)),
                TextColumn("{task.fields[line]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
                console=self.console,
                transient=True,
                refresh_per_second=1 / REFRESH_SECONDS,
            )
            self._task = self._bar.add_task(
                "train", total=self._total(trainer) or None, completed=trainer.global_step, line=""
            )
            self._bar.start()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._began is None:
            self._began = (trainer.global_step, time.monotonic())
        self._draw("train", trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._enabled and self._began is not None:
            self._status |= getattr(pl_module, "status", {})
            self._close()
            if self._printed != self._line(trainer):  # the last figures stay on the screen
                self._print_line(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._close()

    # validation, test

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if trainer.sanity_checking:
            return
        total = _count(trainer.num_val_batches, dataloader_idx)
        self._draw(f"validate {batch_idx + 1}/{total}", trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._draw("train", trainer, pl_module)

    # the line

    def _draw(self, what: str, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._enabled:
            return
        self._status |= getattr(pl_module, "status", {})
        now = time.monotonic()
        if self._bar is not None:
            if now - self._drawn >= REFRESH_SECONDS:
                self._drawn = now
                line = self._line(trainer)
                self._bar.update(
                    self._task,
                    description=what,
                    total=self._total(trainer) or None,
                    completed=trainer.global_step,
                    line=line,
                )
        elif not self.console.is_terminal and now - self._drawn >= self.line_seconds:
            self._drawn = now
            self._print_line(trainer, what)

    def _print_line(self, trainer: Trainer, what: str = "train") -> None:
        self._printed = self._line(trainer)
        self.console.print(f"{what}  {self._printed}", markup=False, highlight=False, soft_wrap=True)

    def _line(self, trainer: Trainer) -> str:
        step, total = trainer.global_step, self._total(trainer)
        parts = [f"step {step}/{total}" if total > 0 else f"step {step}"]
        if total > step and self._began is not None and step > self._began[0]:
            seconds = (time.monotonic() - self._began[1]) / (step - self._began[0])
            parts.append(f"{duration(seconds * (total - step))} left")
        return "  ".join(parts + figures(self._status))

    def _total(self, trainer: Trainer) -> int:
        """Optimizer steps in all, as far as is known; 0: not at all."""
        total = float(trainer.max_steps)
        if self.budget is not None:
            total = self.budget.total(trainer.global_step, getattr(trainer.lightning_module, "seconds", 0.0))
        return round(total) if 0 < total < ENDLESS else 0

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            sys.stderr.flush()


def figures(status: Mapping[str, float]) -> list[str]:
    """The known figures of `status` as people read them, most wanted first: a narrow terminal cuts the end."""
    shown = []
    if "loss" in status:
        shown.append(f"loss {status['loss']:.4f}")
    if "tokens_per_second" in status:
        shown.append(f"{rate(status['tokens_per_second'])} tokens/s")
    if "validation_loss" in status:
        shown.append(f"validation {status['validation_loss']:.4f}")
    if "lr" in status:
        shown.append(f"lr {status['lr']:.1e}")
    return shown


def _count(batches: Any, dataloader_idx: int) -> str:
    count = batches[dataloader_idx] if isinstance(batches, list) else batches
    return str(count) if count != float("inf") else "?"
