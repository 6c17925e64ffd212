"""One layer of a stack."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from triform.layers.cache import FixedCache, GrowingCache
from triform.layers.masks import AttentionMask
from triform.layers.position.base import Rotate, unrotated


class Block(nn.Module):
    """Attention and feed-forward, with attention to a memory between them in a decoder that has one.

    Vaswani et al. 2017, section 3.1.

    Args:
        residual: builds what surrounds each sublayer: shortcut, norm and dropout.
    """

    def __init__(
        self,
        attention: nn.Module,
        cross_attention: nn.Module | None,
        feed_forward: nn.Module,
        residual: Callable[[], Any],
    ) -> None:
        super().__init__()
        self.attention, self.attn_residual = attention, residual()
        if cross_attention is not None:
            self.cross_attention, self.cross_residual = cross_attention, residual()
        self.feed_forward, self.ff_residual = feed_forward, residual()

    def forward(
        self,
        x: Float[Tensor, "batch seq_len d_model"],
        mask: AttentionMask | None = None,
        rotate: Rotate = unrotated,
        bias: Float[Tensor, "#batch n_heads seq_len kv_len"] | None = None,
        memory: Float[Tensor, "batch src_len d_model"] | None = None,
        memory_mask: AttentionMask | None = None,
        cache: GrowingCache | None = None,
        memory_cache: FixedCache | None = None,
    ) -> Float[Tensor, "batch seq_len d_model"]:
        x = self.attn_residual(x, self.attention, mask, rotate, bias, None, cache)
        if memory is not None:
            x = self.cross_residual(x, self.cross_attention, memory_mask, unrotated, None, memory, memory_cache)
        return self.ff_residual(x, self.feed_forward)
