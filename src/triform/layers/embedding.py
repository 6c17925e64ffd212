"""From token ids to vectors."""

from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Embedding(nn.Module):
    """What makes vectors of a model's input.

    Attributes:
        reads: what the input is, "tokens" or another kind.
        d_model: their width.
        seq_len: how many it makes of every input; None: one for each token.
    """

    reads: ClassVar[str] = "tokens"
    d_model: int
    seq_len: int | None = None

    @abstractmethod
    def forward(self, inputs: Tensor, token_type_ids: Tensor | None = None) -> Float[Tensor, "batch seq_len d_model"]:
        """The vectors of a batch of inputs."""

    @abstractmethod
    def blank(self, seq_len: int) -> Tensor:
        """An input of one row, nothing but zeros, of `seq_len` tokens where that is free: to measure a model with."""

    def flops(self, seq_len: int) -> int:
        """Of the forward pass over a row; a lookup is none."""
        return 0


class TokenEmbedding(Embedding):
    """A learned vector for each token, and where there are types of tokens one for each type.

    Args:
        vocab_size: rows of the table.
        n_tokens: how many of them stand for tokens, the first ones; the rest pad the table. None: all.
        n_token_types: of tokens, such as first and second sentence (Devlin et al. 2019, figure 2); 0: one kind.
        scaled: multiply token vectors by sqrt(d_model) (Vaswani et al. 2017, section 3.4), which brings a table
            that is also the output projection to the size of the positions. The factor is rounded to the table's
            type first, as in Gemma: 45.25 for 2048 in bfloat16.

    Raises:
        ValueError: `vocab_size` < 1, `d_model` < 1, `n_tokens` outside [1, vocab_size], `n_token_types` < 0.
    """

    def __init__(
        self, vocab_size: int, d_model: int, *, scaled: bool, n_tokens: int | None = None, n_token_types: int = 0
    ) -> None:
        super().__init__()
        if vocab_size < 1:
            raise ValueError(
                f"TokenEmbedding: vocab_size={vocab_size} is less than 1; set model.vocab_size to at least the "
                f"tokenizer's, or to null"
            )
        if d_model < 1:
            raise ValueError(f"TokenEmbedding: d_model={d_model} is less than 1; set model.d_model to at least 1")
        n_tokens = vocab_size if n_tokens is None else n_tokens
        if not 1 <= n_tokens <= vocab_size:
            raise ValueError(
                f"TokenEmbedding: {n_tokens} tokens do not fit vocab_size={vocab_size}; set model.vocab_size to at "
                f"least {n_tokens}, or to null"
            )
        if n_token_types < 0:
            raise ValueError(
                f"TokenEmbedding: n_token_types={n_token_types} is negative; set model.n_token_types to at least 0"
            )
        self.vocab_size, self.n_tokens, self.d_model = vocab_size, n_tokens, d_model
        self.table = nn.Embedding(vocab_size, d_model)
        self.types = nn.Embedding(n_token_types, d_model) if n_token_types else None
        self.scale = d_model**0.5 if scaled else 1.0

    def forward(
        self, input_ids: Int[Tensor, "batch seq_len"], token_type_ids: Int[Tensor, "batch seq_len"] | None = None
    ) -> Float[Tensor, "batch seq_len d_model"]:
        """`token_type_ids` None: all are of type 0.

        Raises:
            ValueError: `token_type_ids` given, but there are no types.
        """
        x = self.table(input_ids)
        if self.scale != 1:
            x = x * x.new_full((), self.scale)
        if self.types is not None:
            return x + (self.types.weight[0] if token_type_ids is None else self.types(token_type_ids))
        if token_type_ids is not None:
            raise ValueError(
                "TokenEmbedding: token_type_ids are given, but model.n_token_types=0; set it to the number of types"
            )
        return x

    def blank(self, seq_len: int) -> Int[Tensor, "1 seq_len"]:
        return torch.zeros(1, seq_len, dtype=torch.long, device=self.table.weight.device)
