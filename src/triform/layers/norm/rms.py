"""Norm by the root mean square."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467).

    Computed in float32, cast to the input's type and then multiplied by the weight, as in LLaMA; the other
    order rounds differently in half precision.

    Args:
        eps: added to the mean square.
    """

    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        wide = x.float()
        scale = (wide.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
        return (wide * scale).to(x.dtype) * self.weight
