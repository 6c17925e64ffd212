"""No position scheme."""

from triform.layers.position.base import Position


class NoPosition(Position):
    """Order is known from the causal mask alone (Haviv et al. 2022, https://arxiv.org/abs/2203.16634).

    A bidirectional encoder without positions reads a bag of tokens.
    """

    def __init__(self, *, d_model: int, n_heads: int, head_dim: int, max_seq_len: int, causal: bool) -> None:
        super().__init__()
