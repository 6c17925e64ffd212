"""One label for a text."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from triform.data.prepare import Split
from triform.data.tokenizers import Tokenizer
from triform.layers.losses import CrossEntropy
from triform.models.heads import ClassificationHead, Transform
from triform.tasks.f1 import class_counts, macro_f1, one_hot
from triform.tasks.objective import IGNORED, Batch, Key, Measures, Model, Objective, Sample
from triform.tasks.text_state import FAMILIES, TextState


class Classification(Objective):
    """Chooses one class of a text, from the state that stands for it (see `TextState`).

    Args:
        label_smoothing: share of the probability spread over the classes, in [0, 1).
        class_weights: factor of each class's losses, in the order of the labels; "balanced": n_texts / (n_classes *
            texts of the class) in training, so that rare classes count as much as common ones (King and Zeng 2001);
            null: all 1. Weighted losses are summed and divided by the number of texts. Figures are without weights.
        pooling: "first" or "mean"; of an encoder only.
        dropout: before the classifier, in [0, 1).

    Raises:
        ValueError: unknown `pooling` or `class_weights`, fewer than two classes; see also `CrossEntropy`.
    """

    kinds = ("labelled",)
    families = FAMILIES
    monitor = ("accuracy", "max")
    measures = ("accuracy",)
    derived = ("macro_f1",)

    def __init__(
        self,
        label_smoothing: float,
        class_weights: Sequence[float] | str | None,
        pooling: str,
        dropout: float,
        *,
        family: str,
        tokenizer: Tokenizer,
        labels: Sequence[str] | None,
        seq_len: int,
        seed: int,
    ) -> None:
        self.labels, self.dropout = known_labels("Classification", labels, "data.label_column"), dropout
        self.text = TextState(family, tokenizer, seq_len, pooling, "Classification")
        self.label_smoothing, self.balanced = label_smoothing, class_weights == "balanced"
        weights = checked_weights("Classification", class_weights, self.labels)
        self.train_loss = CrossEntropy(label_smoothing, class_weights=weights)
        self.plain_loss = CrossEntropy(0.0)

    def look(self, train: Split) -> None:
        if self.balanced:
            assert train.labels is not None
            counts = np.bincount(train.labels, minlength=len(self.labels))
            self.train_loss = CrossEntropy(self.label_smoothing, class_weights=balanced_weights(counts))

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        return self.text.inputs([example["ids"] for example in examples]) | {
            "labels": torch.tensor([int(example["label"]) for example in examples] or [IGNORED]),
            "n_targets": len(examples),
        }

    def room(self) -> int:
        return self.text.room()

    def hidden(self, model: Model, batch: Batch) -> Tensor:
        return self.text.hidden(model, batch)

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return model.head(self.hidden(model, batch), batch["labels"], self.train_loss)

    def evaluate(self, model: Model, batch: Batch) -> Measures:
        logits, labels = model.head(self.hidden(model, batch)), batch["labels"]
        guesses = logits.argmax(-1).masked_fill(labels == IGNORED, IGNORED)
        n_classes = len(self.labels)
        return Measures(
            self.plain_loss(logits, labels),
            batch["n_targets"],
            {"accuracy": (((guesses == labels) & (labels != IGNORED)).sum(), batch["n_targets"])},
            {"classes": class_counts(one_hot(guesses, n_classes), one_hot(labels, n_classes))},
        )

    def sums(self) -> Mapping[str, int]:
        return {"classes": 3 * len(self.labels)}

    def conclude(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {"macro_f1": macro_f1(sums["classes"])}

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        guesses = self.text.outputs(model, [example["ids"] for example in examples]).argmax(-1).tolist()
        return [
            Sample(
                self.text.tokenizer.decode(list(example["ids"])),
                self.labels[guess],
                self.labels[int(example["label"])],
                guess == int(example["label"]),
            )
            for example, guess in zip(examples, guesses, strict=True)
        ]

    def model_arguments(self) -> dict[str, Any]:
        return text_head(len(self.labels), self.dropout)


def text_head(n_classes: int, dropout: float) -> dict[str, Any]:
    """The head that classes of a text are told by: a dense layer with tanh first, as in BERT, RoBERTa and BART."""
    dense = partial(Transform, activation=nn.Tanh, norm=None, bias=True)
    return {"head": partial(ClassificationHead, n_classes=n_classes, dropout=dropout, transform=dense)}


def known_labels(task: str, labels: Sequence[str] | None, key: str) -> list[str]:
    """The classes by number.

    Args:
        key: of the config, where the column is named.

    Raises:
        ValueError: fewer than two.
    """
    if labels is None or len(labels) < 2:
        raise ValueError(
            f"{task}: the training data has the labels {list(labels or [])}, at least two are needed; check {key}"
        )
    return list(labels)


def checked_weights(
    task: str, class_weights: Sequence[float] | str | None, labels: Sequence[str]
) -> Sequence[float] | None:
    """The weights that are given as numbers; None where there are none, or where the training data decides.

    Raises:
        ValueError: neither null, "balanced" nor a number for each label.
    """
    if class_weights is None or class_weights == "balanced":
        return None
    if isinstance(class_weights, str) or len(class_weights) != len(labels):
        given = repr(class_weights) if isinstance(class_weights, str) else f"{len(class_weights)} numbers"
        raise ValueError(
            f"{task}: class_weights are {given}, the {len(labels)} labels are {', '.join(labels[:10])}; set "
            "task.class_weights to a number for each, to balanced or to null"
        )
    return class_weights


def balanced_weights(counts: np.ndarray) -> list[float]:
    """Of each class, so that all count alike and the weights of all texts sum to their number; 0 where it has none."""
    met = int((counts > 0).sum())
    return [float(counts.sum() / (met * count)) if count else 0.0 for count in counts]
