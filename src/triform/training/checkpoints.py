"""Checkpoints: written whole or not at all, read without unpickling objects."""

import logging
import math
import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from triform.tasks.task import Task
from triform.training.budget import Budget
from triform.training.signals import PRUNE, Preempted, Pruned
from triform.training.stop import stop

log = logging.getLogger(__name__)

LAST, BEST = "last.ckpt", "best.ckpt"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, syncs and renames: a crash or a full disk leaves the previous file as it was."""

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: Any, storage_options: Any | None = None) -> None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with aside.open("wb") as file:
                torch.save(dict(checkpoint), file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)
        sync_folder(target.parent)

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        return read_checkpoint(Path(path))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Tensors, numbers, texts and their containers; never an object.

    Raises:
        ValueError: the file is missing, damaged, or something else.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; the run stopped before its first checkpoint") from None
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} cannot be read: it holds more than weights and numbers, or is damaged") from error
    except (RuntimeError, OSError, EOFError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{path} cannot be read ({reason}); it is damaged; put a good checkpoint in its place"
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("state_dict"), Mapping):
        raise ValueError(f"{path} is no checkpoint: it holds no state_dict; put a good checkpoint in its place")
    return found


def newest(folder: Path) -> Path | None:
    """The checkpoint to go on from: `last`, or `best` where that one is missing or damaged; None: there is none yet.

    Raises:
        ValueError: there are checkpoints, but none can be read.
    """
    failure: ValueError | None = None
    for path in (folder / LAST, folder / BEST):
        if path.exists():
            try:
                read_checkpoint(path)
            except ValueError as error:
                failure = error
                log.warning("%s", error)
            else:
                return path
    if failure is not None:
        raise ValueError(f"{failure}; or start anew with: triform rerun {folder.parent}") from failure
    return None


def sweep(folder: Path) -> None:
    """Remove what a writer that was killed left beside the checkpoints."""
    for aside in folder.glob(".*.ckpt.*"):
        aside.unlink(missing_ok=True)


class Checkpoints(Checkpoint):
    """Decides after each optimizer step whether to validate, to save, to stop.

    `last` is saved every `save_interval` steps, after each validation, at the end, and when a signal asks to stop;
    where a validation is due at the same step, before it too, and it is made up for if the run ends in between.
    After a validation that is not the last one, a file `.prune` beside the folder of checkpoints ends the run.
    `best` is the one with the best validation figure; NaN never is.

    Args:
        folder: of the checkpoint files.
        monitor: name of the validation figure.
        mode: "min" or "max".
        save_interval: optimizer steps between two saves; None: with each validation only.
        val_interval: optimizer steps between two validations; None: at the end only.
    """

    def __init__(
        self,
        folder: Path,
        monitor: str,
        mode: str,
        save_interval: int | None,
        val_interval: int | None,
        budget: Budget,
    ) -> None:
        self.folder, self.monitor, self.sign = folder, monitor, 1 if mode == "min" else -1
        self.save_interval, self.val_interval, self.budget = save_interval, val_interval, budget
        self.best: dict[str, float] = {}
        self.best_step: int | None = None
        self.validation_missed = False
        """Whether the checkpoint is of a step whose validation has not been done."""

    @property
    def best_or_last(self) -> Path:
        """The checkpoint that stands for the run: the best one, or the last where no figure was finite."""
        return self.folder / (LAST if self.best_step is None else BEST)

    # What is kept

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": dict(self.best),
            "best_step": self.best_step,
            "validation_missed": self.validation_missed,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.best_step = dict(state_dict["best"]), state_dict["best_step"]
        self.validation_missed = state_dict["validation_missed"]

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        best_step = checkpoint["callbacks"][self.state_key]["best_step"]
        is_best = best_step == checkpoint["progress"]["step"] and Path(str(trainer.ckpt_path)).name == LAST
        if is_best and trainer.is_global_zero:  # the run may have been killed between saving `last` and linking it
            link(self.folder / LAST, self.folder / BEST)

    # When

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.validation_missed:
            trainer.validating = True
            trainer.fit_loop.epoch_loop.val_loop.run()
            trainer.training = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Task)
        if not pl_module.stepped:
            trainer.val_check_batch = math.inf
            return
        step = trainer.global_step
        over = self.budget.spent(step, pl_module.seconds_agreed)
        self.validation_missed = over or (self.val_interval is not None and step % self.val_interval == 0)
        # Lightning validates right after this hook, or not
        trainer.val_check_batch = 1 if self.validation_missed else math.inf
        save = over or (self.save_interval is not None and step % self.save_interval == 0)
        if save or pl_module.stop_agreed:
            self._save(trainer, pl_module)
        if pl_module.stop_agreed:
            self._stop()
        if over:
            trainer.should_stop = True

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        assert isinstance(pl_module, Task)
        if trainer.state.fn == "fit" and pl_module.agreed(pl_module.stop_requested):  # all read as many batches
            self._save(trainer, pl_module)
            self._stop()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Task)
        self.validation_missed = False
        better = self._better(pl_module.measured[self.monitor])
        if better:
            self.best, self.best_step = dict(pl_module.measured), trainer.global_step
        self._save(trainer, pl_module)
        if better and trainer.is_global_zero:
            link(self.folder / LAST, self.folder / BEST)
        if trainer.state.fn == "fit" and not trainer.should_stop and self._told_to_end(pl_module):
            raise Pruned

    def _told_to_end(self, task: Task) -> bool:
        """Whether the first rank finds the file that says so: all ranks do as it does."""
        return task.agreed(task.global_rank == 0 and (self.folder.parent / PRUNE).exists())

    def _better(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        return not self.best or self.sign * value < self.sign * self.best[self.monitor]

    def _save(self, trainer: Trainer, task: Task) -> None:
        task.check_finite(weights=True)
        with stop.writing():
            trainer.save_checkpoint(self.folder / LAST)

    def _stop(self) -> None:
        stop.settle()
        raise Preempted


def link(source: Path, target: Path) -> None:
    """Make `target` the same file as `source`, in one step; files here are replaced, never changed."""
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    try:
        os.link(source, aside)
    except OSError:  # a filesystem without hard links
        shutil.copyfile(source, aside)
    os.replace(aside, target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
