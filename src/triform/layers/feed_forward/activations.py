"""Non-linearities that torch has not."""

from jaxtyping import Float
from torch import Tensor, nn


class ReLUSquared(nn.Module):
    """max(x, 0)^2 (So et al. 2021, https://arxiv.org/abs/2109.08668, section 4.1)."""

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return x.relu().square()
