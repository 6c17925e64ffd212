"""Three projections, one of which gates another."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from triform.layers.feed_forward.activations import inner_dropout
from triform.layers.joined import Joined
from triform.layers.tensor_parallel import Ranks


class GatedFeedForward(nn.Module):
    """down(activation(gate(x)) * up(x)) at every position (Shazeer 2020, https://arxiv.org/abs/2002.05202).

    With the same `d_ff` it has half as many parameters again as the plain one.

    Args:
        activation: builds the non-linearity; SiLU makes SwiGLU.
        bias: whether the three projections have one.
        dropout: share of the inner activations set to zero in training (T5: as everywhere).

    Raises:
        ValueError: `dropout` outside [0, 1).
    """

    def __init__(
        self, d_model: int, d_ff: int, *, activation: Callable[[], nn.Module], bias: bool, dropout: float
    ) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)
        self.joined: Joined | None = None
        self.activation = activation()
        self.dropout = inner_dropout(type(self).__name__, dropout)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        gate, up = (self.gate_proj(x), self.up_proj(x)) if self.joined is None else self.joined(x).chunk(2, dim=-1)
        return self.down_proj(self.dropout(self.activation(gate) * up))

    @property
    def projections(self) -> tuple[nn.Module, ...]:
        """Those of the input, which may be joined."""
        return self.gate_proj, self.up_proj

    def share(self, ranks: Ranks) -> None:
        """Each rank has some of the inner units.

        Raises:
            ValueError: the ranks do not divide `d_ff`.
        """
        ranks.divide(self, "d_ff", self.up_proj.out_features, "model.d_ff")
        ranks.columns(self, "gate_proj", "up_proj")
        ranks.rows(self, "down_proj")
        ranks.sums(self.activation)
        ranks.enters(self, ("x",), noisy=self.dropout.p > 0)
