"""What a model costs where many devices share it: memory of each, and what they send one another."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from triform.analysis.anatomy import Kept
from triform.layers.attention import Attention
from triform.layers.block import Block
from triform.layers.feed_forward.mixture import MixtureOfExperts
from triform.layers.tensor_parallel import Ranks, SharedLinear, share
from triform.training.strategies import NARROW, SHARDED, check_sizes


@dataclass(frozen=True)
class Cut:
    """How devices share a model, and the memory and traffic that this means.

    Args:
        data: groups of devices that read different rows.
        tensor: devices of a group, which compute each layer together.
        fully: weights, gradients and the optimizer's state are cut over the groups as well (FSDP2).
        narrow: bytes of a number in which FSDP puts blocks together, as a share of those of the weights.
    """

    data: int
    tensor: int
    fully: bool
    narrow: float = 1.0

    def share(self, model: nn.Module) -> None:
        """Cut a model on the meta device to what a device computes.

        Raises:
            ValueError: the devices of a group do not divide the heads or inner units.
        """
        if self.tensor > 1:
            share(model, Ranks(None, self.tensor, 0))

    def hold(self, model: nn.Module) -> int:
        """Cut it to what the device that holds most keeps, the first one; returns the bytes that are whole meanwhile.

        As `training.strategies.fully_sharded` does it: what is outside of the blocks is whole from the forward to the
        backward pass, with its gradient; of blocks, the one at work, with its gradient, and the next one.
        """
        if not self.fully:
            return 0
        outside, blocks = _units(model)
        largest = max(blocks, key=lambda one: _bytes(one, False), default={})
        block = round(self.narrow * (2 * _bytes(largest, False) + _bytes(largest, True)))
        gathered = _bytes(outside, False) + _bytes(outside, True) + block
        cut: dict[nn.Parameter, nn.Parameter] = {}
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if not _is_apart(module, name):
                    if parameter not in cut:  # a tied one stays one
                        piece = parameter.detach()[: math.ceil(parameter.shape[0] / self.data)]
                        cut[parameter] = nn.Parameter(piece.clone(), parameter.requires_grad)
                    setattr(module, name, cut[parameter])
        return gathered

    def traffic(
        self, model: nn.Module, rows: int, seq_len: int, micro_batches: int, size: int, again: bool = False
    ) -> "Traffic":
        """Bytes of an optimizer step.

        Args:
            model: as `share` has left it.
            rows: of a micro-batch, each of `seq_len` tokens (an encoder-decoder: on either side).
            size: bytes of a number that passes between layers.
            again: blocks are computed again in the backward pass.
        """
        outside, blocks = _units(model)
        weights = [_bytes(one, False) for one in (outside, *blocks)]
        trained = sum(_bytes(one, True) for one in (outside, *blocks))
        others = (self.data - 1) / self.data
        if self.fully:  # blocks are put together for each pass, then gradients are added up and cut
            data = micro_batches * others * (weights[0] + 2 * self.narrow * sum(weights[1:]) + trained)
        else:  # added up in a ring, once: each part goes round twice
            data = 2 * others * trained
        sums = sum(module.out_features for module in model.modules() if isinstance(module, SharedLinear))
        numbers = (3 if again else 2) * micro_batches * rows * seq_len * sums  # of each pass
        tensor = 2 * (self.tensor - 1) / self.tensor * numbers * size
        return Traffic(round(data), round(tensor))

    def copied(self, model: nn.Module, again: bool) -> int:
        """Bytes of the weights that mixed precision keeps narrower copies of at a time, for the backward pass.

        FSDP puts blocks together in the narrower type as it is.

        Args:
            again: blocks are computed again in the backward pass, one at a time.
        """
        outside, blocks = _units(model)
        if self.fully:
            blocks = []
        elif again:
            blocks = [max(blocks, key=lambda one: _bytes(one, False), default={})]
        return sum(_bytes(one, False) for one in (outside, *blocks))


@dataclass(frozen=True)
class Traffic:
    """Bytes that each device sends in an optimizer step.

    Args:
        data: weights and gradients, to other groups; while layers are computed.
        tensor: sums within a layer, to the other devices of its group; nothing is computed meanwhile.
    """

    data: int
    tensor: int

    def seconds(self, compute: float, data_rate: float, tensor_rate: float) -> float:
        """Of a step whose computation takes `compute` seconds, at so many bytes a second."""
        return max(compute, self.data / data_rate) + self.tensor / tensor_rate


def cut_of(trainer: Mapping[str, Any], devices: int, precision: str) -> Cut:
    """What `trainer.strategy` and `trainer.tensor_parallel` say.

    Args:
        devices: of each machine.
        precision: as `trainer.precision` says; auto counts as whole, since what it is depends on the device.

    Raises:
        ValueError: the sizes do not multiply to the number of devices.
    """
    ranks, tensor = devices * trainer["num_nodes"], trainer["tensor_parallel"]
    check_sizes(trainer["strategy"], ranks, tensor)
    assert trainer["strategy"] in SHARDED or tensor == 1
    narrow = NARROW[precision].itemsize / torch.float32.itemsize if precision in NARROW else 1.0
    return Cut(ranks // tensor, tensor, trainer["strategy"] == "fsdp", narrow)


def lean(model: nn.Module, seq_len: int, row: Kept, size: int, selective: bool) -> int:
    """Bytes that are left of those that a row keeps where blocks are computed again in the backward pass.

    That is their inputs and one block while it is computed again, and what `selective` keeps besides: products of
    matrices and of attention.

    Args:
        size: bytes of a number of these products.
    """
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    inside = [module for block in blocks for module in block.modules()]
    products = sum(module.out_features for module in inside if isinstance(module, nn.Linear))
    products += sum(module.n_heads * module.head_dim for module in inside if isinstance(module, Attention))
    return row.inputs + selective * size * seq_len * products + row.activations // max(len(blocks), 1)


def _units(model: nn.Module) -> tuple[dict[str, nn.Parameter], list[dict[str, nn.Parameter]]]:
    """Parameters outside of blocks, and those of each block, that FSDP cuts; each one once."""
    seen: set[nn.Parameter] = set()

    def own(module: nn.Module) -> dict[str, nn.Parameter]:
        found = {
            f"{path}.{name}": parameter
            for path, part in module.named_modules()
            for name, parameter in part.named_parameters(recurse=False)
            if parameter not in seen and not _is_apart(part, name)
        }
        seen.update(found.values())
        return found

    blocks = [own(module) for module in model.modules() if isinstance(module, Block)]
    return own(model), blocks


def _is_apart(module: nn.Module, name: str) -> bool:
    """Whether FSDP leaves a parameter alone."""
    return isinstance(module, MixtureOfExperts) and name == "choice_bias"


def _bytes(parameters: Mapping[str, nn.Parameter], trained: bool) -> int:
    """Of parameters; of their gradients."""
    return sum(p.numel() * p.element_size() for p in set(parameters.values()) if p.requires_grad or not trained)
