"""A learned score for each distance."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from triform.layers.position.base import Position
from triform.layers.tensor_parallel import Ranks


class T5(Position):
    """Adds a learned number for each head and bucket of distances to the scores (Raffel et al. 2020, section 2.1).

    A stack has one table, which all its layers use. In a causal stack half of the buckets are distances of one
    token each, the others grow with the logarithm up to `max_distance`, and all beyond share the last; in a
    bidirectional one each side has half of the buckets. T5 itself does not divide scores by sqrt(head_dim):
    `model.attention.scale=1.0`.

    Args:
        n_buckets: at least 4, and even.
        max_distance: in tokens, above the distances that have a bucket of their own.

    Raises:
        ValueError: `n_buckets` odd or < 4, or `max_distance` too small for them.
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        head_dim: int,
        max_seq_len: int,
        causal: bool,
        n_buckets: int,
        max_distance: int,
    ) -> None:
        super().__init__()
        if n_buckets < 4 or n_buckets % 2:
            raise ValueError(
                f"T5: n_buckets={n_buckets} is odd or less than 4; set model.position.n_buckets to an even number "
                f"of at least 4, such as 32"
            )
        one_side = n_buckets if causal else n_buckets // 2
        if max_distance <= one_side // 2:
            raise ValueError(
                f"T5: max_distance={max_distance} leaves nothing to the {one_side - one_side // 2} buckets of "
                f"several tokens; set model.position.max_distance above {one_side // 2}"
            )
        self.causal = causal
        self.one_side, self.max_distance = one_side, max_distance
        self.table = _Table(n_buckets, n_heads, d_model**-0.5)

    def bias(
        self, queries: Int[Tensor, " q_len"], keys: Int[Tensor, " kv_len"]
    ) -> Float[Tensor, "1 n_heads q_len kv_len"]:
        scores = self.table(self.buckets(keys - queries[:, None]))  # q_len kv_len n_heads
        return scores.permute(2, 0, 1)[None].float()

    def share(self, ranks: Ranks) -> None:
        """Every rank has the table and reads the columns of its heads."""
        ranks.sums(self.table)

    def buckets(self, relative: Int[Tensor, "q_len kv_len"]) -> Int[Tensor, "q_len kv_len"]:
        """Of the place of a key minus that of its query."""
        after = (relative > 0) & (not self.causal)
        distance = (-relative).clamp(min=0) if self.causal else relative.abs()
        exact = self.one_side // 2
        growth = (distance.clamp(min=1) / exact).log() / math.log(self.max_distance / exact)
        grown = exact + (growth * (self.one_side - exact)).long()
        return after * self.one_side + torch.where(distance < exact, distance, grown.clamp(max=self.one_side - 1))


class _Table(nn.Embedding):
    """A table that begins with N(0, std^2) under every scheme, as in T5."""

    def __init__(self, n_buckets: int, n_heads: int, std: float) -> None:
        super().__init__(n_buckets, n_heads)
        self.std = std

    def initialise_parameter(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        nn.init.normal_(value, std=self.std, generator=generator)
