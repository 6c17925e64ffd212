"""When a run validates, saves and stops."""

import math
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import nn
from torch.optim import Optimizer

from triform.layers.parallel import local
from triform.tasks.task import Task
from triform.training.budget import Budget
from triform.training.saving import BEST, LAST, AtomicCheckpointIO, link
from triform.training.signals import PRUNE, Preempted, Pruned
from triform.training.stop import stop


class Checkpoints(Checkpoint):
    """Decides after each optimizer step whether to validate, to save, to stop.

    `last` is saved every `save_interval` steps, after each validation, at the end, and when a signal asks to stop;
    where a validation is due at the same step, before it too, and it is made up for if the run ends in between.
    After a validation that is not the last one, a file `.prune` beside the folder of checkpoints ends the run.
    `best` is the one with the best validation figure; NaN never is.

    Args:
        folder: of the checkpoint files.
        saving: writes them.
        monitor: name of the validation figure.
        mode: "min" or "max".
        save_interval: optimizer steps between two saves; None: with each validation only.
        val_interval: optimizer steps between two validations; None: at the end only.
    """

    def __init__(
        self,
        folder: Path,
        saving: AtomicCheckpointIO,
        monitor: str,
        mode: str,
        save_interval: int | None,
        val_interval: int | None,
        budget: Budget,
    ) -> None:
        self.folder, self.saving = folder, saving
        self.monitor, self.sign = monitor, 1 if mode == "min" else -1
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
        for optimizer in trainer.optimizers:
            check_state(optimizer, pl_module)
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
        self._save(trainer, pl_module, best=better)
        if trainer.state.fn == "fit" and not trainer.should_stop and self._told_to_end(pl_module):
            raise Pruned

    def _told_to_end(self, task: Task) -> bool:
        """Whether the first rank finds the file that says so: all ranks do as it does."""
        return task.agreed(task.global_rank == 0 and (self.folder.parent / PRUNE).exists())

    def _better(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        return not self.best or self.sign * value < self.sign * self.best[self.monitor]

    def _save(self, trainer: Trainer, task: Task, best: bool = False) -> None:
        task.check_finite(weights=True)
        self.saving.best = best
        with stop.writing():
            trainer.save_checkpoint(self.folder / LAST)

    def _stop(self) -> None:
        self.saving.wait()
        stop.settle()
        raise Preempted


def check_state(optimizer: Optimizer, module: nn.Module) -> None:
    """Refuse an optimizer's state that is not as large as its parameters.

    A fused optimizer takes from memory as many numbers as the parameter has, and puts as many there, whatever the size
    of its state: with a smaller one, from a file, it would write over what is behind it.

    Raises:
        ValueError: it names the parameter.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    for part in getattr(optimizer, "parts", [optimizer]):
        for group in part.param_groups:
            for parameter in group["params"] if group.get("fused") else ():
                for key, value in part.state.get(parameter, {}).items():
                    expected = torch.Size() if key == "step" else local(parameter).shape
                    if local(value).shape != expected:
                        raise ValueError(
                            f"the checkpoint's {key} of {names[id(parameter)]} has shape {list(local(value).shape)}, "
                            f"its optimizer needs {list(expected)}; put a good checkpoint in its place"
                        )
