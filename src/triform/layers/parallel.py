"""Which part of each parameter a process holds, where several share a model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


@dataclass(frozen=True)
class Piece:
    """What this rank holds of a tensor of a checkpoint that each rank writes its part of.

    Args:
        offset: of its first element in the whole, by axis.
        shape: of the whole.
        ours: whether it is this rank that writes it, of those that hold the same.
    """

    tensor: Tensor
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    ours: bool

    def cpu(self) -> "Piece":
        """Itself: who writes it copies it."""
        return self


@runtime_checkable
class Whole(Protocol):
    """A tensor, or what is read as one, of which a part may be asked for."""

    @property
    def shape(self) -> torch.Size: ...

    def __getitem__(self, box: tuple[slice, ...]) -> Tensor: ...


class Layout:
    """From the parts of parameters, and of what is as large as they are, to the wholes and back.

    Two things cut a parameter. Tensor parallelism cuts along the axis that `splits` names, and leaves ordinary tensors;
    FSDP cuts what is left along the first axis, and makes a `DTensor` of it.

    Args:
        group: the ranks that compute one model together, by tensor parallelism; None: this one alone does.
        splits: name of a parameter -> the axis that it is cut along in that group. Others are whole on each rank of it.
        summed: names of parameters whose gradient is spread over the group: each rank has that of what it computes.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        splits: Mapping[str, int] | None = None,
        summed: Iterable[str] = (),
    ) -> None:
        self.group, self.splits, self.summed = group, dict(splits or {}), frozenset(summed)
        self.apart = False
        """Whether a checkpoint keeps what each rank holds, and not the wholes on the first one."""

    @property
    def copies(self) -> int:
        """How many ranks read the same rows."""
        return 1 if self.group is None else dist.get_world_size(self.group)

    @property
    def place(self) -> int:
        """Of this rank among them."""
        return 0 if self.group is None else dist.get_rank(self.group)

    def whole(self, name: str, part: Tensor) -> Tensor:
        """All of a parameter, or of what is as large as it is, of which each rank gives its part."""
        tensor = part.full_tensor() if isinstance(part, DTensor) else part
        if name not in self.splits:
            return tensor
        pieces = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.copies)]
        dist.all_gather(pieces, tensor.contiguous(), group=self.group)
        return torch.cat(pieces, dim=self.splits[name])

    def kept(self, name: str, part: Tensor) -> Any:
        """What a checkpoint keeps of it: the whole, or where ranks write apart a `Piece`."""
        return self.piece(name, part) if self.apart else self.whole(name, part)

    def piece(self, name: str, part: Tensor) -> Piece:
        """What this rank holds of a parameter, and where that is in the whole."""
        alone = name in self.splits or self.place == 0
        ours = alone and (isinstance(part, DTensor) or dist.get_rank() // self.copies == 0)
        return Piece(local(part), self._offset(name, part), tuple(self.shape(name, part)), ours)

    def _offset(self, name: str, part: Tensor) -> tuple[int, ...]:
        """Where in the whole the first element is that this rank holds."""
        offset = [0] * part.ndim
        if isinstance(part, DTensor):
            offset = list(compute_local_shape_and_global_offset(part.shape, part.device_mesh, part.placements)[1])
        if name in self.splits:
            offset[self.splits[name]] += self.place * part.shape[self.splits[name]]
        return tuple(offset)

    def kept_of(self, name: str, part: Tensor, like: Tensor) -> Any:
        """The same of a part that is an ordinary tensor, of what is held as the parameter `like` is."""
        if isinstance(like, DTensor):
            part = DTensor.from_local(
                part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
            )
        return self.kept(name, part)

    def part(self, name: str, whole: Whole, like: Tensor) -> Tensor:
        """What this rank holds of it, as `like` is held; no more of it is read."""
        sizes = local(like).shape
        part = whole[tuple(slice(first, first + n) for first, n in zip(self._offset(name, like), sizes, strict=True))]
        if part.shape != whole.shape:
            # Copied: a fused optimizer reads its state as if it were contiguous, and the whole is not to be kept.
            part = part.clone(memory_format=torch.contiguous_format)
        part = part.to(like.device)
        if isinstance(like, DTensor):
            return DTensor.from_local(
                part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
            )
        return part

    def shape(self, name: str, part: Tensor) -> torch.Size:
        """Of the whole."""
        sizes = list(part.shape)
        if name in self.splits:
            sizes[self.splits[name]] *= self.copies
        return torch.Size(sizes)

    def sum_gradients(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Make gradients whole that are spread over the group."""
        for name, parameter in parameters:
            if name in self.summed and parameter.grad is not None:
                dist.all_reduce(local(parameter.grad), group=self.group)

    def gradient_norm(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor:
        """The 2-norm of the whole gradient, the same on all ranks."""
        squares: dict[tuple[bool, dist.ProcessGroup | None], list[Tensor]] = {}
        device = torch.device("cpu")
        for name, parameter in parameters:
            if parameter.grad is not None:
                grad = parameter.grad
                shards = grad.device_mesh.get_group() if isinstance(grad, DTensor) else None
                squares.setdefault((name in self.splits, shards), []).append(local(grad))
                device = grad.device
        total = torch.zeros((), dtype=torch.float64, device=device)
        # In one order on all ranks, whatever their parts.
        for (is_split, shards), gradients in sorted(squares.items(), key=lambda item: (item[0][0], item[0][1] is None)):
            norms = torch._foreach_norm(gradients)
            square = torch.stack(norms).double().square().sum()
            if shards is not None:
                dist.all_reduce(square, group=shards)
            if is_split:
                dist.all_reduce(square, group=self.group)
            total = total + square
        return total.sqrt().float()


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def put(parameter: Tensor, layout: Layout, name: str, whole: Whole) -> None:
    """Fill this rank's part of a parameter."""
    local(parameter).copy_(local(layout.part(name, whole, parameter)))


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP has cut any of its parameters."""
    return any(isinstance(parameter, DTensor) for parameter in module.parameters())
