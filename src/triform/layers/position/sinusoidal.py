"""Fixed sines and cosines."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from triform.layers.position.base import Position


class Sinusoidal(Position):
    """Adds sin(p / w) in the even and cos(p / w) in the odd columns, w = max_period^(2i / d_model).

    Vaswani et al. 2017, section 3.5. An odd `d_model` ends with a sine.

    Args:
        max_period: the longest wavelength is 2 pi times this, in tokens.
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        head_dim: int,
        max_seq_len: int,
        causal: bool,
        max_period: float,
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.max_period = max_period

    def embed(
        self, x: Float[Tensor, "batch seq_len d_model"], position_ids: Int[Tensor, "#batch seq_len"]
    ) -> Float[Tensor, "batch seq_len d_model"]:
        return x + self.table(position_ids).to(x.dtype)

    def table(self, position_ids: Int[Tensor, "#batch seq_len"]) -> Float[Tensor, "#batch seq_len d_model"]:
        even = torch.arange(0, self.d_model, 2, device=position_ids.device, dtype=torch.float32)
        phases = position_ids[..., None] * self.max_period ** (-even / self.d_model)
        return torch.stack((phases.sin(), phases.cos()), dim=-1).flatten(-2)[..., : self.d_model]
