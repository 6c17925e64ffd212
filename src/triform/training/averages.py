"""Averages of the weights, judged and kept in place of those that are trained."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.optim import Optimizer

from triform.layers.parallel import Whole, local
from triform.tasks.task import Task
from triform.training.optimizers import own_average

KEY = "average"
"""Of a checkpoint: the weights that training goes on from, and the state of the average."""


@runtime_checkable
class Rule(Protocol):
    """How weights are averaged. Called without gradients, with all parameters of the model in their order."""

    def due(self, step: int) -> bool:
        """Whether to take in the weights after this optimizer step."""

    def update(self, weights: Sequence[Tensor]) -> None:
        """Take in the weights."""

    def average(self, weights: Sequence[Tensor], optimizer: Optimizer) -> Sequence[Tensor] | None:
        """The average; None where there is none yet, and the weights stand for themselves."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Exponential:
    """Exponential moving average (Polyak and Juditsky 1992; Kingma and Ba 2015, section 7.2).

    Args:
        decay: share of the average that an optimizer step leaves, in (0, 1). The first steps leave less, at most
            (1 + n) / (10 + n) after n of them, so that the start is soon forgotten.

    Raises:
        ValueError: `decay` is outside (0, 1).
    """

    def __init__(self, decay: float) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"ema: decay={decay} is not between 0 and 1; set callbacks.average.decay, such as 0.999")
        self.decay = decay
        self.n, self.mean = 0, list[Tensor]()

    def due(self, step: int) -> bool:
        return True

    def update(self, weights: Sequence[Tensor]) -> None:
        decay = min(self.decay, (1 + self.n) / (10 + self.n))
        if self.mean:
            self.mean = _beside(self.mean, weights)
            torch._foreach_lerp_(self.mean, list(weights), 1 - decay)
        else:
            self.mean = [weight.detach().clone() for weight in weights]
        self.n += 1

    def average(self, weights: Sequence[Tensor], optimizer: Optimizer) -> Sequence[Tensor] | None:
        return self.mean or None

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n, "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n, self.mean = state["n"], list(state["mean"])


class Latest:
    """The mean of the weights at the last few multiples of an interval (Vaswani et al. 2017, section 6.1).

    They are kept in memory and in the checkpoint, as many times the size of the model.

    Args:
        n: how many, at least 1; 5 or 20 in the paper.
        interval: optimizer steps from one to the next.

    Raises:
        ValueError: `n` or `interval` is below 1.
    """

    def __init__(self, n: int, interval: int) -> None:
        for name, value in {"n": n, "interval": interval}.items():
            if value < 1:
                raise ValueError(f"latest: {name}={value} is below 1; set callbacks.average.{name} to 1 or more")
        self.n, self.interval = n, interval
        self.kept: list[list[Tensor]] = []

    def due(self, step: int) -> bool:
        return step % self.interval == 0

    def update(self, weights: Sequence[Tensor]) -> None:
        self.kept = [*self.kept, [weight.detach().clone() for weight in weights]][-self.n :]

    def average(self, weights: Sequence[Tensor], optimizer: Optimizer) -> Sequence[Tensor] | None:
        if not self.kept:
            return None
        self.kept = [_beside(kept, weights) for kept in self.kept]
        return [torch.stack(tensors).mean(0) for tensors in zip(*self.kept, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = [list(kept) for kept in state["kept"]]


class OptimizersOwn:
    """The average that a schedule-free optimizer keeps in its own state; of others none."""

    def due(self, step: int) -> bool:
        return False

    def update(self, weights: Sequence[Tensor]) -> None:
        pass

    def average(self, weights: Sequence[Tensor], optimizer: Optimizer) -> Sequence[Tensor] | None:
        found = own_average(optimizer)
        if found is None:
            return None
        by_place = {_place(local(parameter)): local(average) for parameter, average in found.items()}
        return [by_place.get(_place(weight), weight) for weight in weights]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Average(Callback):
    """Puts the average in the weights' place for each validation and in each checkpoint.

    A checkpoint's `state_dict` is what was judged; the weights that training goes on from stand beside it, so that a
    resumed run ends as one that never stopped.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._trained: list[Tensor] | None = None

    @torch.no_grad()
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, Task)
        if pl_module.stepped and self.rule.due(trainer.global_step):
            self.rule.update(_weights(pl_module))

    @torch.no_grad()
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        weights = _weights(pl_module)
        average = self._average(trainer, weights)
        if average is not None:
            self._trained = [weight.detach().clone() for weight in weights]
            torch._foreach_copy_(weights, list(average))

    @torch.no_grad()
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._trained is not None:
            torch._foreach_copy_(_weights(pl_module), self._trained)
            self._trained = None

    @torch.no_grad()
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        assert isinstance(pl_module, Task)
        weights = _weights(pl_module)
        if self._trained is not None:  # a signal during validation: the average is in the weights' place
            checkpoint[KEY] = {"trained": _whole(pl_module, self._trained), "rule": self._rule_state(pl_module)}
            return
        average = self._average(trainer, weights)
        if average is None:
            return
        checkpoint[KEY] = {"trained": _whole(pl_module, weights), "rule": self._rule_state(pl_module)}
        means = dict(zip(_names(pl_module), _whole(pl_module, average), strict=True))
        first = {id(p): name for name, p in pl_module.named_parameters()}
        for name, parameter in pl_module.named_parameters(remove_duplicate=False):
            if name in checkpoint["state_dict"]:  # of several ranks that hold parts the first has it
                checkpoint["state_dict"][name] = means[first[id(parameter)]]

    @torch.no_grad()
    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        assert isinstance(pl_module, Task)
        if KEY in checkpoint:
            torch._foreach_copy_(_weights(pl_module), _parts(pl_module, checkpoint[KEY]["trained"]))
            self.rule.load_state_dict(_mapped(checkpoint[KEY]["rule"], lambda kept: _parts(pl_module, kept)))

    def _rule_state(self, task: Task) -> dict[str, Any]:
        return _mapped(self.rule.state_dict(), lambda kept: _whole(task, kept))

    def _average(self, trainer: Trainer, weights: Sequence[Tensor]) -> Sequence[Tensor] | None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return None
        optimizer = trainer.optimizers[0]
        return self.rule.average(weights, getattr(optimizer, "optimizer", optimizer))


def ema(decay: float) -> Average:
    """See `Exponential`."""
    return Average(Exponential(decay))


def latest(n: int, interval: int) -> Average:
    """See `Latest`."""
    return Average(Latest(n, interval))


def averaged(callbacks: Sequence[Callback]) -> list[Callback]:
    """The callbacks with one `Average`: the one that is among them, or that of the optimizer."""
    if any(isinstance(callback, Average) for callback in callbacks):
        return list(callbacks)
    return [*callbacks, Average(OptimizersOwn())]


def check_averages(callbacks: Sequence[Callback], optimizer: Optimizer) -> None:
    """Refuse two averages of the weights, of which only one could be judged.

    Raises:
        ValueError: there are two among the callbacks, or one and the optimizer has its own.
    """
    n = sum(isinstance(callback, Average) for callback in callbacks)
    if n > 1:
        raise ValueError(f"callbacks: {n} averages of the weights, of which one is judged; leave one of them")
    if n and own_average(optimizer) is not None:
        raise ValueError(
            "callbacks: this optimizer averages the weights itself; set callbacks=default, or optimizer=adamw"
        )


def _weights(module: LightningModule) -> list[Tensor]:
    """This rank's part of each parameter, each once."""
    assert isinstance(module, Task)
    module.keep_parts()
    return [local(parameter) for parameter in module.parameters()]


def _place(tensor: Tensor) -> tuple[int, torch.Size]:
    """Where it is in memory; a part of nothing is nowhere."""
    return tensor.data_ptr(), tensor.shape


def _names(task: Task) -> list[str]:
    return [name for name, _ in task.named_parameters()]


def _whole(task: Task, parts: Sequence[Tensor]) -> list[Any]:
    """Of what is held like the parameters, what a checkpoint keeps."""
    return [task.layout.kept_of(name, part, p) for part, (name, p) in zip(parts, _named(task), strict=True)]


def _parts(task: Task, whole: Sequence[Tensor]) -> list[Tensor]:
    """This rank's parts of it."""
    return [local(task.layout.part(name, value, p)) for value, (name, p) in zip(whole, _named(task), strict=True)]


def _named(task: Task) -> list[tuple[str, Tensor]]:
    """The parameters, each once, by their names in the model."""
    return list(task.model.named_parameters())


def _mapped(state: Mapping[str, Any], change: Callable[[list[Tensor]], list[Any]]) -> dict[str, Any]:
    """A rule's state with each list of tensors, as many as there are parameters, changed; lists may hold such lists."""

    def changed(value: Any) -> Any:
        if not isinstance(value, list | tuple) or not value:
            return value
        if isinstance(value[0], Whole):
            return change(list(value))
        return [changed(one) for one in value]

    return {key: changed(value) for key, value in state.items()}


def _beside(tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    """The tensors where the weights are; a checkpoint is read on the CPU."""
    return [tensor.to(weight.device) for tensor, weight in zip(tensors, weights, strict=True)]
