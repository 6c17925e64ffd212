"""Projections of one input as one product, while a model writes.

A step of writing reads a token of each row, so that calling an operation costs about as much as what it computes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from triform.layers.block import Block

# Weights that may be joined. With more (the three projections of 600 numbers) the product is what takes the time, and
# one is not faster than three; the copies are of 4 MiB at most a layer and kind.
MOST = 2**20


class Joined:
    """The outputs of several projections of one input, computed at once with a copy of their weights."""

    def __init__(self, projections: Sequence[nn.Linear]) -> None:
        weights: list[Tensor] = [projection.weight for projection in projections]
        biases: list[Tensor] = [projection.bias for projection in projections if projection.bias is not None]
        self.weight, self.bias = torch.cat(weights), torch.cat(biases) if biases else None

    def __call__(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch widths"]:
        return F.linear(x, self.weight, self.bias)


@contextmanager
def joined_projections(model: nn.Module) -> Iterator[None]:
    """Within it, parts that have `joined` compute their `projections` at once where that is faster.

    Not where one of them is more than an ordinary `nn.Linear` (adapted, split over devices, watched by hooks), nor in a
    compiled model, which joins what it likes and would be compiled anew for new copies. The model is one thread's for
    that long: another that uses it at once needs a model of its own.
    """
    modules = list(model.modules())
    compiled = any(module._compiled_call_impl is not None for module in modules)
    blocks = [] if compiled else [module for module in modules if isinstance(module, Block)]
    parts: list[Any] = [part for block in blocks for part in (block.attention, block.feed_forward) if _joins(part)]
    try:
        for part in parts:
            part.joined = Joined(part.projections)
        yield
    finally:
        for part in parts:
            part.joined = None


def _joins(part: nn.Module) -> bool:
    projections: Sequence[nn.Module] = getattr(part, "projections", ())
    ordinary = [
        one
        for one in projections
        if type(one) is nn.Linear
        and type(one.weight) is nn.Parameter
        and not (one._forward_hooks or one._forward_pre_hooks)
    ]
    alike = len(ordinary) == len(projections) and len({one.bias is None for one in ordinary}) == 1
    return alike and sum(one.weight.numel() for one in ordinary) <= MOST
