"""Non-linearities that torch has not."""

from jaxtyping import Float
from torch import Tensor, nn

from triform.layers.dropout import Dropout


class ReLUSquared(nn.Module):
    """max(x, 0)^2 (So et al. 2021, https://arxiv.org/abs/2109.08668, section 4.1)."""

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return x.relu().square()


def inner_dropout(layer: str, share: float) -> Dropout:
    """What stands behind a non-linearity.

    Raises:
        ValueError: `share` outside [0, 1).
    """
    if not 0 <= share < 1:
        raise ValueError(
            f"{layer}: dropout={share} is no share; set model.feed_forward.dropout to at least 0 and less than 1"
        )
    return Dropout(share)
