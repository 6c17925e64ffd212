"""From token ids to vectors."""

from jaxtyping import Float, Int
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """A learned vector for each token.

    Args:
        scaled: multiply by sqrt(d_model) (Vaswani et al. 2017, section 3.4), which brings a table that is
            also the output projection to the size of the positions.

    Raises:
        ValueError: `vocab_size` < 1.
    """

    def __init__(self, vocab_size: int, d_model: int, *, scaled: bool) -> None:
        super().__init__()
        if vocab_size < 1:
            raise ValueError(
                f"TokenEmbedding: vocab_size={vocab_size} is less than 1; set model.vocab_size to at least the "
                f"tokenizer's, or to null"
            )
        self.vocab_size, self.d_model = vocab_size, d_model
        self.table = nn.Embedding(vocab_size, d_model)
        self.scale = d_model**0.5 if scaled else 1.0

    def forward(self, input_ids: Int[Tensor, "batch seq_len"]) -> Float[Tensor, "batch seq_len d_model"]:
        return self.table(input_ids) * self.scale
