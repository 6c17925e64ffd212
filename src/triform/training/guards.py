"""Numbers that are not finite never reach the weights, and a failure says what it was read from."""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer

from triform.data.module import DataModule
from triform.layers.parallel import local
from triform.tasks.objective import Batch
from triform.tasks.task import Task
from triform.training.codes import POLICIES
from triform.training.dossier import Dossier
from triform.training.record import peak_memory_bytes
from triform.training.stop import Preempted


class NotFinite(FloatingPointError):
    """Raised by all ranks at the same step, with the same words: one of them says it."""

    agreed = True


class OutOfMemory(MemoryError):
    """Memory was not enough; says for what, and what to lower."""


class Guard(Callback):
    """After each backward pass, looks at the loss and the gradient before the optimizer does.

    Where they are not finite, on any rank, no rank takes the step: weights and optimizer stay as they were, the data
    goes on. It stands in failure/not_finite.jsonl in the run's folder: step, rank, the first parameter whose gradient
    is not finite, the examples. Under float16 an infinite gradient is the loss scaler's business, which leaves that
    step out by itself. It reads the gradient's norm, which clipping needs as well, and waits for the device once a
    step; parameters are looked through only when the norm is not finite.

    What was read is also kept in mind for the dossier of any other failure, and for what is said of memory.

    Args:
        folder: of the run.
        policy: `stop`: the run fails; `skip`: it goes on with the next step.
        at_most: steps in a row that are skipped; one more is a failure.
        until: step after which the run stops, as when a failure is replayed; None: it goes on.

    Raises:
        ValueError: a policy that is not known, or `at_most` below 1.
    """

    def __init__(self, folder: Path, policy: str, at_most: int, until: int | None = None) -> None:
        if policy not in POLICIES:
            raise ValueError(f"Guard: non_finite={policy!r} is not known; set trainer.non_finite to stop or skip")
        if at_most < 1:
            raise ValueError(f"Guard: max_skipped={at_most} is below 1; set trainer.max_skipped to 1 or more")
        self.folder, self.policy, self.at_most, self.until = folder, policy, at_most, until
        self.dossier = Dossier(folder)
        self.in_a_row = 0
        """Steps left out since one was taken; a resumed run goes on counting."""
        self.reading: dict[str, list[int]] = {}
        """Sizes of the batch that is read."""
        self.phase = "start"
        self._found: dict[str, Any] = {}
        self._groups: list[dict[str, Any]] = []

    # What is kept

    def state_dict(self) -> dict[str, Any]:
        return {"in_a_row": self.in_a_row}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.in_a_row = state_dict["in_a_row"]

    # What is read

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.phase, self.reading = "training", sizes(batch)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.phase, self.reading = "validation", sizes(batch)

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.phase, self.reading = "test", sizes(batch)

    # What is not finite

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        assert isinstance(pl_module, Task)
        scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        size = torch.as_tensor(pl_module.loss_so_far()).double()
        if not scaled:
            size = size + pl_module.raw_gradient_norm()
        pl_module.broken = not math.isfinite(float(size))
        self._found = {}
        if pl_module.broken:
            self._found = {
                "rank": trainer.global_rank,
                "loss": str(float(pl_module.loss_so_far())),
                **({} if scaled else first_not_finite(pl_module, optimizer)),
                **self.examples(trainer),
            }
        # Scalars that an optimizer moves although no parameter has a gradient, such as a count of its steps.
        self._groups = [{key: value for key, value in group.items() if _is_number(value)}
                        for group in optimizer.param_groups]  # fmt: skip

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Task)
        if not pl_module.stepped:
            return
        if pl_module.broken_agreed:
            for group, before in zip(trainer.optimizers[0].param_groups, self._groups, strict=True):
                group.update({key: value for key, value in before.items() if key != "lr"})
            self._tell(trainer, pl_module)
        else:
            self.in_a_row = 0
        if self.until is not None and trainer.global_step >= self.until:
            raise Preempted

    def _tell(self, trainer: Trainer, task: Task) -> None:
        """Write down what was not finite, on which ranks; go on or fail."""
        self.in_a_row += 1
        of_all: list[dict[str, Any]] = [self._found]
        if task.group is not None:
            of_all = [{} for _ in range(trainer.world_size)]
            dist.all_gather_object(of_all, self._found, group=task.group)
        found = [one for one in of_all if one]
        found = [one for one in found if is_cause(one)] or found
        step = trainer.global_step
        if trainer.is_global_zero:
            line = json.dumps({"step": step, "tokens": task.tokens, "ranks": found})
            self.dossier.add("not_finite.jsonl", line + "\n")
        what = f"step {step}: {said(found)}"
        if self.policy == "skip" and self.in_a_row <= self.at_most:
            if trainer.is_global_zero:
                print(f"warning: {what}; the step is skipped", file=sys.stderr, flush=True)
            return
        before = f" after {self.at_most} skipped in a row" if self.policy == "skip" else ""
        skip = ", or set trainer.non_finite=skip" if self.policy == "stop" else ""
        raise NotFinite(
            f"{what}{before}; lower optimizer.lr, lengthen scheduler.warmup_steps or lower trainer.gradient_clip{skip};"
            " the last good checkpoint is kept"
        )

    def examples(self, trainer: Trainer) -> dict[str, Any]:
        """Epoch and numbers of the training examples of the step that is being made, where the data can tell."""
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, DataModule):
            return {}
        try:
            epoch, numbers = data.read_in(trainer.global_step)
        except NotImplementedError:
            return {}
        return {"epoch": epoch, "examples": numbers}

    # Failures

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if isinstance(exception, Exception) and isinstance(pl_module, Task):
            read = self.examples(trainer) if self.phase == "training" else {}
            done = 1 if isinstance(exception, NotFinite) else 0  # its step has been counted
            facts = {
                "step": trainer.global_step + 1 - done if self.phase == "training" else trainer.global_step,
                "phase": self.phase,
                "batch": self.reading,
                **(self._found if isinstance(exception, NotFinite) else read),
                "peak_memory_bytes": peak_memory_bytes(),
            }
            self.dossier.write(trainer.global_rank, exception, facts)

    def explained(self, error: Exception, step: int) -> Exception:
        """The error to raise in place of one: of memory, one that says for what it was not enough."""
        if not is_out_of_memory(error):
            return error
        shapes = ", ".join(f"{name} {' x '.join(map(str, size))}" for name, size in self.reading.items()) or "no batch"
        peak = f"{peak_memory_bytes() / 2**30:.2f}"
        total = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None
        of = "" if total is None else f" of {total / 2**30:.1f}"
        lower = (
            "lower data.batch_size or data.batch_tokens"
            if self.phase != "training"
            else "raise trainer.accumulate (the gradient stays the same), lower data.batch_size, or data.seq_len"
        )
        return OutOfMemory(
            f"out of memory in step {step + 1} ({self.phase}), in a batch of {shapes}; the peak was {peak}{of} GiB; "
            f"{lower}"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, of a GPU or of the machine, was not enough."""
    if isinstance(error, OutOfMemory):
        return False
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in str(error) or "out of memory" in str(error))
    )


def sizes(batch: Batch | Any) -> dict[str, list[int]]:
    """Shapes of a batch's tensors by name."""
    if not isinstance(batch, Mapping):
        return {}
    return {str(name): list(value.shape) for name, value in batch.items() if isinstance(value, Tensor)}


def first_not_finite(task: Task, optimizer: Optimizer) -> dict[str, Any]:
    """The first parameter, in the model's order, whose gradient is not finite, its group in the optimizer, and how many
    there are; empty where all are finite."""
    group_of = {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}
    known = [(name, p, p.grad) for name, p in task.named_parameters() if p.grad is not None]
    broken = [(name, p) for name, p, gradient in known if not bool(torch.isfinite(local(gradient)).all())]
    if not broken:
        return {}
    name, parameter = broken[0]
    return {
        "parameter": name,
        "group": group_of.get(id(parameter)),
        "not_finite": len(broken),
        "parameters": len(known),
    }


def is_cause(found: Mapping[str, Any]) -> bool:
    """Whether a rank has a bad loss or gradient itself: under FSDP it may know of it by the norm alone."""
    return "parameter" in found or not math.isfinite(float(found["loss"]))


def said(found: list[dict[str, Any]]) -> str:
    """What ranks have found, in words: those with a bad loss where there are any, else all of them."""
    own = [one for one in found if not math.isfinite(float(one["loss"]))] or found
    ranks = ", ".join(str(one["rank"]) for one in own)
    first = own[0]
    parts = [f"the loss is {first['loss']}" if not math.isfinite(float(first["loss"])) else "the loss is finite"]
    if "parameter" in first:
        parts.append(
            f"the first gradient that is not is that of {first['parameter']} (parameter group {first['group']}; "
            f"{first['not_finite']} of {first['parameters']})"
        )
    if "examples" in first:
        numbers = first["examples"]
        more = ", ..." if len(numbers) > 12 else ""
        parts.append(f"epoch {first['epoch']}, examples {', '.join(map(str, numbers[:12]))}{more}")
    return f"{', '.join(parts)} on rank {ranks}" if len(found) > 1 or own[0]["rank"] else ", ".join(parts)
