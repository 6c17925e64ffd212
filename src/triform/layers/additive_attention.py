"""Attention whose scores are a small network's."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

Weights = Float[Tensor, "batch q_len src_len"]


def weigh(
    scores: Float[Tensor, "batch q_len src_len"], padding_mask: Bool[Tensor, "batch src_len"] | None
) -> Float[Tensor, "batch q_len src_len"]:
    """Softmax over the source's real tokens; a source without any has weights of 0."""
    if padding_mask is None:
        return scores.softmax(dim=-1)
    real = padding_mask[:, None]
    return scores.masked_fill(~real, torch.finfo(scores.dtype).min).softmax(dim=-1).masked_fill(~real, 0.0)


class AdditiveAttention(nn.Module):
    """v . tanh(W query + U key), and a softmax of these scores (Bahdanau et al. 2015, section 3.1 and appendix A.1.2).

    Args:
        d_query: width of a query.
        d_memory: width of what is attended to.
        d_alignment: width of the network's one layer.
    """

    def __init__(self, d_query: int, d_memory: int, d_alignment: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(d_query, d_alignment)
        self.k_proj = nn.Linear(d_memory, d_alignment, bias=False)
        self.score_proj = nn.Linear(d_alignment, 1, bias=False)

    def forward(
        self,
        query: Float[Tensor, "batch d_query"],
        keys: Float[Tensor, "batch src_len d_alignment"],
        memory: Float[Tensor, "batch src_len d_memory"],
        padding_mask: Bool[Tensor, "batch src_len"] | None,
    ) -> tuple[Float[Tensor, "batch d_memory"], Float[Tensor, "batch 1 src_len"]]:
        """The weighted mean of the memory, and the weights.

        Args:
            keys: `k_proj(memory)`, the same for every query.
        """
        scores = self.score_proj((self.q_proj(query)[:, None] + keys).tanh())
        weights = weigh(scores.transpose(1, 2), padding_mask)
        return (weights @ memory)[:, 0], weights

    def flops(self, q_len: int, src_len: int) -> int:
        """Of the forward pass of so many queries."""
        of_pair = self.score_proj.weight.numel() + self.k_proj.in_features
        return 2 * (
            self.q_proj.weight.numel() * q_len + self.k_proj.weight.numel() * src_len + of_pair * q_len * src_len
        )
