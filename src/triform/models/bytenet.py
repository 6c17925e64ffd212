"""Dilated convolutions, a target network on top of a source network."""

import math
from typing import Any

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from triform.layers.convolution import Convolution
from triform.layers.dropout import Dropout
from triform.layers.front import real_first
from triform.layers.state import StateCache


class ByteNet:
    """The networks of Kalchbrenner et al. 2016 (https://arxiv.org/abs/1610.10099).

    Each target token is read together with the source's column of the same number: the source network's output is as
    long as the target is expected to become, and a target that goes on beyond it has nothing but itself to read
    ("dynamic unfolding", section 3.2). There is no attention.

    The paper does not say how column and token are joined: they are added here. Its places beyond the source hold the
    embedding of a padding symbol, here zeros. Layer norm is over the channels of each token, so that no token sees
    a later one (section 3.5 has it so in the target network).

    Args:
        n_layers: residual blocks of either network (paper: 30, and `kernel_size` 3, `d_model` twice `d_ff`).
        d_ff: channels inside a block.
        kernel_size: tokens that a convolution reads; odd, as the source's reads as many on either side.
        max_dilation: dilations double from block to block, 1, 2, 4, up to this, then begin again (paper: 16).
        unfold: expected tokens of a target for each of the source, at least 1 (paper: 1.2 for English to German).

    Raises:
        ValueError: `kernel_size` is even or below 1, `max_dilation` is no power of 2, `unfold` < 1.
    """

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        n_layers: int,
        max_seq_len: int,
        dropout: float,
        kernel_size: int,
        max_dilation: int,
        unfold: float,
    ) -> None:
        if max_dilation < 1 or max_dilation & (max_dilation - 1):
            raise ValueError(
                f"ByteNet: max_dilation={max_dilation} is no power of 2; set model.network.max_dilation to one, such "
                f"as 16"
            )
        if not 1 <= unfold < math.inf:
            raise ValueError(
                f"ByteNet: unfold={unfold} is below 1, so that some of the source would be cut; set "
                f"model.network.unfold to 1 or more, such as 1.2"
            )
        sizes: dict[str, Any] = {"d_model": d_model, "d_ff": d_ff, "kernel_size": kernel_size, "dropout": dropout}
        period = max_dilation.bit_length()
        dilations = [2 ** (i % period) for i in range(n_layers)]
        self.encoder = SourceNetwork(**sizes, max_seq_len=max_seq_len, dilations=dilations, unfold=unfold)
        self.decoder = TargetNetwork(**sizes, max_seq_len=max_seq_len, dilations=dilations)


class ResidualBlock(nn.Module):
    """Down to `d_ff` channels, a dilated convolution of them, and up again; a norm and ReLU before each (figure 3)."""

    def __init__(
        self, d_model: int, d_ff: int, kernel_size: int, dilation: int, *, causal: bool, dropout: float
    ) -> None:
        super().__init__()
        self.down_norm, self.norm, self.up_norm = nn.LayerNorm(d_model), nn.LayerNorm(d_ff), nn.LayerNorm(d_ff)
        self.down_proj = Convolution(d_model, d_ff, 1, causal=causal, variance=2.0, normalised=False)
        self.convolution = Convolution(
            d_ff, d_ff, kernel_size, dilation=dilation, causal=causal, variance=2.0, normalised=False
        )
        self.up_proj = Convolution(d_ff, d_model, 1, causal=causal, variance=2.0, normalised=False)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "batch seq_len d_model"],
        padding_mask: Bool[Tensor, "batch seq_len"] | None = None,
        cache: StateCache | None = None,
        layer: int = 0,
    ) -> Float[Tensor, "batch seq_len d_model"]:
        y = self.down_proj(self.down_norm(x).relu())
        y = self.norm(y).relu()
        if padding_mask is not None:  # beyond the end of a row is what a row alone has there
            y = y.masked_fill(~padding_mask[..., None], 0.0)
        y = self.convolution(y, cache, layer)
        return x + self.dropout(self.up_proj(self.up_norm(y).relu()))


class SourceNetwork(nn.Module):
    """The columns that the target network reads; see `ByteNet`."""

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        kernel_size: int,
        dropout: float,
        max_seq_len: int,
        dilations: list[int],
        unfold: float,
    ) -> None:
        super().__init__()
        self.max_seq_len, self.unfold = max_seq_len, unfold
        self.dropout = Dropout(dropout)
        blocks = [ResidualBlock(d_model, d_ff, kernel_size, d, causal=False, dropout=dropout) for d in dilations]
        self.layers = nn.ModuleList(blocks)
        self.final_norm = nn.LayerNorm(d_model)

    def forward(
        self, x: Float[Tensor, "batch src_len d_model"], padding_mask: Bool[Tensor, "batch src_len"] | None
    ) -> Float[Tensor, "batch memory_len d_model"]:
        """`padding_mask`: real tokens first. Columns beyond a row's expected length are 0."""
        if padding_mask is not None:
            x = x.masked_fill(~padding_mask[..., None], 0.0)
            expected = (padding_mask.sum(dim=1).double() * self.unfold).ceil().long()
            padding_mask = real_first(expected, self._columns(x.shape[1]))
        x = self.dropout(F.pad(x, (0, 0, 0, self._columns(x.shape[1]) - x.shape[1])))
        for layer in self.layers:
            x = layer(x, padding_mask)
        x = self.final_norm(x)
        return x if padding_mask is None else x.masked_fill(~padding_mask[..., None], 0.0)

    def _columns(self, src_len: int) -> int:
        return math.ceil(src_len * self.unfold)

    def flops(self, seq_len: int) -> int:
        """Of the forward pass over a row, as far as it unfolds."""
        return _convolutions(self, self._columns(seq_len))


class TargetNetwork(nn.Module):
    """Reads each token with its column of the source; see `ByteNet`."""

    def __init__(
        self, *, d_model: int, d_ff: int, kernel_size: int, dropout: float, max_seq_len: int, dilations: list[int]
    ) -> None:
        super().__init__()
        self.max_seq_len, self.n_states = max_seq_len, len(dilations)
        self.dropout = Dropout(dropout)
        blocks = [ResidualBlock(d_model, d_ff, kernel_size, d, causal=True, dropout=dropout) for d in dilations]
        self.layers = nn.ModuleList(blocks)
        self.final_norm = nn.LayerNorm(d_model)
        self.readout = Convolution(d_model, d_model, 1, causal=True, variance=2.0, normalised=False)

    def forward(
        self,
        x: Float[Tensor, "batch tgt_len d_model"],
        memory: Float[Tensor, "batch memory_len d_model"],
        padding_mask: Bool[Tensor, "batch src_len"] | None,
        cache: StateCache | None,
    ) -> Float[Tensor, "batch tgt_len d_model"]:
        """The source's padding is 0 in `memory` already. Under a cache `x` are the new tokens."""
        begin, n_new = 0 if cache is None else cache.length, x.shape[1]
        columns = memory[:, begin : begin + n_new]
        x = self.dropout(x) + F.pad(columns, (0, 0, 0, n_new - columns.shape[1]))
        for i, layer in enumerate(self.layers):
            x = layer(x, None, cache, i)
        return self.readout(self.final_norm(x).relu()).relu()

    def flops(self, seq_len: int) -> int:
        """Of the forward pass over a row."""
        return _convolutions(self, seq_len)


def _convolutions(network: nn.Module, seq_len: int) -> int:
    return sum(module.flops(seq_len) for module in network.modules() if isinstance(module, Convolution))
