"""Blocks one after another, with positions before and, where the placement asks for it, a norm after."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from triform.layers.alternate import NO_POSITION, Alternate
from triform.layers.attention import head_width
from triform.layers.block import Block
from triform.layers.cache import KVCache
from triform.layers.dropout import Dropout
from triform.layers.masks import AttentionMask
from triform.layers.placement import Depth, Placement
from triform.layers.position.base import Position, count_positions
from triform.layers.position.none import NoPosition
from triform.layers.position.rotary import Rotary

Factory = Callable[..., Any]


class Stack(nn.Module):
    """From embedded tokens to hidden states.

    Every factory is called once a layer (`position` once, `norm` also for the final norm) and is given
    its sizes here.

    Args:
        causal: whether a token sees no later one.
        head_dim: None: `d_model // n_heads`.
        attention: builds the attention of a layer, or an `Alternate` of two kinds.
        embedding_norm: builds a norm of the embedded tokens with their positions (BERT, BART); None: no norm.
        layer_drop: builds what skips layers in training.
        cross_attention: builds the attention to a memory; None: there is no memory.
        reads: layers of the stack that makes the memory; read_by: of the stack that reads this one's output.

    Raises:
        ValueError: a size below 1, `dropout` outside [0, 1), heads that do not divide `d_model`, or layers with a
            rotary base of their own under positions that do not rotate.
    """

    def __init__(
        self,
        *,
        causal: bool,
        d_model: int,
        n_layers: int,
        n_heads: int,
        n_kv_heads: int | None,
        head_dim: int | None,
        d_ff: int,
        max_seq_len: int,
        dropout: float,
        attention: Factory | Alternate,
        position: Factory,
        norm: Factory,
        feed_forward: Factory,
        placement: Factory,
        layer_drop: Factory,
        embedding_norm: Factory | None,
        cross_attention: Factory | None = None,
        reads: int | None = None,
        read_by: int | None = None,
    ) -> None:
        super().__init__()
        for name, size in {"d_model": d_model, "n_layers": n_layers, "d_ff": d_ff, "max_seq_len": max_seq_len}.items():
            if size < 1:
                raise ValueError(f"Stack: {name}={size} is less than 1; set model.{name} to at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(f"Stack: dropout={dropout} is no share; set model.dropout to at least 0 and less than 1")
        head_dim = head_width(d_model, n_heads, head_dim)
        heads = {"d_model": d_model, "n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
        self.causal = causal
        self.max_seq_len = max_seq_len
        place = {
            "d_model": d_model,
            "n_heads": n_heads,
            "head_dim": head_dim,
            "max_seq_len": max_seq_len,
            "causal": causal,
        }
        self.position: Position = position(**place)
        self.thetas = [attention.theta_at(i) if isinstance(attention, Alternate) else None for i in range(n_layers)]
        self.other_positions = {
            theta: _position_at(theta, self.position, position, place) for theta in self.thetas if theta is not None
        }
        self.embedding_norm = nn.Identity() if embedding_norm is None else embedding_norm(d_model)
        self.dropout = Dropout(dropout)
        depth = Depth(n_layers, reads, read_by)

        def residual(layer: int, is_first: bool) -> Placement:
            return placement(d_model=d_model, norm=norm, dropout=dropout, depth=depth, is_first=is_first and layer == 0)

        blocks = [
            Block(
                attention=(attention.at_layer(i) if isinstance(attention, Alternate) else attention)(**heads),
                cross_attention=None if cross_attention is None else cross_attention(**heads),
                feed_forward=feed_forward(d_model=d_model, d_ff=d_ff),
                residual=partial(residual, i),
                layer_drop=layer_drop(i, n_layers),
            )
            for i in range(n_layers)
        ]
        self.layers = nn.ModuleList(blocks)
        needs_final_norm = blocks[-1].attn_residual.needs_final_norm
        self.final_norm = norm(d_model) if needs_final_norm else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "batch seq_len d_model"],
        padding_mask: Bool[Tensor, "batch kv_len"] | None = None,
        position_ids: Int[Tensor, "batch seq_len"] | None = None,
        document_ids: Int[Tensor, "batch kv_len"] | None = None,
        prefix_length: Int[Tensor, " batch"] | Int[Tensor, "batch kv_len"] | None = None,
        memory: Float[Tensor, "sources src_len d_model"] | None = None,
        memory_padding_mask: Bool[Tensor, "sources src_len"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "batch seq_len d_model"]:
        """Under a cache `x` holds the new tokens only, `padding_mask` and `document_ids` cover all (kv_len).

        Raises:
            ValueError: more than `max_seq_len` tokens.
        """
        q_len = x.shape[1]
        kv_len = q_len if cache is None else cache.length + q_len
        if kv_len > self.max_seq_len:
            raise ValueError(
                f"Stack: a row of {kv_len} tokens is longer than max_seq_len={self.max_seq_len}; set "
                f"model.max_seq_len to at least {kv_len}, or data.seq_len to at most {self.max_seq_len}"
            )
        if position_ids is None:
            position_ids = count_positions(q_len, kv_len, padding_mask, document_ids, x.device)
        slots = torch.arange(kv_len, device=x.device)
        mask = AttentionMask(self.causal, None, prefix_length, padding_mask, document_ids)
        memory_mask = None if memory_padding_mask is None else AttentionMask(padding=memory_padding_mask)

        x = self.dropout(self.embedding_norm(self.position.embed(x, position_ids)))
        marks = {
            theta: (of.rotation(position_ids), of.bias(slots[kv_len - q_len :], slots))
            for theta, of in ((None, self.position), *self.other_positions.items())
        }
        for i, layer in enumerate(self.layers):
            caches = (None, None) if cache is None else cache.of_layer(i)
            x = layer(x, mask, *marks[self.thetas[i]], memory, memory_mask, *caches)
        return self.final_norm(x)


def _position_at(theta: float | str, usual: Position, position: Factory, place: dict[str, Any]) -> Position:
    """Positions of the layers that have a rotary base of their own, or none."""
    if theta == NO_POSITION:
        if type(usual).rotation is Position.rotation and type(usual).bias is Position.bias:
            raise ValueError(
                f"Alternate: positions of {type(usual).__name__} are in the embeddings, so no layer is without; set "
                f"model.attention.full_theta and local_theta to null, or model/position=rotary"
            )
        return NoPosition(**place)
    if not isinstance(usual, Rotary):
        raise ValueError(
            f"Alternate: theta={theta} of its own has no meaning under {type(usual).__name__}; set "
            f"model.attention.local_theta and full_theta to null, or model/position=rotary"
        )
    own: Position = position(**place, theta=theta, scaling=None)
    return own
