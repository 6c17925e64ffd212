"""Where the norm stands around a sublayer, and how its output joins the residual stream.

A block builds one for each sublayer, with `d_model`, the `norm` and `dropout` of the model, the `depth` of its stack,
and whether it is the first in it.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from triform.layers.dropout import Dropout

Stream = Float[Tensor, "batch seq_len d_model"]
Norm = Callable[[int], nn.Module]


@dataclass(frozen=True)
class Depth:
    """Layers of a stack, and in an encoder-decoder of the stack that it reads or that reads it."""

    n_layers: int
    reads: int | None = None
    read_by: int | None = None


class Placement(nn.Module):
    """What a block asks of the surroundings of a sublayer.

    Args:
        norm: builds a norm of a given width.
        dropout: share of the sublayer's output set to zero in training.
        depth: see `Depth`.
        is_first: whether this is the first sublayer of its stack.
    """

    needs_final_norm = False
    """Whether the stack ends with a norm."""
    parallel = False
    """Whether all sublayers of a block read the same stream; then `forward` leaves the shortcut to the block."""
    shares_norm = False
    """Whether the first one serves all sublayers of a block."""

    def __init__(self, d_model: int, norm: Norm, dropout: float, depth: Depth, is_first: bool) -> None:
        super().__init__()
        self.norm = norm(d_model)
        self.dropout = Dropout(dropout)

    @abstractmethod
    def forward(self, x: Stream, sublayer: Callable[..., Tensor], *args: Any) -> Stream:
        """The stream after the sublayer, which is called with `args`."""

    def prepare(self, sublayer: nn.Module) -> None:
        """Tells a sublayer, once built, how its projections begin; by default nothing."""


class PostNorm(Placement):
    """norm(x + dropout(sublayer(x))), as in Vaswani et al. 2017, section 3.1."""

    def forward(self, x: Stream, sublayer: Callable[..., Tensor], *args: Any) -> Stream:
        return self.norm(x + self.dropout(sublayer(x, *args)))


class PreNorm(Placement):
    """x + dropout(sublayer(norm(x))); the stack ends with a norm (GPT-2; Xiong et al. 2020).

    Args:
        first_norm: whether the first sublayer of a stack has its norm; ModernBERT normalises the embedded tokens
            (`model.embedding_norm`) instead.
    """

    needs_final_norm = True

    def __init__(
        self, d_model: int, norm: Norm, dropout: float, depth: Depth, is_first: bool, *, first_norm: bool
    ) -> None:
        super().__init__(d_model, norm, dropout, depth, is_first)
        if is_first and not first_norm:
            self.norm = nn.Identity()

    def forward(self, x: Stream, sublayer: Callable[..., Tensor], *args: Any) -> Stream:
        return x + self.dropout(sublayer(self.norm(x), *args))


class SandwichNorm(Placement):
    """x + dropout(norm(sublayer(norm(x)))), two norms; the stack ends with a norm (Ding et al. 2021; Gemma 2 and 3)."""

    needs_final_norm = True

    def __init__(self, d_model: int, norm: Norm, dropout: float, depth: Depth, is_first: bool) -> None:
        super().__init__(d_model, norm, dropout, depth, is_first)
        self.out_norm = norm(d_model)

    def forward(self, x: Stream, sublayer: Callable[..., Tensor], *args: Any) -> Stream:
        return x + self.dropout(self.out_norm(sublayer(self.norm(x), *args)))


class ParallelNorm(Placement):
    """x + dropout(attention(norm(x))) + dropout(feed_forward(norm(x))); the stack ends with a norm.

    With one norm for all as in GPT-J and PaLM (Chowdhery et al. 2022, section 2). Attention to a memory is one of
    the sublayers.
    """

    needs_final_norm = True
    parallel = True
    shares_norm = True

    def forward(self, x: Stream, sublayer: Callable[..., Tensor], *args: Any) -> Stream:
        return self.dropout(sublayer(self.norm(x), *args))


class ParallelNorms(ParallelNorm):
    """The same with a norm for each sublayer, as in GPT-NeoX (Black et al. 2022)."""

    shares_norm = False


class DeepNorm(Placement):
    """norm(alpha * x + dropout(sublayer(x))); value, output and feed-forward weights begin beta times as large.

    Wang et al. 2022 (https://arxiv.org/abs/2203.00555), figure 2: with N layers alpha = (2N)^(1/4) and
    beta = (8N)^(-1/4); in an encoder-decoder of N and M layers 0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16) for the
    encoder, (3M)^(1/4) and (12M)^(-1/4) for the decoder. The paper fills weights by Xavier; here `model.init` does.
    """

    _SCALED = ("v_proj", "out_proj", "gate_proj", "up_proj", "down_proj")

    def __init__(self, d_model: int, norm: Norm, dropout: float, depth: Depth, is_first: bool) -> None:
        super().__init__(d_model, norm, dropout, depth, is_first)
        n = depth.n_layers
        if depth.read_by is not None:
            both = (n**4 * depth.read_by) ** (1 / 16)
            self.alpha, self.beta = 0.81 * both, 0.87 / both
        elif depth.reads is not None:
            self.alpha, self.beta = (3 * n) ** 0.25, (12 * n) ** -0.25
        else:
            self.alpha, self.beta = (2 * n) ** 0.25, (8 * n) ** -0.25

    def forward(self, x: Stream, sublayer: Callable[..., Tensor], *args: Any) -> Stream:
        return self.norm(self.alpha * x + self.dropout(sublayer(x, *args)))

    def prepare(self, sublayer: nn.Module) -> None:
        for name, module in sublayer.named_modules():
            if name.endswith(self._SCALED):
                module.initial_gain = self.beta  # read by `triform.layers.init.initialise`
