"""Scores lowered by distance."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from triform.layers.position.base import Position


class Alibi(Position):
    """Adds -slope * distance to the scores, with a slope for each head (Press et al. 2022).

    https://arxiv.org/abs/2108.12409. Slopes are 2^(-8i / n_heads) for i = 1 ... n_heads; where n_heads is no power
    of two, those of the next lower power, then every second one of twice that power, as in the authors' code. In a
    bidirectional stack the distance counts both ways.
    """

    def __init__(self, *, d_model: int, n_heads: int, head_dim: int, max_seq_len: int, causal: bool) -> None:
        super().__init__()
        self.slopes = slopes(n_heads)

    def bias(
        self, queries: Int[Tensor, " q_len"], keys: Int[Tensor, " kv_len"]
    ) -> Float[Tensor, "1 n_heads q_len kv_len"]:
        distances = (queries[:, None] - keys).abs()
        return -torch.tensor(self.slopes, device=keys.device)[None, :, None, None] * distances


def slopes(n_heads: int) -> list[float]:
    """One for each head."""
    power = 2 ** int(math.log2(n_heads))
    of_power = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2 ** (-4 * i / power) for i in range(1, 2 * power, 2)]
    return of_power + between[: n_heads - power]
