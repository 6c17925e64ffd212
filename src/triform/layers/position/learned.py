"""A table of learned vectors."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from triform.layers.position.base import Position


class Learned(Position):
    """Adds a learned vector for each position (Gehring et al. 2017; BERT, GPT-2).

    Args:
        offset: the row of the first position, at least 0: RoBERTa and BART leave 2 rows before it unused.

    Raises:
        ValueError: `offset` < 0.
    """

    def __init__(
        self, *, d_model: int, n_heads: int, head_dim: int, max_seq_len: int, causal: bool, offset: int
    ) -> None:
        super().__init__()
        if offset < 0:
            raise ValueError(f"Learned: offset={offset} is negative; set model.position.offset to at least 0")
        self.offset = offset
        self.table = nn.Embedding(offset + max_seq_len, d_model)

    def embed(
        self, x: Float[Tensor, "batch seq_len d_model"], position_ids: Int[Tensor, "#batch seq_len"]
    ) -> Float[Tensor, "batch seq_len d_model"]:
        return x + self.table(position_ids + self.offset)
