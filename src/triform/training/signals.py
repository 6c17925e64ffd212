"""Stopping when asked to, without losing work."""

import os
import signal
from types import FrameType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from triform.tasks.task import Task
from triform.training.codes import SIGNALS


class Preempted(Exception):
    """A signal asked to stop. Raised at a step's end, with a checkpoint, or outside training, where none is due."""


PRUNE = ".prune"
"""File in a run's folder that asks for its end after the next validation; a sweep writes it."""


class Pruned(Exception):
    """The run has been told that it is not worth going on. Raised after a validation, with a checkpoint."""


class Preemption(Callback):
    """SIGTERM, SIGUSR1 and Ctrl-C ask for a checkpoint at the next optimizer step; a second Ctrl-C ends at once.

    Other signals may come more than once: schedulers send several, and to every process.

    Use it as a context around all of a run's work: outside training there is nothing to save and `Preempted` is
    raised where the signal arrives.
    """

    def __init__(self) -> None:
        self._task: Task | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Preemption":
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self._install()
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Task)
        self._task = pl_module

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._task = None

    def _install(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._task is None:
            raise Preempted
        if self._task.stop_requested and number == signal.SIGINT:
            os._exit(128 + number)
        self._task.stop_requested = True
