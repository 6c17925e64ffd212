"""Rotated queries and keys."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from triform.layers.position.base import Heads, Position, Rotate


class Rotary(Position):
    """Turns the pair (j, j + head_dim / 2) of every query and key by p * theta^(-2j / head_dim).

    Su et al. 2021 (https://arxiv.org/abs/2104.09864); their scores then depend on distances alone. Pairs as in
    Hugging Face's LLaMA; the paper and Meta's code pair neighbours instead.

    Args:
        theta: base of the wavelengths; the longest is nearly 2 pi times this, in tokens.

    Raises:
        ValueError: `head_dim` is odd.
    """

    def __init__(
        self, *, d_model: int, n_heads: int, head_dim: int, max_seq_len: int, causal: bool, theta: float
    ) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(
                f"Rotary: head_dim={head_dim} is odd, but it turns pairs; set model.head_dim to an even number, "
                f"or change model.d_model or model.n_heads"
            )
        self.head_dim = head_dim
        self.theta = theta

    def rotation(self, position_ids: Int[Tensor, "#batch seq_len"]) -> Rotate:
        even = torch.arange(0, self.head_dim, 2, device=position_ids.device, dtype=torch.float32)
        phases = position_ids[:, None, :, None] * self.theta ** (-even / self.head_dim)
        return Rotation(phases.cos(), phases.sin())


class Rotation:
    """Turns every pair of a head by its phase, in float32."""

    def __init__(
        self,
        cos: Float[Tensor, "#batch 1 seq_len half_dim"],
        sin: Float[Tensor, "#batch 1 seq_len half_dim"],
    ) -> None:
        self.cos, self.sin = cos, sin

    def __call__(self, x: Heads) -> Heads:
        a, b = x.float().chunk(2, dim=-1)
        turned = torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), dim=-1)
        return turned.to(x.dtype)
