"""Optimizers, and which parameters they treat how.

Weight decay is for matrices: biases, norm gains and embeddings have none. Each parameter is in exactly one group.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer


def adamw(model: nn.Module, lr: float, betas: Sequence[float], eps: float, weight_decay: float) -> Optimizer:
    """AdamW (Loshchilov and Hutter 2019), fused where torch has it.

    Args:
        lr: peak learning rate, before the schedule's factor.
        betas: decay of the running mean and square of the gradient, in [0, 1).
        weight_decay: per update and unit of learning rate, of matrices.
    """
    embeddings, matrices, vectors = _kinds(model)
    return AdamW(
        _groups(matrices, [*embeddings, *vectors], weight_decay), lr=lr, betas=(betas[0], betas[1]), eps=eps, fused=True
    )


def muon(
    model: nn.Module,
    lr: float,
    momentum: float,
    weight_decay: float,
    adamw_lr: float,
    betas: Sequence[float],
    eps: float,
) -> Optimizer:
    """Muon for the matrices inside the layers, AdamW for the rest (Jordan et al. 2024; scale: Liu et al. 2025).

    Args:
        lr: of the matrices; updates are scaled to AdamW's root mean square, so AdamW's learning rates suit.
        momentum: of the matrices, in [0, 1).
        weight_decay: per update and unit of learning rate, of matrices in the layers.
        adamw_lr: of embeddings, head, biases and norm gains.
    """
    embeddings, matrices, vectors = _kinds(model)
    head = {id(p) for p in model.get_submodule("head").parameters()}
    inside = [p for p in matrices if p.ndim == 2 and id(p) not in head]
    rest = [*embeddings, *vectors, *(p for p in matrices if p.ndim != 2 or id(p) in head)]
    return Joint(
        Muon(inside, lr=lr, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
        AdamW(rest, lr=adamw_lr, betas=(betas[0], betas[1]), eps=eps, weight_decay=0.0, fused=True),
    )


class Joint(Optimizer):
    """Several optimizers over disjoint parameters as one, for schedules, clipping and checkpoints."""

    def __init__(self, *parts: Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.param_groups = [group for part in parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def _kinds(model: nn.Module) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Embedding tables, other matrices, vectors; a shared parameter once."""
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    embeddings: list[Tensor] = []
    matrices: list[Tensor] = []
    vectors: list[Tensor] = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        kind = embeddings if id(parameter) in tables else matrices if parameter.ndim >= 2 else vectors
        kind.append(parameter)
    return embeddings, matrices, vectors


def _groups(decayed: Iterable[Tensor], others: Iterable[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    groups = [
        {"params": list(decayed), "weight_decay": weight_decay},
        {"params": list(others), "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
