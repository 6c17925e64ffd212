"""Ranks that do not train the same thing are found before the first step."""

import hashlib
import platform
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch.distributed.tensor import DTensor

from triform.tasks.task import Task
from triform.training.spans import spans


class Agreement(Callback):
    """Compares among all ranks what must be equal: what is given, versions, the step to go on from, the weights.

    Args:
        facts: name -> text, such as the prepared data's folder.

    Raises:
        Disagreement: at the start of training, names what differs and on which ranks.
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
            "code": code(),
            "optimizer step": str(trainer.global_step),
            "weights": digest(pl_module, {f"model.{name}" for name in pl_module.layout.splits}),
        }
        of_all: list[dict[str, str]] = [{} for _ in range(trainer.world_size)]
        dist.all_gather_object(of_all, mine, group=pl_module.group)
        found = different(of_all)
        if found:
            raise Disagreement(f"the ranks differ in {found}; start all of them from the same files and environment")


class Disagreement(RuntimeError):
    """Raised by all ranks, with the same words: one of them says it."""

    agreed = True


def different(of_all: Sequence[Mapping[str, str]]) -> str:
    """Which facts are not the same on all ranks, and which ranks have what; empty where all are.

    Args:
        of_all: facts by rank.
    """
    parts = []
    for name in of_all[0]:
        ranks: dict[str, list[int]] = {}
        for rank, facts in enumerate(of_all):
            ranks.setdefault(facts.get(name, "none"), []).append(rank)
        if len(ranks) > 1:
            most = sorted(ranks.items(), key=lambda one: -len(one[1]))
            values = ", ".join(f"{value[:80]} on rank {spans(numbers)}" for value, numbers in most[:4])
            parts.append(f"{name} ({values}{', ...' if len(most) > 4 else ''})")
    return ", ".join(parts)


@cache
def code() -> str:
    """A hash of triform's source files: a rank may have been started from another copy."""
    state = hashlib.blake2b(digest_size=8)
    root = Path(__file__).resolve().parents[1]
    for file in sorted(root.rglob("*.py")):
        state.update(f"{file.relative_to(root).as_posix()}\n".encode())
        state.update(file.read_bytes())
    return state.hexdigest()


def content(file: Path) -> str:
    """A hash of a file that each rank reads by itself."""
    return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()


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
