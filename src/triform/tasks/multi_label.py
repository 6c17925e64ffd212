"""Any number of labels for a text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triform.data.tokenizers import Tokenizer
from triform.layers.losses import BinaryCrossEntropy
from triform.tasks.choice import known_labels
from triform.tasks.classification import text_head
from triform.tasks.f1 import class_counts, macro_f1, micro_f1
from triform.tasks.objective import Batch, Criterion, Ids, Key, Measures, Model, Objective, Sample
from triform.tasks.text_state import FAMILIES, TextState


class MultiLabel(Objective):
    """Says yes or no to each class of a text, from the state that stands for it (see `TextState`).

    A class is chosen where its probability is above one half. The loss is the mean binary cross-entropy over texts and
    classes; `accuracy` is the share of right answers among them, `exact_match` that of texts without a wrong one.

    Args:
        pooling: "first" or "mean"; of an encoder only.
        dropout: before the classifier, in [0, 1).

    Raises:
        ValueError: unknown `pooling`, or fewer than two classes.
    """

    kinds = ("multilabelled",)
    families = FAMILIES
    monitor = ("micro_f1", "max")
    measures = ("accuracy", "exact_match")
    derived = ("micro_f1", "macro_f1")

    def __init__(
        self,
        pooling: str,
        dropout: float,
        *,
        family: str,
        tokenizer: Tokenizer,
        labels: Sequence[str] | None,
        seq_len: int,
        seed: int,
    ) -> None:
        self.labels, self.dropout = known_labels("MultiLabel", labels, "data.labels_column"), dropout
        self.text = TextState(family, tokenizer, seq_len, pooling, "MultiLabel")
        self.criterion = YesOrNo(len(self.labels))

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        labels = torch.zeros(len(examples) or 1, len(self.labels), dtype=torch.bool)
        for row, example in zip(labels, examples, strict=False):
            row[torch.as_tensor(example["labels"], dtype=torch.long)] = True
        return self.text.inputs([example["ids"] for example in examples]) | {
            "labels": labels,
            "n_targets": len(examples) * len(self.labels),
            "n_rows": len(examples),
        }

    def room(self) -> int:
        return self.text.room()

    def hidden(self, model: Model, batch: Batch) -> Tensor:
        """The states of the texts; a batch without examples has a row of padding that is none."""
        return self.text.hidden(model, batch)

    def probabilities(self, model: Model, texts: Sequence[Ids]) -> Tensor:
        """Of each class of each text."""
        return self.text.outputs(model, texts).float().sigmoid()

    def says(self, model: Model, texts: Sequence[Ids]) -> list[str]:
        """The chosen classes of each text, separated by commas."""
        guesses = (self.text.outputs(model, texts) > 0).tolist()
        return [self.names(i for i, yes in enumerate(chosen) if yes) for chosen in guesses]

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        outputs, samples = self.says(model, [example["ids"] for example in examples]), []
        for example, output in zip(examples, outputs, strict=True):
            target = self.names(sorted(int(i) for i in example["labels"]))
            samples.append(Sample(self.text.tokenizer.decode(list(example["ids"])), output, target, output == target))
        return samples

    def names(self, classes: Any) -> str:
        """Of classes by number, separated by commas."""
        return ", ".join(self.labels[i] for i in classes)

    def model_arguments(self) -> dict[str, Any]:
        return text_head(len(self.labels), self.dropout)


class YesOrNo(Criterion):
    """Losses and figures of one answer for each class of each text."""

    def __init__(self, n_classes: int) -> None:
        self.n_classes, self.binary_loss = n_classes, BinaryCrossEntropy()

    def loss(self, model: Model, hidden: Tensor, batch: Batch) -> Tensor:
        loss = self.binary_loss(model.head(hidden), batch["labels"])
        return loss if batch["n_rows"] else loss * 0

    def evaluate(self, model: Model, hidden: Tensor, batch: Batch) -> Measures:
        n_rows = batch["n_rows"]
        logits, labels = model.head(hidden)[:n_rows], batch["labels"][:n_rows]
        guesses = logits > 0
        right = guesses == labels
        return Measures(
            self.binary_loss(logits, labels),
            batch["n_targets"],
            {"accuracy": (right.sum(), batch["n_targets"]), "exact_match": (right.all(-1).sum(), n_rows)},
            {"classes": class_counts(guesses, labels)},
        )

    def sums(self) -> Mapping[str, int]:
        return {"classes": 3 * self.n_classes}

    def conclude(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {"micro_f1": micro_f1(sums["classes"]), "macro_f1": macro_f1(sums["classes"])}
