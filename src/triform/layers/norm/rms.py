"""Norm by the root mean square."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467).

    Computed in float32 and returned in the input's type. In half precision the moment of the cast shows.

    Args:
        eps: added to the mean square.
        cast: `before` the product with the weight (LLaMA), or `after` it (Gemma, T5X).
        unit_offset: multiply by 1 + weight, which begins at 0 (Gemma).

    Raises:
        ValueError: unknown `cast`.
    """

    def __init__(self, d_model: int, eps: float, cast: str, unit_offset: bool) -> None:
        super().__init__()
        if cast not in ("before", "after"):
            raise ValueError(f"RMSNorm: cast={cast!r} is unknown; set model.norm.cast to before or after")
        self.eps = eps
        self.casts_before = cast == "before"
        self.unit_offset = unit_offset
        self.weight = nn.Parameter(torch.full((d_model,), float(not unit_offset)))

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        wide, width = x.float(), x.shape[-1:]
        gain = self.weight if self.casts_before else self.weight.float()
        gain = 1 + gain if self.unit_offset else gain
        if x.dtype == gain.dtype == torch.float32 and x.device.type == "cpu" and _trains():
            return _OnCPU.apply(x, gain, self.eps)
        if self.casts_before and x.dtype != torch.float32:
            return F.rms_norm(wide, width, None, self.eps).to(x.dtype) * gain
        return F.rms_norm(wide, width, gain.float(), self.eps).to(x.dtype)

    def initialise_parameter(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """The factor begins at 1."""
        value.fill_(float(not self.unit_offset))


def _trains() -> bool:
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


class _OnCPU(torch.autograd.Function):
    """`F.rms_norm` bit for bit. On a CPU that is no one kernel, and autograd goes over the numbers twice as often."""

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "*batch d_model"], gain: Float[Tensor, " d_model"], eps: float
    ) -> Float[Tensor, "*batch d_model"]:
        size = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        normal = x * size
        ctx.save_for_backward(normal, size, gain)
        return normal * gain

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "*batch d_model"]) -> tuple[Tensor | None, ...]:
        normal, size, gain = ctx.saved_tensors
        product = gradient * normal
        # of x: what is along x itself changes nothing
        along = (product @ gain)[..., None]
        of_x = (gradient * gain).addcmul_(normal, along, value=-1 / len(gain)).mul_(size)
        return of_x, product.flatten(0, -2).sum(0), None
