"""What a run writes down about itself: every figure in metrics.csv, its state in summary.json."""

import csv
import json
import math
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from triform.tasks.task import Task
from triform.training.budget import Budget

SUMMARY_SECONDS = 1.0
"""Time between two writings of summary.json while training: a file that is replaced costs milliseconds."""

POSITION = ("step", "tokens", "seconds", "epoch")
TRAIN = ("loss", "lr", "gradient_norm", "tokens_per_second", "mfu")


class Metrics:
    """A CSV file of one row per event: where training was, and the values that were logged there.

    Args:
        path: kept and continued where it exists.
        columns: names of the values, such as "train/loss".
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, (*POSITION, *columns)
        if not path.exists():
            self._replace([])

    def append(self, row: Mapping[str, float]) -> None:
        with self.path.open("a", newline="", encoding="utf-8") as file:
            self._writer(file).writerow({name: _plain(value) for name, value in row.items()})

    def keep_until(self, step: int) -> None:
        """Drop rows after `step`, which a resumed run writes again, and a row that a kill cut short."""
        with self.path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if None not in row.values() and row["step"]]
        self._replace([row for row in rows if int(row["step"]) <= step])

    def forget(self, step: int, split: str) -> None:
        """Drop what is known of a split at `step`, which is measured again."""
        with self.path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        names = [name for name in self.columns if name.startswith(f"{split}/")]
        self._replace([row for row in rows if int(row["step"]) != step or not any(row[name] for name in names)])

    def _replace(self, rows: Sequence[Mapping[str, str]]) -> None:
        aside = self.path.with_name(f".{self.path.name}")
        with aside.open("w", newline="", encoding="utf-8") as file:
            writer = self._writer(file)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(aside, self.path)

    def _writer(self, file: Any) -> csv.DictWriter:
        return csv.DictWriter(file, self.columns)


class Summary:
    """summary.json: a mapping that is rewritten whole, so that it is always readable.

    One that is there is continued; one that somebody else has damaged is begun anew.
    """

    def __init__(self, path: Path, **known: Any) -> None:
        self.path = path
        self.values = _known(path)
        self.update(**known)

    def update(self, **values: Any) -> None:
        """Change some of it, and write it."""
        self.values |= values
        self._written = time.monotonic()
        aside = self.path.with_name(f".{self.path.name}")
        aside.write_text(json.dumps({key: _plain(value) for key, value in self.values.items()}, indent=2) + "\n")
        os.replace(aside, self.path)

    def follow(self, **values: Any) -> None:
        """Change what changes all the time; it is written when some time has passed, or with an `update`."""
        self.values |= values
        if time.monotonic() - self._written >= SUMMARY_SECONDS:
            self.update()


def _known(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


class Record(Callback):
    """Writes the training loss at its interval and each validation, on the first rank and to the loggers.

    Args:
        metrics: None on other ranks than the first, as `summary`.
        steps_per_epoch: optimizer steps that read all training data once; of a stream estimated, or NaN.
        flops_per_token: of forward and backward.
        ceiling: floating-point operations per second of this device at matrix products; None: unknown, no MFU.
    """

    def __init__(
        self,
        metrics: Metrics | None,
        summary: Summary | None,
        budget: Budget,
        steps_per_epoch: float,
        flops_per_token: float,
        ceiling: float | None,
    ) -> None:
        self.metrics, self.summary, self.budget = metrics, summary, budget
        self.steps_per_epoch, self.flops_per_token, self.ceiling = steps_per_epoch, flops_per_token, ceiling
        self._validated = False

        if summary is not None:
            summary.values.pop("where", None)  # of an error before
            summary.update(status="running", error=None)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.metrics is not None:
            self.metrics.keep_until(trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Task)
        step = trainer.global_step
        if not pl_module.stepped or (step % pl_module.log_interval and step != self.budget.max_steps):
            return
        pl_module.check_finite(weights=False)
        figures = pl_module.record()
        if self.ceiling is not None:
            pl_module.status["mfu"] = (
                figures["tokens_per_second"] * self.flops_per_token / self.ceiling / trainer.world_size
            )
        self.write(trainer, pl_module, "train", pl_module.status)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Task)
        if trainer.sanity_checking:
            return
        if self.metrics is not None and not self._validated:  # killed between this row and its checkpoint
            self.metrics.keep_until(trainer.global_step)
            self.metrics.forget(trainer.global_step, "validation")
        self._validated = True
        pl_module.status["validation_loss"] = pl_module.measured["loss"]
        self.write(trainer, pl_module, "validation", pl_module.measured)

    def write(self, trainer: Trainer, task: Task, split: str, values: Mapping[str, float]) -> None:
        if self.metrics is None or self.summary is None:
            return
        named = {
            f"{split}/{name}": value for name, value in values.items() if f"{split}/{name}" in self.metrics.columns
        }
        step = trainer.global_step
        position = {
            "step": step,
            "tokens": task.tokens,
            "seconds": round(task.seconds, 3),
            "epoch": round(step / self.steps_per_epoch, 4),
        }
        self.metrics.append(position | named)
        for logger in trainer.loggers:
            logger.log_metrics(named | {"tokens": task.tokens, "seconds": task.seconds}, step)
        tell = self.summary.follow if split == "train" else self.summary.update
        tell(
            steps=step,
            tokens=task.tokens,
            seconds=task.seconds,
            tokens_per_second=task.tokens / max(task.seconds, 1e-9),
            mfu=None
            if self.ceiling is None
            else task.tokens * self.flops_per_token / max(task.seconds, 1e-9) / self.ceiling / trainer.world_size,
            peak_memory_bytes=peak_memory_bytes(),
            last=self.summary.values.get("last", {}) | named,
        )

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.summary is not None:
            with suppress(OSError):  # a full disk may be what went wrong
                self.summary.update()

    def stopped(self, step: int, task: Task) -> None:
        """A signal ended the run when `step` optimizer steps were done."""
        if self.summary is not None:
            self.summary.update(status="preempted", steps=step, tokens=task.tokens, seconds=task.seconds)
            folder = self.summary.path.parent
            print(f"stopped at step {step}; go on with: triform resume {folder}")

    def pruned(self, step: int, task: Task, best_step: int | None, best: Mapping[str, float]) -> None:
        """The sweep that the run belongs to ended it when `step` optimizer steps were done."""
        if self.summary is not None:
            self.summary.update(
                status="pruned",
                steps=step,
                tokens=task.tokens,
                seconds=task.seconds,
                best={"step": best_step} | {f"validation/{name}": value for name, value in best.items()},
            )
            print(f"pruned at step {step}")

    def finished(
        self,
        trainer: Trainer,
        split: str,
        final: Mapping[str, float],
        best_step: int | None,
        best: Mapping[str, float],
    ) -> None:
        """Training is over; `final` is what the best checkpoint reaches on `split`."""
        if self.summary is None:
            return
        self.summary.update(
            status="finished",
            best={"step": best_step} | {f"validation/{name}": value for name, value in best.items()},
            final={f"{split}/{name}": value for name, value in final.items()},
        )
        for logger in trainer.loggers:
            logger.log_metrics({f"final/{split}/{name}": value for name, value in final.items()}, trainer.global_step)


def peak_memory_bytes() -> int:
    """Largest memory held so far: of the GPU where one is in use, else of this process."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _plain(value: Any) -> Any:
    """The shortest text that reads back as the same float; JSON and CSV know no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
