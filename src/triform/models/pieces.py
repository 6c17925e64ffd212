"""The loss of many tokens whose logits are never all in memory."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


class LossInPieces(torch.autograd.Function):
    """A loss of logits, hidden @ weight^T + bias, summed over pieces of the tokens.

    The gradient of a piece is taken while its logits are there, so that none is computed twice and none is kept: the
    forward pass does all the work, and the backward pass multiplies. Whatever autograd differentiates may be the loss;
    hidden states, weight and bias are differentiated by hand, as their gradients add up in one place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "n_tokens d_model"],
        weight: Float[Tensor, "n_classes d_model"],
        bias: Float[Tensor, " n_classes"] | None,
        labels: Int[Tensor, " n_tokens"],
        loss: Callable[[Tensor, Tensor], Tensor],
        size: int,
    ) -> Float[Tensor, ""]:
        """`loss`: of logits and labels, a sum over tokens; `size`: tokens of a piece."""
        wanted = ctx.needs_input_grad
        of_hidden = torch.empty_like(hidden) if wanted[0] else None
        of_weight = torch.zeros_like(weight) if wanted[1] else None
        of_bias = torch.zeros_like(bias) if bias is not None and wanted[2] else None
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        for start in range(0, len(labels), size):
            piece = slice(start, start + size)
            logits = F.linear(hidden[piece], weight, bias).requires_grad_()
            with torch.enable_grad():
                lost = loss(logits, labels[piece])
            (gradient,) = torch.autograd.grad(lost, logits)
            total += lost.detach()
            del logits, lost
            with torch.autocast(hidden.device.type, enabled=False):
                if of_hidden is not None:
                    of_hidden[piece] = gradient @ weight.to(gradient.dtype)
                if of_weight is not None:
                    _add_product(of_weight, gradient.t(), hidden[piece].to(gradient.dtype))
                if of_bias is not None:
                    of_bias += gradient.sum(0, dtype=of_bias.dtype)
            del gradient  # before the next one is there
        ctx.gradients = of_hidden, of_weight, of_bias
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        # Given away, not kept: as the only owner, who accumulates takes the weight's gradient without a copy of it.
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:
            raise RuntimeError("LossInPieces: its gradient can be taken once")
        return (*(None if gradient is None else gradient.mul_(factor) for gradient in gradients), None, None, None)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:  # of mixed precision: added up in that of the weight
        total += a @ b
