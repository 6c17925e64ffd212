"""One class of several: what it costs to be wrong, and how often that happens."""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from triform.layers.losses import CrossEntropy
from triform.tasks.f1 import class_counts, macro_f1, one_hot
from triform.tasks.objective import IGNORED, Batch, Criterion, Measures, Model


class Choice(Criterion):
    """Losses and figures of labels, one for each row of the head's logits.

    Args:
        task: its name, for messages.
        labels: the classes by number.
        label_smoothing: share of the probability spread over the classes, in [0, 1).
        class_weights: factor of each class's losses, see `checked_weights`; "balanced": `balanced_weights` of what
            `count` is given. Figures are without weights.

    Raises:
        ValueError: unknown `class_weights`; see also `CrossEntropy`.
    """

    def __init__(
        self, task: str, labels: Sequence[str], label_smoothing: float, class_weights: Sequence[float] | str | None
    ) -> None:
        self.n_classes, self.label_smoothing = len(labels), label_smoothing
        self.balanced = class_weights == "balanced"
        self.train_loss = CrossEntropy(label_smoothing, class_weights=checked_weights(task, class_weights, labels))
        self.plain_loss = CrossEntropy(0.0)

    def count(self, labels: np.ndarray | None) -> None:
        """See the labels of the training split, -100 where there is none."""
        if self.balanced:
            assert labels is not None
            counts = np.bincount(labels[labels != IGNORED], minlength=self.n_classes)
            self.train_loss = CrossEntropy(self.label_smoothing, class_weights=balanced_weights(counts))

    def loss(self, model: Model, hidden: Tensor, batch: Batch) -> Tensor:
        loss: Tensor = model.head(hidden, batch["labels"], self.train_loss)
        return loss

    def evaluate(self, model: Model, hidden: Tensor, batch: Batch) -> Measures:
        """Loss, accuracy, and what F1 is counted from."""
        return self.measures(model.head(hidden), batch)

    def measures(self, logits: Tensor, batch: Batch) -> Measures:
        labels, n_targets = batch["labels"].flatten(), batch["n_targets"]
        guesses = logits.argmax(-1).flatten().masked_fill(labels == IGNORED, IGNORED)
        return Measures(
            self.plain_loss(logits, batch["labels"]),
            n_targets,
            {"accuracy": (((guesses == labels) & (labels != IGNORED)).sum(), n_targets)},
            {"classes": class_counts(one_hot(guesses, self.n_classes), one_hot(labels, self.n_classes))},
        )

    def sums(self) -> Mapping[str, int]:
        return {"classes": 3 * self.n_classes}

    def conclude(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {"macro_f1": macro_f1(sums["classes"])}


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
