"""Stopping when asked to, without losing work."""

from contextlib import ExitStack
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from triform.tasks.task import Task
from triform.training.stop import Preempted, stop

__all__ = ["PRUNE", "Preempted", "Preemption", "Pruned"]

PRUNE = ".prune"
"""File in a run's folder that asks for its end after the next validation; a sweep writes it."""


class Pruned(Exception):
    """The run has been told that it is not worth going on. Raised after a validation, with a checkpoint."""


class Preemption(Callback):
    """Once a step is done, SIGTERM, SIGUSR1 and Ctrl-C ask for a checkpoint at the end of the next one.

    Use it as a context around training. Before the first step of this process, as outside training, there is nothing
    to save, and `Preempted` is raised where the signal arrives; see `triform.training.stop`.
    """

    def __init__(self) -> None:
        self._context = ExitStack()
        self._deferred = False

    def __enter__(self) -> "Preemption":
        self._context.enter_context(stop.listening())
        return self

    def __exit__(self, *exception: object) -> None:
        self._raise_again()
        self._context.close()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Task)
        if pl_module.stepped and not self._deferred:
            task, self._deferred = pl_module, True

            def ask() -> None:
                task.stop_requested = True

            stop.defer(ask)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._raise_again()

    def _raise_again(self) -> None:
        if self._deferred:
            stop.defer(None)
            self._deferred = False
