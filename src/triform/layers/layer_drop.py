"""Layers skipped in training."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

Stream = Float[Tensor, "batch seq_len d_model"]


class LayerDrop(nn.Module):
    """In training each row of a batch skips a layer with some probability; in evaluation no layer is skipped.

    LayerDrop (Fan et al. 2020, https://arxiv.org/abs/1909.11556) has one rate for all layers; stochastic depth
    (Huang et al. 2016, https://arxiv.org/abs/1603.09382) one that grows with depth. Unlike both, rows are skipped
    and not whole batches, so that a layer always has a gradient on every device; nor does it save time.

    Args:
        rate: chance that a row skips a layer, in [0, 1).
        growing: layer i of n (from 1) has the rate i / n times that; otherwise all have the same.
        rescaled: divide what a layer adds by the chance that it is there, so that its mean is as in evaluation
            (with a norm after the shortcut the mean of the norm's output); in Huang et al. evaluation multiplies
            by it instead, Fan et al. do neither.

    Raises:
        ValueError: `rate` outside [0, 1).
    """

    def __init__(self, layer: int, n_layers: int, *, rate: float, growing: bool, rescaled: bool) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(
                f"LayerDrop: rate={rate} is no share; set model.layer_drop.rate to at least 0 and less than 1"
            )
        self.rate = rate * (layer + 1) / n_layers if growing else rate
        self.rescaled = rescaled

    def forward(self, before: Stream, after: Stream) -> Stream:
        """The stream, given what it was before and after the layer."""
        if not self.training or self.rate == 0:
            return after
        stays = torch.rand(len(before), 1, 1, device=before.device) >= self.rate
        if self.rescaled:
            after = before + (after - before) / (1 - self.rate)
        return torch.where(stays, after, before)
