"""Ranks that do not train the same thing are found before the first step."""

import hashlib
import platform
from collections.abc import Collection, Mapping

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch.distributed.tensor import DTensor

from triform.tasks.task import Task


class Agreement(Callback):
    """Compares among all ranks what must be equal: what is given, versions, the step to go on from, the weights.

    Args:
        facts: name -> text, such as the prepared data's folder.

    Raises:
        RuntimeError: at the start of training, names what differs and on which ranks.
    """

    def __init__(self, facts: Mapping[str, str]) -> None:
        self.facts = dict(facts)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.world_size == 1:
            return
        assert isinstance(pl_module, Task)
        mine = self.facts | {
            "Python": platform.python_version(),
            "torch": torch.__version__,
            "optimizer step": str(trainer.global_step),
            "weights": digest(pl_module, {f"model.{name}" for name in pl_module.layout.splits}),
        }
        of_all: list[dict[str, str]] = [{} for _ in range(trainer.world_size)]
        dist.all_gather_object(of_all, mine, group=pl_module.group)
        for name, value in of_all[0].items():
            others = {rank: facts.get(name) for rank, facts in enumerate(of_all) if facts.get(name) != value}
            if others:
                raise RuntimeError(
                    f"the ranks differ in {name}: {value} on rank 0, {others} on others; start all of them from the"
                    " same files, config and environment"
                )


def digest(module: torch.nn.Module, cut: Collection[str] = ()) -> str:
    """A hash of all parameters that each rank holds whole, bit by bit.

    Args:
        cut: names of others.
    """
    state = hashlib.blake2b(digest_size=16)
    for name, parameter in module.named_parameters():
        if isinstance(parameter, DTensor) or name in cut:
            continue
        state.update(name.encode())
        state.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()
