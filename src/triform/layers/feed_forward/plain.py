"""Two projections with a non-linearity between."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from triform.layers.feed_forward.activations import inner_dropout
from triform.layers.tensor_parallel import Ranks


class FeedForward(nn.Module):
    """down(activation(up(x))) at every position (Vaswani et al. 2017, section 3.3).

    Args:
        activation: builds the non-linearity.
        bias: whether both projections have one.
        dropout: share of the inner activations set to zero in training (T5: as everywhere).

    Raises:
        ValueError: `dropout` outside [0, 1).
    """

    def __init__(
        self, d_model: int, d_ff: int, *, activation: Callable[[], nn.Module], bias: bool, dropout: float
    ) -> None:
        super().__init__()
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.activation = activation()
        self.dropout = inner_dropout(type(self).__name__, dropout)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return self.down_proj(self.dropout(self.activation(self.up_proj(x))))

    def share(self, ranks: Ranks) -> None:
        """Each rank has some of the inner units.

        Raises:
            ValueError: the ranks do not divide `d_ff`.
        """
        ranks.divide(self, "d_ff", self.up_proj.out_features, "model.d_ff")
        ranks.columns(self, "up_proj")
        ranks.rows(self, "down_proj")
        ranks.sums(self.activation)
        ranks.enters(self, ("x",), noisy=self.dropout.p > 0)
