"""Convolutions over the tokens of a row."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from triform.layers.state import StateCache


class Convolution(nn.Module):
    """Each output reads `kernel_size` inputs that lie `dilation` tokens apart; beyond the ends of a row are zeros.

    Args:
        causal: it reads a token and those before it, as ByteNet's masked ones; else as many on either side.
        variance: of the outputs where inputs are independent and of variance 1, at first: weights begin
            N(0, variance / (kernel_size * n_inputs)). 2 behind a ReLU (He et al. 2015), 4 before a gated linear unit
            (Gehring et al. 2017, section 3.5).
        normalised: weights are gain * v / |v|, with a gain for each output (Salimans and Kingma 2016), which begins as
            the length that v is expected to have. (Gehring et al.: as the length that it has.)

    Raises:
        ValueError: `kernel_size` < 1, or even where it is not causal.
    """

    def __init__(
        self,
        n_inputs: int,
        n_outputs: int,
        kernel_size: int,
        *,
        dilation: int = 1,
        causal: bool,
        variance: float,
        normalised: bool,
    ) -> None:
        super().__init__()
        if kernel_size < 1 or (kernel_size % 2 == 0 and not causal):
            raise ValueError(
                f"Convolution: kernel_size={kernel_size} has no middle; set model.network.kernel_size to an odd number "
                f"above 0, such as 3"
            )
        self.causal, self.dilation, self.variance = causal, dilation, variance
        self.reach = (kernel_size - 1) * dilation
        self.weight = nn.Parameter(torch.empty(n_outputs, n_inputs, kernel_size))
        self.bias = nn.Parameter(torch.empty(n_outputs))
        self.gain = nn.Parameter(torch.empty(n_outputs)) if normalised else None

    def forward(
        self, x: Float[Tensor, "batch seq_len n_inputs"], cache: StateCache | None = None, layer: int = 0
    ) -> Float[Tensor, "batch seq_len n_outputs"]:
        """Under a cache `x` are the new tokens, and what `layer` has kept lies before them."""
        weight = self.weight
        if self.gain is not None:
            weight = weight * (self.gain / torch.linalg.vector_norm(weight, dim=(1, 2)))[:, None, None]
        kept = None if cache is None else cache.states[layer]
        if kept is not None:
            x = torch.cat((kept[0], x), dim=1)
        elif self.reach:
            x = F.pad(x, (0, 0, *((self.reach, 0) if self.causal else (self.reach // 2, self.reach // 2))))
        if cache is not None:
            cache.states[layer] = (x[:, x.shape[1] - self.reach :],)
        return F.conv1d(x.transpose(1, 2), weight, self.bias, dilation=self.dilation).transpose(1, 2)

    def initialise_parameter(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """See the class; biases begin as 0."""
        if name == "gain":
            value.fill_(self.variance**0.5)
        elif name == "bias":
            value.zero_()
        else:
            nn.init.normal_(value, std=(self.variance / value[0].numel()) ** 0.5, generator=generator)

    def flops(self, seq_len: int) -> int:
        """Of the forward pass over a row; what lies beyond its ends counts."""
        return 2 * self.weight.numel() * seq_len

    def extra_repr(self) -> str:
        return f"dilation={self.dilation}, causal={self.causal}"
