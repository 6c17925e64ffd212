"""One layer of a stack."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from triform.layers.cache import FixedCache, GrowingCache
from triform.layers.masks import AttentionMask
from triform.layers.placement import Placement
from triform.layers.position.base import Rotate, unrotated


class Block(nn.Module):
    """Attention and feed-forward, with attention to a memory between them in a decoder that has one.

    Vaswani et al. 2017, section 3.1.

    Args:
        residual: builds what surrounds a sublayer: shortcut, norm and dropout; told whether it is the block's first.
        layer_drop: decides in training which rows skip the layer.
    """

    def __init__(
        self,
        attention: nn.Module,
        cross_attention: nn.Module | None,
        feed_forward: nn.Module,
        residual: Callable[[bool], Placement],
        layer_drop: nn.Module,
    ) -> None:
        super().__init__()
        self.attention, self.attn_residual = attention, residual(True)
        self.parallel, self.shares_norm = self.attn_residual.parallel, self.attn_residual.shares_norm
        if cross_attention is not None:
            self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        if not self.shares_norm:
            if cross_attention is not None:
                self.cross_residual = residual(False)
            self.ff_residual = residual(False)
        for sublayer in self.children():
            if not isinstance(sublayer, Placement):
                self.attn_residual.prepare(sublayer)
        self.layer_drop = layer_drop
        self.routes = getattr(feed_forward, "needs_padding", False)

    def forward(
        self,
        x: Float[Tensor, "batch seq_len d_model"],
        mask: AttentionMask | None = None,
        rotate: Rotate = unrotated,
        bias: Float[Tensor, "#batch n_heads seq_len kv_len"] | None = None,
        memory: Float[Tensor, "sources src_len d_model"] | None = None,
        memory_mask: AttentionMask | None = None,
        cache: GrowingCache | None = None,
        memory_cache: FixedCache | None = None,
    ) -> Float[Tensor, "batch seq_len d_model"]:
        padding = None if mask is None or mask.padding is None else mask.padding[:, -x.shape[1] :]
        steps: list[tuple[str, nn.Module, tuple[Any, ...]]] = []
        steps.append(("attn_residual", self.attention, (mask, rotate, bias, None, cache)))
        if memory is not None:
            crossing = (memory_mask, unrotated, None, memory, memory_cache)
            steps.append(("cross_residual", self.cross_attention, crossing))
        steps.append(("ff_residual", self.feed_forward, (padding,) if self.routes else ()))

        out = x
        for name, sublayer, arguments in steps:
            residual = self.attn_residual if self.shares_norm else getattr(self, name)
            out = out + residual(x, sublayer, *arguments) if self.parallel else residual(out, sublayer, *arguments)
        return self.layer_drop(x, out)
