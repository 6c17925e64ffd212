"""What a position scheme may do, and how tokens are counted."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

Heads = Float[Tensor, "batch heads seq_len head_dim"]
Rotate = Callable[[Heads], Heads]


def unrotated(x: Heads) -> Heads:
    return x


class Position(nn.Module):
    """A scheme by which a stack knows the order of its tokens: three hooks, each by default does nothing.

    A stack builds one, with its `d_model`, `n_heads`, `head_dim`, `max_seq_len` and `causal` (whether it reads
    left to right only), and asks it once in a forward pass. A scheme keeps no tables in buffers: they
    would follow the model to half precision, where positions beyond 256 collapse.
    """

    def embed(
        self, x: Float[Tensor, "batch seq_len d_model"], position_ids: Int[Tensor, "#batch seq_len"]
    ) -> Float[Tensor, "batch seq_len d_model"]:
        """Marks the embedded tokens."""
        return x

    def rotation(self, position_ids: Int[Tensor, "#batch seq_len"]) -> Rotate:
        """What is done to the queries and keys of every self-attention."""
        return unrotated

    def bias(
        self, queries: Int[Tensor, " q_len"], keys: Int[Tensor, " kv_len"]
    ) -> Float[Tensor, "1 n_heads q_len kv_len"] | None:
        """What is added to the scores of every self-attention, given where in the row its tokens lie."""
        return None


def count_positions(
    q_len: int,
    kv_len: int,
    padding_mask: Bool[Tensor, "batch kv_len"] | None,
    document_ids: Int[Tensor, "batch kv_len"] | None,
    device: torch.device,
) -> Int[Tensor, "#batch q_len"]:
    """The position of the last `q_len` of `kv_len` tokens: the number of real tokens before it in its document."""
    if padding_mask is None:
        if document_ids is None:
            return torch.arange(kv_len - q_len, kv_len, device=device)[None]
        padding_mask = torch.ones_like(document_ids, dtype=torch.bool)
    before = padding_mask.cumsum(dim=1) - padding_mask.long()
    if document_ids is not None:
        begins = torch.ones_like(document_ids, dtype=torch.bool)
        begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
        before = before - torch.where(begins, before, 0).cummax(dim=1).values
    return before[:, kv_len - q_len :]
