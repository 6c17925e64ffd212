"""From hidden states to logits, or with labels to the loss.

The owner calls a head's factory with its embedding, which knows the width, and one of tokens may lend its table.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from triform.layers.embedding import Embedding, TokenEmbedding
from triform.models.pieces import LossInPieces

Loss = Callable[[Tensor, Tensor], Tensor]

# Logits that a loss may hold at once; 2**26 are 256 MiB in float32, and about three times that in a step.
MAX_LOGITS = 2**26
# On a CPU, where smaller pieces are as fast; but each adds to the whole gradient of the table, so that it has tokens
# enough to be worth it.
MAX_LOGITS_ON_CPU = 2**21
MIN_TOKENS_ON_CPU = 64


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
        ValueError: `softcap` <= 0, or the embedding is not one of tokens.
    """

    def __init__(
        self,
        embedding: Embedding,
        *,
        tied: bool,
        bias: bool,
        scaled: bool,
        softcap: float | None,
        transform: Callable[[int], nn.Module] | None,
    ) -> None:
        super().__init__()
        if not isinstance(embedding, TokenEmbedding):
            raise ValueError(
                f"LanguageModelHead: {type(embedding).__name__} has no tokens to choose from; set model/head to "
                f"classification_linear or hidden_states"
            )
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

        Beyond `MAX_LOGITS` or `MAX_LOGITS_ON_CPU` the loss is taken piece by piece, so that memory does not grow with
        tokens times vocabulary; see `LossInPieces`. Under torch.compile and in float16, whose gradients must be scaled
        before they are rounded, each piece is computed again in the backward pass instead.
        """
        if labels is None or loss is None:
            return self.project(hidden)
        hidden, labels = hidden.flatten(0, -2), labels.flatten()
        compiling = torch.compiler.is_compiling()
        if not hidden.is_cuda and not compiling:  # on a GPU it would wait for the device
            counted = labels != -100
            if not counted.all():
                hidden, labels = hidden[counted], labels[counted]
        size = self._piece(hidden.is_cuda)
        if len(labels) <= size:
            return loss(self.project(hidden), labels)
        if torch.is_grad_enabled() and not compiling and not _in_float16(hidden):
            bias = None if self.bias is None else self.bias[: self.n_tokens]

            def capped(logits: Tensor, labels: Tensor) -> Tensor:
                return loss(self._capped(logits), labels)

            summed: Tensor = LossInPieces.apply(
                self._transformed(hidden), self.weight[: self.n_tokens], bias, labels, capped, size
            )
            return summed
        total = hidden.new_zeros((), dtype=torch.float32)
        for h, y in zip(hidden.split(size), labels.split(size), strict=True):
            total = total + checkpoint(
                lambda h, y: loss(self.project(h), y), h, y, use_reentrant=False, preserve_rng_state=False
            )
        return total

    def project(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch n_tokens"]:
        return self._capped(F.linear(self._transformed(hidden), self.weight, self.bias)[..., : self.n_tokens])

    def _transformed(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        factor = self.scale * self.multiplier
        hidden = self.transform(hidden)
        return hidden if factor == 1 else hidden * factor

    def _capped(self, logits: Float[Tensor, "*batch n_tokens"]) -> Float[Tensor, "*batch n_tokens"]:
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()

    def _piece(self, on_gpu: bool) -> int:
        """Tokens whose logits a loss holds at once."""
        n_tokens = self.weight.shape[0]
        return max(1, MAX_LOGITS // n_tokens) if on_gpu else max(MIN_TOKENS_ON_CPU, MAX_LOGITS_ON_CPU // n_tokens)

    def flops(self, seq_len: int) -> int:
        """Of the forward pass over a row: a projection for each token, and what the transform has."""
        return 2 * (self.weight.numel() + _weights(self.transform)) * seq_len

    def n_logits(self, rows: int, seq_len: int) -> int:
        """How many a loss over rows holds at once, at most: on a GPU."""
        return self.weight.shape[0] * min(rows * seq_len, self._piece(on_gpu=True))


class Transform(nn.Module):
    """norm(activation(dense(hidden))), between an encoder and its projection (Devlin et al. 2019, and its code).

    Without a norm and with tanh it is BERT's pooler.

    Args:
        activation: builds the non-linearity.
        norm: builds a norm of a given width; None: no norm.
        bias: whether the projection has one.
    """

    def __init__(
        self,
        d_model: int,
        *,
        activation: Callable[[], nn.Module],
        norm: Callable[[int], nn.Module] | None,
        bias: bool,
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(d_model, d_model, bias=bias)
        self.activation = activation()
        self.norm = nn.Identity() if norm is None else norm(d_model)

    def forward(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return self.norm(self.activation(self.dense(hidden)))


class TextHead(nn.Module):
    """What the heads of a whole text have in common: dropout, transform, dropout, projection.

    As in RoBERTa and BART; BERT and DistilBERT drop before the projection only.

    Args:
        n_outputs: numbers that a text is given.
        dropout: share set to zero in training, before the transform and before the projection.
        transform: builds what hidden states pass first, given their width: a dense layer with tanh (BERT, RoBERTa) or
            ReLU (DistilBERT). None: nothing (ViT).
    """

    def __init__(
        self, d_model: int, n_outputs: int, dropout: float, transform: Callable[[int], nn.Module] | None
    ) -> None:
        super().__init__()
        self.input_dropout = nn.Identity() if transform is None else nn.Dropout(dropout)
        self.transform = nn.Identity() if transform is None else transform(d_model)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(d_model, n_outputs)  # as Hugging Face names it, also where it gives one number
        self.multiplier = 1.0  # of the outputs, before their bias; muP sets it

    def project(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch n_outputs"]:
        return self.classifier(self.dropout(self.transform(self.input_dropout(hidden))) * self.multiplier)

    def flops(self, seq_len: int) -> int:
        """Of the forward pass over a row, whatever its length: one token stands for it."""
        return 2 * (_weights(self.transform) + self.classifier.weight.numel())

    def n_logits(self, rows: int, seq_len: int) -> int:
        """How many a loss over rows holds at once."""
        return rows * self.classifier.out_features


class ClassificationHead(TextHead):
    """A logit for each class, from the hidden state of the token that stands for the text.

    Args:
        n_classes: at least 2.
        dropout, transform: see `TextHead`.

    Raises:
        ValueError: `n_classes` < 2.
    """

    def __init__(
        self, embedding: Embedding, *, n_classes: int, dropout: float, transform: Callable[[int], nn.Module] | None
    ) -> None:
        if n_classes < 2:
            raise ValueError(
                f"ClassificationHead: n_classes={n_classes} leaves nothing to choose; give data.train_files at "
                f"least 2 different labels in data.label_column"
            )
        super().__init__(embedding.d_model, n_classes, dropout, transform)

    def forward(
        self,
        hidden: Float[Tensor, "*batch d_model"],
        labels: Int[Tensor, "*batch"] | None = None,
        loss: Loss | None = None,
    ) -> Float[Tensor, "*batch n_classes"] | Float[Tensor, ""]:
        """The logits; with `labels` and `loss` the loss (a sum over texts)."""
        logits = self.project(hidden)
        return logits if labels is None or loss is None else loss(logits, labels)


class RegressionHead(TextHead):
    """A number, from the hidden state of the token that stands for the text.

    Args:
        dropout, transform: see `TextHead`.
    """

    def __init__(self, embedding: Embedding, *, dropout: float, transform: Callable[[int], nn.Module] | None) -> None:
        super().__init__(embedding.d_model, 1, dropout, transform)

    def forward(
        self,
        hidden: Float[Tensor, "*batch d_model"],
        labels: Float[Tensor, "*batch"] | None = None,
        loss: Loss | None = None,
    ) -> Float[Tensor, "*batch"] | Float[Tensor, ""]:
        """The numbers; with `labels` and `loss` the loss (a sum over texts)."""
        numbers = self.project(hidden)[..., 0]
        return numbers if labels is None or loss is None else loss(numbers, labels)


class HiddenStates(nn.Module):
    """No logits: hidden states as they are, or through a transform, for who works with those.

    Args:
        transform: builds what they pass, given their width: a dense layer with tanh is the pooler of BERT, RoBERTa and
            ViT, meant for the first token. None: nothing.
    """

    def __init__(self, embedding: Embedding, *, transform: Callable[[int], nn.Module] | None) -> None:
        super().__init__()
        self.transform = nn.Identity() if transform is None else transform(embedding.d_model)

    def forward(
        self, hidden: Float[Tensor, "*batch d_model"], labels: Tensor | None = None, loss: Loss | None = None
    ) -> Float[Tensor, "*batch d_model"]:
        """The states.

        Raises:
            ValueError: a loss is asked for.
        """
        if labels is not None:
            raise ValueError(
                "HiddenStates: there are no logits to take a loss of; set model/head to language_model or another head "
                "that has some"
            )
        return self.transform(hidden)

    def flops(self, seq_len: int) -> int:
        """Of the forward pass over a row: the transform for one token."""
        return 2 * _weights(self.transform)

    def n_logits(self, rows: int, seq_len: int) -> int:
        """How many a loss over rows holds at once."""
        return 0


class TwoHeads(nn.Module):
    """Two heads on the same hidden states: one that gives logits and loss, and beside it one of the whole text.

    As BERT is pre-trained (Devlin et al. 2019, section 3.1): `model.head.text(hidden[:, 0])` says whether the second
    sentence follows the first.

    Args:
        main: builds the first, given the embedding.
        text: the same for the other, which reads the first token: a `ClassificationHead`, or a pooler alone.
    """

    def __init__(
        self, embedding: Embedding, *, main: Callable[[Embedding], Any], text: Callable[[Embedding], Any]
    ) -> None:
        super().__init__()
        self.main: Any = main(embedding)
        self.text: Any = text(embedding)

    def forward(
        self,
        hidden: Float[Tensor, "*batch d_model"],
        labels: Int[Tensor, "*batch"] | Float[Tensor, "*batch"] | None = None,
        loss: Loss | None = None,
    ) -> Float[Tensor, "*batch n_logits"] | Float[Tensor, "*batch"] | Float[Tensor, ""]:
        return self.main(hidden, labels, loss)

    def flops(self, seq_len: int) -> int:
        """Of the forward pass over a row, of the first head."""
        return int(self.main.flops(seq_len))

    def n_logits(self, rows: int, seq_len: int) -> int:
        """How many a loss over rows holds at once."""
        return int(self.main.n_logits(rows, seq_len))


def _in_float16(hidden: Tensor) -> bool:
    device = hidden.device.type
    return hidden.dtype == torch.float16 or (
        torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
    )


def _weights(module: nn.Module) -> int:
    """Of its projections."""
    return sum(m.weight.numel() for m in module.modules() if isinstance(m, nn.Linear))
