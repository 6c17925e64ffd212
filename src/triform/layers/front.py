"""Rows with their real tokens in front, for layers to which a distance in the row matters and padding has none."""

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor


class Front:
    """Where each token goes when a row's real ones come first, in their order, and its padding last.

    No length of a row is asked of the device, so that nothing waits for it.

    Args:
        padding_mask: True for real tokens, wherever in the row they are.
    """

    def __init__(self, padding_mask: Bool[Tensor, "batch seq_len"]) -> None:
        self.order = (~padding_mask).long().argsort(dim=1, stable=True)
        self.padding_mask = real_first(padding_mask.sum(dim=1), padding_mask.shape[1])
        """Of the rows in their new order."""

    def move(self, x: Shaped[Tensor, "batch seq_len *rest"]) -> Shaped[Tensor, "batch seq_len *rest"]:
        """Real tokens first."""
        return _along(x, self.order)

    def back(self, x: Shaped[Tensor, "batch seq_len *rest"]) -> Shaped[Tensor, "batch seq_len *rest"]:
        """Each token where it was."""
        return _along(x, self.order.argsort(dim=1))


def real_first(lengths: Int[Tensor, " batch"], seq_len: int) -> Bool[Tensor, "batch seq_len"]:
    """The padding mask of rows whose first tokens are real."""
    return torch.arange(seq_len, device=lengths.device) < lengths[:, None]


def turned(
    x: Shaped[Tensor, "batch seq_len *rest"], padding_mask: Bool[Tensor, "batch seq_len"] | None
) -> Shaped[Tensor, "batch seq_len *rest"]:
    """Each row from its last real token to its first, its padding where it was; twice is the row itself.

    Args:
        padding_mask: real tokens first; None: all are.
    """
    if padding_mask is None:
        return x.flip(1)
    places = torch.arange(x.shape[1], device=x.device)[None]
    lengths = padding_mask.sum(dim=1, keepdim=True)
    return _along(x, torch.where(padding_mask, lengths - 1 - places, places))


def _along(
    x: Shaped[Tensor, "batch seq_len *rest"], index: Int[Tensor, "batch seq_len"]
) -> Shaped[Tensor, "batch seq_len *rest"]:
    return x.gather(1, index.view(*index.shape, *[1] * (x.ndim - 2)).expand(x.shape))
