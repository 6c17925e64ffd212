"""Dropout that costs nothing when it does nothing."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class Dropout(nn.Module):
    """In training a share `p` of the numbers is set to zero and the rest divided by 1 - p (Srivastava et al. 2014).

    As `nn.Dropout`, which in evaluation too calls an operation: in a step of generating, two or three times a layer.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return F.dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"
