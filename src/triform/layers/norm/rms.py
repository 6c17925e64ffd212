"""Norm by the root mean square."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from triform.layers.traced import is_traced


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467).

    Computed in float32 at least and returned in the input's type. In half precision the moment of the cast shows.

    Args:
        eps: added to the mean square; at least 0.
        cast: `before` the product with the weight (LLaMA), or `after` it (Gemma, T5X).
        unit_offset: multiply by 1 + weight, which begins at 0 (Gemma).

    Raises:
        ValueError: `eps` < 0, or unknown `cast`.
    """

    def __init__(self, d_model: int, eps: float, cast: str, unit_offset: bool) -> None:
        super().__init__()
        if not eps >= 0:
            raise ValueError(f"RMSNorm: eps={eps} is no size; set model.norm.eps to at least 0, such as 1e-6")
        if cast not in ("before", "after"):
            raise ValueError(f"RMSNorm: cast={cast!r} is unknown; set model.norm.cast to before or after")
        self.eps = eps
        self.casts_before = cast == "before"
        self.unit_offset = unit_offset
        self.weight = nn.Parameter(torch.full((d_model,), float(not unit_offset)))

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        gain = self.weight if self.casts_before else self.weight.to(wide)
        gain = 1 + gain if self.unit_offset else gain
        if x.dtype == gain.dtype == wide and x.device.type == "cpu" and torch.is_grad_enabled() and not is_traced():
            return _OnCPU.apply(x, gain, self.eps)
        if self.casts_before and x.dtype != wide:
            return F.rms_norm(x.to(wide), x.shape[-1:], None, self.eps).to(x.dtype) * gain
        return F.rms_norm(x.to(wide), x.shape[-1:], gain.to(wide), self.eps).to(x.dtype)

    def initialise_parameter(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """The factor begins at 1."""
        value.fill_(float(not self.unit_offset))


class _OnCPU(torch.autograd.Function):
    """`F.rms_norm` bit for bit. On a CPU that is no one kernel, and autograd goes over the numbers twice as often."""

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "*batch d_model"], gain: Float[Tensor, " d_model"], eps: float
    ) -> Float[Tensor, "*batch d_model"]:
        size = _inverse_size(x, eps)
        ctx.eps = eps
        ctx.save_for_backward(x, gain, size)
        return (x * size).mul_(gain)

    @staticmethod
    def backward(ctx: Any, gradient: Float[Tensor, "*batch d_model"]) -> tuple[Tensor | None, ...]:
        x, gain, size = ctx.saved_tensors
        if torch.is_grad_enabled():  # for a second derivative, to which the saved one is a constant
            size = _inverse_size(x, ctx.eps)
        normal = x * size
        of_gain = (gradient * normal).reshape(-1, len(gain))
        # Of x: what is along x itself changes nothing. Autocast would take `@` in half precision, and leaves `mv`.
        along = of_gain.mv(gain).view(size.shape)
        of_x = (gradient * gain).addcmul_(normal, along, value=-1 / len(gain)).mul_(size)
        return of_x, of_gain.sum(0), None


def _inverse_size(x: Float[Tensor, "*batch d_model"], eps: float) -> Float[Tensor, "*batch 1"]:
    return x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
