"""Gated convolutions with attention in every layer of the decoder."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from triform.layers.additive_attention import weigh
from triform.layers.convolution import Convolution
from triform.layers.dropout import Dropout
from triform.layers.state import StateCache

HALF = math.sqrt(0.5)
"""The sum of two numbers of variance 1, multiplied by it, has variance 1 (Gehring et al. 2017, section 3.4)."""


class ConvS2S:
    """The networks of Gehring et al. 2017 (https://arxiv.org/abs/1705.03122), with what their code (fairseq) adds.

    Positions are learned and added to the embeddings; a layer is a convolution, gated, with a residual connection; each
    of the decoder's layers attends to the source; every projection is weight-normalised. Sums are multiplied by
    sqrt(0.5), and contexts by the square root of the number of source tokens. The gradient of the encoder's output,
    but for its embeddings, is divided by twice the number of attentions (section 3.4 says: the number; the code twice).
    Weights begin so that variances are kept (section 3.5); embeddings by `model.init`, in the paper N(0, 0.1^2).

    Unlike the paper all layers have one width.

    Args:
        n_layers: of either (paper: 15, and `d_ff` 512, `d_model` 512, `kernel_size` 3).
        d_ff: channels of a layer.
        max_seq_len: rows of the tables of positions.
        kernel_size: tokens that a convolution reads; odd, as the encoder's reads as many on either side.

    Raises:
        ValueError: `kernel_size` is even or below 1.
    """

    def __init__(
        self, *, d_model: int, d_ff: int, n_layers: int, max_seq_len: int, dropout: float, kernel_size: int
    ) -> None:
        sizes: dict[str, Any] = {"d_model": d_model, "d_ff": d_ff, "n_layers": n_layers, "kernel_size": kernel_size}
        sizes |= {"max_seq_len": max_seq_len, "dropout": dropout}
        self.encoder, self.decoder = ConvolutionalEncoder(**sizes), ConvolutionalDecoder(**sizes)


def _projection(n_inputs: int, n_outputs: int, keep: float) -> Convolution:
    """For inputs of which dropout keeps a share."""
    return Convolution(n_inputs, n_outputs, 1, causal=True, variance=keep, normalised=True)


class GatedConvolution(nn.Module):
    """A convolution of which one half of the outputs, through a sigmoid, gates the other (section 3.2)."""

    def __init__(self, d_ff: int, kernel_size: int, *, causal: bool, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.convolution = Convolution(
            d_ff, 2 * d_ff, kernel_size, causal=causal, variance=4 * (1 - dropout), normalised=True
        )

    def forward(
        self,
        x: Float[Tensor, "batch seq_len d_ff"],
        padding_mask: Bool[Tensor, "batch seq_len"] | None = None,
        cache: StateCache | None = None,
        layer: int = 0,
    ) -> Float[Tensor, "batch seq_len d_ff"]:
        if padding_mask is not None:  # beyond the end of a row is what a row alone has there
            x = x.masked_fill(~padding_mask[..., None], 0.0)
        return nn.functional.glu(self.convolution(self.dropout(x), cache, layer))


class ConvolutionalEncoder(nn.Module):
    """Of each source token a key, and a value that has its embedding added; see `ConvS2S`."""

    def __init__(
        self, *, d_model: int, d_ff: int, n_layers: int, kernel_size: int, max_seq_len: int, dropout: float
    ) -> None:
        super().__init__()
        self.max_seq_len, self.n_attentions = max_seq_len, n_layers
        self.positions = nn.Embedding(max_seq_len, d_model)
        self.dropout = Dropout(dropout)
        self.up_proj = _projection(d_model, d_ff, 1 - dropout)
        layers = [GatedConvolution(d_ff, kernel_size, causal=False, dropout=dropout) for _ in range(n_layers)]
        self.layers = nn.ModuleList(layers)
        self.down_proj = _projection(d_ff, d_model, 1.0)

    def forward(
        self, x: Float[Tensor, "batch src_len d_model"], padding_mask: Bool[Tensor, "batch src_len"] | None
    ) -> Float[Tensor, "batch src_len 2*d_model"]:
        """Keys and values side by side; `padding_mask`: real tokens first."""
        embedded = self.dropout(x + self.positions.weight[: x.shape[1]])
        x = self.up_proj(embedded)
        for layer in self.layers:
            x = (layer(x, padding_mask) + x) * HALF
        keys = self.down_proj(x)
        if keys.requires_grad:
            keys.register_hook(lambda gradient: gradient / (2 * self.n_attentions))
        return torch.cat((keys, (keys + embedded) * HALF), dim=-1)

    def flops(self, seq_len: int) -> int:
        """Of the forward pass over a row."""
        return _convolutions(self, seq_len)


class SourceAttention(nn.Module):
    """A layer's state with the token's embedding looks for keys by their product (section 3.3)."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.q_proj, self.out_proj = _projection(d_ff, d_model, 1.0), _projection(d_model, d_ff, 1.0)

    def forward(
        self,
        x: Float[Tensor, "batch tgt_len d_ff"],
        embedded: Float[Tensor, "batch tgt_len d_model"],
        memory: Float[Tensor, "batch src_len 2*d_model"],
        padding_mask: Bool[Tensor, "batch src_len"] | None,
    ) -> tuple[Float[Tensor, "batch tgt_len d_ff"], Float[Tensor, "batch tgt_len src_len"]]:
        """The states with their contexts, and the weights."""
        keys, values = memory.chunk(2, dim=-1)
        query = (self.q_proj(x) + embedded) * HALF
        weights = weigh(query @ keys.transpose(1, 2), padding_mask)
        n_tokens = x.new_full((1,), keys.shape[1]) if padding_mask is None else padding_mask.sum(dim=1).to(x.dtype)
        context = weights @ values * n_tokens.sqrt()[:, None, None]
        return (self.out_proj(context) + x) * HALF, weights


class ConvolutionalDecoder(nn.Module):
    """Causal convolutions, with attention to the source in each layer; see `ConvS2S`."""

    def __init__(
        self, *, d_model: int, d_ff: int, n_layers: int, kernel_size: int, max_seq_len: int, dropout: float
    ) -> None:
        super().__init__()
        self.max_seq_len, self.n_states, self.d_model = max_seq_len, n_layers, d_model
        self.positions = nn.Embedding(max_seq_len, d_model)
        self.dropout = Dropout(dropout)
        self.up_proj = _projection(d_model, d_ff, 1 - dropout)
        layers: list[Any] = [
            nn.ModuleDict(
                {
                    "convolution": GatedConvolution(d_ff, kernel_size, causal=True, dropout=dropout),
                    "cross_attention": SourceAttention(d_model, d_ff),
                }
            )
            for _ in range(n_layers)
        ]
        self.layers: Any = nn.ModuleList(layers)
        self.down_proj = _projection(d_ff, d_model, 1.0)

    def forward(
        self,
        x: Float[Tensor, "batch tgt_len d_model"],
        memory: Float[Tensor, "batch src_len 2*d_model"],
        padding_mask: Bool[Tensor, "batch src_len"] | None,
        cache: StateCache | None,
    ) -> Float[Tensor, "batch tgt_len d_model"]:
        """`padding_mask` is of the source, real tokens first. Under a cache `x` are the new tokens."""
        begin = 0 if cache is None else cache.length
        embedded = self.dropout(x + self.positions.weight[begin : begin + x.shape[1]])
        x = self.up_proj(embedded)
        for i, layer in enumerate(self.layers):
            y = layer["convolution"](x, None, cache, i)
            y = layer["cross_attention"](y, embedded, memory, padding_mask)[0]
            x = (y + x) * HALF
        return self.dropout(self.down_proj(x))

    def flops(self, seq_len: int) -> int:
        """Of the forward pass over a row, beside a source as long: projections, and the products of attention."""
        return _convolutions(self, seq_len) + self.n_states * 4 * self.d_model * seq_len**2


def _convolutions(network: nn.Module, seq_len: int) -> int:
    return sum(module.flops(seq_len) for module in network.modules() if isinstance(module, Convolution))
