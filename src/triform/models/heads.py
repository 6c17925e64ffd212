"""From hidden states to logits, or with labels to the loss.

The owner calls a head's factory with its token embedding, which knows the width and may lend its table.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from triform.layers.embedding import TokenEmbedding

Loss = Callable[[Tensor, Tensor], Tensor]

# Logits that a loss may hold at once; 2**26 are 256 MiB in float32, and about three times that in a step.
MAX_LOGITS = 2**26


class LanguageModelHead(nn.Module):
    """A logit for each token of the vocabulary, and none for the rows that pad the table: those are never produced.

    Args:
        tied: the projection is the table of the token embedding (Press and Wolf 2017; Vaswani et al. 2017,
            section 3.4); otherwise its own.
        bias: whether each token has a bias (BERT has one).
        scaled: multiply hidden states by d_model^(-1/2) first (T5 1.0, whose tied table has unit variance).
        softcap: bound that logits approach smoothly, softcap * tanh(logit / softcap) (Gemma 2: 30). None: no bound.
        transform: builds what hidden states pass first, given their width (BERT: `Transform`). None: nothing.

    Raises:
        ValueError: `softcap` <= 0.
    """

    def __init__(
        self,
        embedding: TokenEmbedding,
        *,
        tied: bool,
        bias: bool,
        scaled: bool,
        softcap: float | None,
        transform: Callable[[int], nn.Module] | None,
    ) -> None:
        super().__init__()
        if softcap is not None and softcap <= 0:
            raise ValueError(
                f"LanguageModelHead: softcap={softcap} is not positive; set model.head.softcap above 0, or to null"
            )
        self.n_tokens = embedding.n_tokens
        self.scale = embedding.d_model**-0.5 if scaled else 1.0
        self.softcap = softcap
        self.multiplier = 1.0  # of the logits, before their bias; muP sets it
        # In a tuple, so that the table is a parameter of the embedding alone and `to_empty` keeps the tie.
        self._tied = (embedding.table,) if tied else ()
        if not tied:
            self.projection = nn.Linear(embedding.d_model, embedding.vocab_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(embedding.vocab_size)) if bias else None
        self.transform = nn.Identity() if transform is None else transform(embedding.d_model)

    @property
    def weight(self) -> Float[Tensor, "vocab_size d_model"]:
        return self._tied[0].weight if self._tied else self.projection.weight

    def forward(
        self,
        hidden: Float[Tensor, "*batch d_model"],
        labels: Int[Tensor, "*batch"] | None = None,
        loss: Loss | None = None,
    ) -> Float[Tensor, "*batch n_tokens"] | Float[Tensor, ""]:
        """The logits; with `labels` and `loss` the loss (a sum over tokens).

        Beyond `MAX_LOGITS` the loss is taken piece by piece, and each piece computed again in the backward
        pass, so that memory does not grow with tokens times vocabulary.
        """
        if labels is None or loss is None:
            return self.project(hidden)
        hidden, labels = hidden.flatten(0, -2), labels.flatten()
        if not hidden.is_cuda and not torch.compiler.is_compiling():  # on a GPU it would wait for the device
            counted = labels != -100
            hidden, labels = hidden[counted], labels[counted]
        size = max(1, MAX_LOGITS // self.weight.shape[0])
        if len(labels) <= size:
            return loss(self.project(hidden), labels)
        total = hidden.new_zeros((), dtype=torch.float32)
        for h, y in zip(hidden.split(size), labels.split(size), strict=True):
            total = total + checkpoint(
                lambda h, y: loss(self.project(h), y), h, y, use_reentrant=False, preserve_rng_state=False
            )
        return total

    def project(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch n_tokens"]:
        factor = self.scale * self.multiplier
        hidden = self.transform(hidden)
        logits = F.linear(hidden if factor == 1 else hidden * factor, self.weight, self.bias)[..., : self.n_tokens]
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()

    def flops(self, seq_len: int) -> int:
        """Of the forward pass over a row: a projection for each token, and what the transform has."""
        inner = sum(m.weight.numel() for m in self.transform.modules() if isinstance(m, nn.Linear))
        return 2 * (self.weight.numel() + inner) * seq_len


class Transform(nn.Module):
    """norm(activation(dense(hidden))), between an encoder and its projection (Devlin et al. 2019, and its code).

    Args:
        activation: builds the non-linearity.
        norm: builds a norm of a given width.
        bias: whether the projection has one.
    """

    def __init__(
        self, d_model: int, *, activation: Callable[[], nn.Module], norm: Callable[[int], nn.Module], bias: bool
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model, bias=bias)
        self.activation = activation()
        self.norm = norm(d_model)

    def forward(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return self.norm(self.activation(self.dense(hidden)))


class ClassificationHead(nn.Module):
    """A logit for each class, from the hidden state of the token that stands for the text.

    dropout, dense, tanh, dropout, projection: as in RoBERTa and BART.

    Args:
        n_classes: at least 2.
        dropout: share set to zero in training, before each projection.

    Raises:
        ValueError: `n_classes` < 2.
    """

    def __init__(self, embedding: TokenEmbedding, *, n_classes: int, dropout: float) -> None:
        super().__init__()
        if n_classes < 2:
            raise ValueError(
                f"ClassificationHead: n_classes={n_classes} leaves nothing to choose; give data.train_files at "
                f"least 2 different labels in data.label_column"
            )
        self.dense = nn.Linear(embedding.d_model, embedding.d_model)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(embedding.d_model, n_classes)
        self.multiplier = 1.0  # of the logits, before their bias; muP sets it

    def forward(
        self,
        hidden: Float[Tensor, "*batch d_model"],
        labels: Int[Tensor, "*batch"] | None = None,
        loss: Loss | None = None,
    ) -> Float[Tensor, "*batch n_classes"] | Float[Tensor, ""]:
        """The logits; with `labels` and `loss` the loss (a sum over texts)."""
        pooled = self.dense(self.dropout(hidden)).tanh()
        logits = self.classifier(self.dropout(pooled) * self.multiplier)
        return logits if labels is None or loss is None else loss(logits, labels)

    def flops(self, seq_len: int) -> int:
        """Of the forward pass over a row, whatever its length: one token stands for it."""
        return 2 * (self.dense.weight.numel() + self.classifier.weight.numel())
