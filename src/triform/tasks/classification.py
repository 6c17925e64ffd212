"""One label for a text."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from triform.data.prepare import Split
from triform.data.tokenizers import Tokenizer
from triform.models.heads import ClassificationHead, Transform
from triform.tasks.choice import Choice, known_labels
from triform.tasks.objective import IGNORED, Batch, Ids, Key, Model, Objective, Sample
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
        self.criterion: Choice = Choice("Classification", self.labels, label_smoothing, class_weights)

    def look(self, train: Split) -> None:
        self.criterion.count(train.labels)

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        return self.text.inputs([example["ids"] for example in examples]) | {
            "labels": torch.tensor([int(example["label"]) for example in examples] or [IGNORED]),
            "n_targets": len(examples),
        }

    def room(self) -> int:
        return self.text.room()

    def hidden(self, model: Model, batch: Batch) -> Tensor:
        return self.text.hidden(model, batch)

    def probabilities(self, model: Model, texts: Sequence[Ids]) -> Tensor:
        """Of each class of each text."""
        return self.text.outputs(model, texts).float().softmax(-1)

    def says(self, model: Model, texts: Sequence[Ids]) -> list[str]:
        """The likeliest class of each text."""
        return [self.labels[guess] for guess in self.text.outputs(model, texts).argmax(-1).tolist()]

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        outputs = self.says(model, [example["ids"] for example in examples])
        targets = [self.labels[int(example["label"])] for example in examples]
        return [
            Sample(self.text.tokenizer.decode(list(example["ids"])), output, target, output == target)
            for example, output, target in zip(examples, outputs, targets, strict=True)
        ]

    def model_arguments(self) -> dict[str, Any]:
        return text_head(len(self.labels), self.dropout)


def text_head(n_classes: int, dropout: float) -> dict[str, Any]:
    """The head that classes of a text are told by: a dense layer with tanh first, as in BERT, RoBERTa and BART."""
    dense = partial(Transform, activation=nn.Tanh, norm=None, bias=True)
    return {"head": partial(ClassificationHead, n_classes=n_classes, dropout=dropout, transform=dense)}
