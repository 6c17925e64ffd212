"""Where the norm stands around a sublayer."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn


class PostNorm(nn.Module):
    """norm(x + dropout(sublayer(x))), as in Vaswani et al. 2017, section 3.1.

    Args:
        norm: builds a norm of a given width.
        dropout: share of the sublayer's output set to zero in training.
    """

    needs_final_norm = False

    def __init__(self, d_model: int, norm: Callable[[int], nn.Module], dropout: float) -> None:
        super().__init__()
        self.norm = norm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch seq_len d_model"], sublayer: Callable[..., Tensor], *args: Any
    ) -> Float[Tensor, "batch seq_len d_model"]:
        return self.norm(x + self.dropout(sublayer(x, *args)))


class PreNorm(nn.Module):
    """x + dropout(sublayer(norm(x))); the stack ends with a norm (GPT-2; Xiong et al. 2020).

    Args:
        norm: builds a norm of a given width.
        dropout: share of the sublayer's output set to zero in training.
    """

    needs_final_norm = True

    def __init__(self, d_model: int, norm: Callable[[int], nn.Module], dropout: float) -> None:
        super().__init__()
        self.norm = norm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch seq_len d_model"], sublayer: Callable[..., Tensor], *args: Any
    ) -> Float[Tensor, "batch seq_len d_model"]:
        return x + self.dropout(sublayer(self.norm(x), *args))
