"""Recurrent encoder and decoder with attention between them."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from triform.layers.additive_attention import AdditiveAttention
from triform.layers.dropout import Dropout
from triform.layers.front import turned
from triform.layers.lstm import LSTM, LSTMCell, State
from triform.layers.state import StateCache


class Recurrent:
    """The networks of Bahdanau et al. 2015 (https://arxiv.org/abs/1409.0473), and deeper of Wu et al. 2016, GNMT
    (https://arxiv.org/abs/1609.08144, section 3), of LSTMs.

    Unlike Bahdanau et al., layers are LSTMs (theirs: gated units without a cell), the decoder begins from the mean of
    the encoder's states (Sennrich et al. 2017, Nematus; theirs: from the backward one at the first token), and the
    readout sees the state after the token that it is read with (equation 4; appendix A.2.2 has the one before). Dropout
    is where it does not hit a state's own recurrence (Zaremba et al. 2014). Unlike GNMT, hidden states are projected to
    `d_model`, so that the head can be the embedding's table.

    Args:
        n_layers: of either; the encoder's first reads both ways, those above it from the left.
        d_ff: units of a layer, in each direction, and width of the attention's network.
        residual_from: layers from this one on, counted from 1, add their input to their output (GNMT: 3). None: none.
        maxout: hidden states are the larger of each two outputs of a layer that reads state, token and context
            (Bahdanau et al., appendix A.2.2); else they are the state projected, as GNMT has no such layer.

    Raises:
        ValueError: `residual_from` < 3: below, a layer's input is wider than its output.
    """

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        n_layers: int,
        max_seq_len: int,
        dropout: float,
        residual_from: int | None,
        maxout: bool,
    ) -> None:
        if residual_from is not None and residual_from < 3:
            raise ValueError(
                f"Recurrent: residual_from={residual_from} is below 3, where inputs have another width than outputs; "
                f"set model.network.residual_from to 3 or more, or to null"
            )
        sizes: dict[str, Any] = {"d_model": d_model, "d_ff": d_ff, "n_layers": n_layers, "dropout": dropout}
        own: dict[str, Any] = {"max_seq_len": max_seq_len, "residual_from": residual_from}
        self.encoder = RecurrentEncoder(**sizes, **own)
        self.decoder = RecurrentDecoder(**sizes, **own, d_memory=self.encoder.d_memory, maxout=maxout)


class BothWays(nn.Module):
    """One LSTM reads a row from its first token, another from its last; what both say of a token stands side by side.

    As `nn.LSTM(bidirectional=True)` of a packed sequence, but without the rows' lengths leaving the device.
    """

    def __init__(self, n_inputs: int, n_units: int) -> None:
        super().__init__()
        self.forwards, self.backwards = LSTM(n_inputs, n_units), LSTM(n_inputs, n_units)

    def forward(
        self, x: Float[Tensor, "batch seq_len n_inputs"], padding_mask: Bool[Tensor, "batch seq_len"] | None
    ) -> Float[Tensor, "batch seq_len n_outputs"]:
        """`padding_mask`: real tokens first."""
        back = self.backwards(turned(x, padding_mask))[0]
        return torch.cat((self.forwards(x)[0], turned(back, padding_mask)), dim=-1)


class RecurrentEncoder(nn.Module):
    """The first layer reads the row both ways, those above it from the left; see `Recurrent`."""

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        n_layers: int,
        dropout: float,
        max_seq_len: int,
        residual_from: int | None,
    ) -> None:
        super().__init__()
        self.max_seq_len = max_seq_len
        self.residual_from = residual_from
        widths = [d_model, 2 * d_ff, *[d_ff] * n_layers]
        above = [LSTM(width, d_ff) for width in widths[1:n_layers]]
        self.layers = nn.ModuleList([BothWays(d_model, d_ff), *above])
        self.dropout = Dropout(dropout)
        self.d_memory = widths[n_layers]

    def forward(
        self,
        x: Float[Tensor, "batch src_len d_model"],
        padding_mask: Bool[Tensor, "batch src_len"] | None,
    ) -> Float[Tensor, "batch src_len d_memory"]:
        """`padding_mask`: real tokens first."""
        x = self.dropout(self.layers[0](self.dropout(x), padding_mask))
        for number, layer in enumerate(self.layers[1:], start=2):
            y = self.dropout(layer(x)[0])
            x = x + y if self.residual_from is not None and number >= self.residual_from else y
        return x

    def flops(self, seq_len: int) -> int:
        """Of the forward pass over a row."""
        return 2 * _matrices(self) * seq_len


class RecurrentDecoder(nn.Module):
    """The bottom layer looks for what of the source it needs next; its context goes to every layer; see `Recurrent`."""

    def __init__(
        self,
        *,
        d_model: int,
        d_ff: int,
        n_layers: int,
        dropout: float,
        max_seq_len: int,
        residual_from: int | None,
        d_memory: int,
        maxout: bool,
    ) -> None:
        super().__init__()
        self.max_seq_len, self.n_states = max_seq_len, n_layers
        self.residual_from, self.maxout = residual_from, maxout
        self.start_proj = nn.Linear(d_memory, n_layers * d_ff)
        self.cross_attention = AdditiveAttention(d_ff, d_memory, d_ff)
        layers = [LSTM(d_ff + d_memory, d_ff) for _ in range(n_layers - 1)]
        self.layers: Any = nn.ModuleList([LSTMCell(d_model + d_memory, d_ff), *layers])
        self.dropout = Dropout(dropout)
        self.readout = nn.Linear(d_ff + d_model + d_memory, 2 * d_model) if maxout else nn.Linear(d_ff, d_model)

    def forward(
        self,
        x: Float[Tensor, "batch tgt_len d_model"],
        memory: Float[Tensor, "batch src_len d_memory"],
        padding_mask: Bool[Tensor, "batch src_len"] | None,
        cache: StateCache | None,
    ) -> Float[Tensor, "batch tgt_len d_model"]:
        """`padding_mask` is of the source, real tokens first. Under a cache `x` are the new tokens."""
        if cache is None:
            keys, states = self.cross_attention.k_proj(memory), self._begin(memory, padding_mask)
        else:
            keys = cache.keys(lambda: self.cross_attention.k_proj(memory))
            states = cache.states if cache.length else self._begin(memory, padding_mask)
        x = self.dropout(x)
        y, context, states[0] = self._look(x, keys, memory, padding_mask, states[0])
        y = self.dropout(y)
        for i, layer in enumerate(self.layers[1:], start=1):
            z, states[i] = layer.read(torch.cat((y, context), dim=-1), states[i])
            z = self.dropout(z)
            y = y + z if self.residual_from is not None and i + 1 >= self.residual_from else z
        if cache is not None:
            cache.states = states
        if not self.maxout:
            return self.readout(y)
        pairs = self.readout(torch.cat((y, x, context), dim=-1))
        return self.dropout(pairs.unflatten(-1, (-1, 2)).amax(dim=-1))

    @torch.compiler.disable  # which would unroll the loop, and compile it anew for every length of a target
    def _look(
        self,
        x: Float[Tensor, "batch tgt_len d_model"],
        keys: Float[Tensor, "batch src_len d_ff"],
        memory: Float[Tensor, "batch src_len d_memory"],
        padding_mask: Bool[Tensor, "batch src_len"] | None,
        state: State,
    ) -> tuple[Float[Tensor, "batch tgt_len d_ff"], Float[Tensor, "batch tgt_len d_memory"], State]:
        """The bottom layer's outputs, for each token the context that the state before it found, and the last state."""
        outputs, contexts = [], []
        for token in x.unbind(dim=1):
            context = self.cross_attention(state[0], keys, memory, padding_mask)[0]
            state = self.layers[0](torch.cat((token, context), dim=-1), state)
            outputs.append(state[0])
            contexts.append(context)
        return torch.stack(outputs, dim=1), torch.stack(contexts, dim=1), state

    def _begin(
        self, memory: Float[Tensor, "batch src_len d_memory"], padding_mask: Bool[Tensor, "batch src_len"] | None
    ) -> list[State]:
        """Of each layer before the first token: outputs of the mean of the memory, and an empty cell."""
        if padding_mask is None:
            mean = memory.mean(dim=1)
        else:
            real = padding_mask[..., None].to(memory.dtype)
            mean = (memory * real).sum(dim=1) / real.sum(dim=1).clamp_min(1)
        return [(h, torch.zeros_like(h)) for h in self.start_proj(mean).tanh().chunk(self.n_states, dim=-1)]

    def flops(self, seq_len: int) -> int:
        """Of the forward pass over a row, beside a source as long."""
        once = self.start_proj.weight.numel()
        attention = sum(m.weight.numel() for m in self.cross_attention.modules() if isinstance(m, nn.Linear))
        each = _matrices(self) - once - attention
        return 2 * (each * seq_len + once) + self.cross_attention.flops(seq_len, seq_len)


def _matrices(module: nn.Module) -> int:
    """Numbers in the matrices of a module."""
    return sum(p.numel() for p in module.parameters() if p.ndim == 2)
