"""A number for a text."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from triform.data.tokenizers import Tokenizer
from triform.layers.losses import SquaredError
from triform.models.heads import RegressionHead, Transform
from triform.tasks.objective import Batch, Criterion, Ids, Key, Measures, Model, Objective, Sample
from triform.tasks.text_state import FAMILIES, TextState


class Regression(Objective):
    """Predicts a number from the state that stands for a text (see `TextState`), by squared error.

    The model learns (score - center) / scale, and its loss is of that; the figures are of scores as they are: `mse` and
    `mae`, the means of the squared and of the absolute error, and `pearson`, their correlation over all texts at once
    (NaN where either side never varies).

    Args:
        center, scale: of the scores, about their mean and their standard deviation, so that the model begins near them;
            0 and 1 leave scores as they are.
        pooling: "first" or "mean"; of an encoder only.
        dropout: before the projection, in [0, 1).

    Raises:
        ValueError: unknown `pooling`, or `scale` is not positive or finite.
    """

    kinds = ("scored",)
    families = FAMILIES
    monitor = ("mse", "min")
    measures = ("mse", "mae")
    derived = ("pearson",)

    def __init__(
        self,
        center: float,
        scale: float,
        pooling: str,
        dropout: float,
        *,
        family: str,
        tokenizer: Tokenizer,
        labels: Sequence[str] | None,
        seq_len: int,
        seed: int,
    ) -> None:
        if not 0 < scale < math.inf or not math.isfinite(center):
            raise ValueError(
                f"Regression: center={center}, scale={scale}; set task.center to a finite number and task.scale to one "
                "above 0, such as the scores' mean and standard deviation"
            )
        self.center, self.scale, self.dropout = center, scale, dropout
        self.text = TextState(family, tokenizer, seq_len, pooling, "Regression")
        self.criterion = Number(scale)

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        scores = [(float(example["score"]) - self.center) / self.scale for example in examples]
        return self.text.inputs([example["ids"] for example in examples]) | {
            "labels": torch.tensor(scores or [math.nan], dtype=torch.float32),
            "n_targets": len(examples),
        }

    def room(self) -> int:
        return self.text.room()

    def hidden(self, model: Model, batch: Batch) -> Tensor:
        return self.text.hidden(model, batch)

    def says(self, model: Model, texts: Sequence[Ids]) -> list[str]:
        """The number of each text."""
        outputs = self.text.outputs(model, texts).float() * self.scale + self.center
        return [f"{output:.6g}" for output in outputs.tolist()]

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        outputs = self.text.outputs(model, [example["ids"] for example in examples]).float() * self.scale + self.center
        return [
            Sample(self.text.tokenizer.decode(list(example["ids"])), f"{output:.4g}", f"{float(example['score']):.4g}")
            for example, output in zip(examples, outputs.tolist(), strict=True)
        ]

    def model_arguments(self) -> dict[str, Any]:
        dense = partial(Transform, activation=nn.Tanh, norm=None, bias=True)
        return {"head": partial(RegressionHead, dropout=self.dropout, transform=dense)}


class Number(Criterion):
    """Losses of scaled scores, and figures of scores as they are.

    Args:
        scale: by which they were divided.
    """

    def __init__(self, scale: float) -> None:
        self.scale, self.squared_error = scale, SquaredError()

    def loss(self, model: Model, hidden: Tensor, batch: Batch) -> Tensor:
        loss: Tensor = model.head(hidden, batch["labels"], self.squared_error)
        return loss

    def evaluate(self, model: Model, hidden: Tensor, batch: Batch) -> Measures:
        n = batch["n_targets"]
        outputs, scores = model.head(hidden)[:n].double(), batch["labels"][:n].double()
        error = (outputs - scores) * self.scale
        moments = [values.sum() for values in (outputs, scores, outputs**2, scores**2, outputs * scores)]
        return Measures(
            self.squared_error(outputs, scores),
            n,
            {"mse": (error.square().sum(), n), "mae": (error.abs().sum(), n)},
            {"moments": torch.stack([torch.full_like(moments[0], n), *moments])},
        )

    def sums(self) -> Mapping[str, int]:
        return {"moments": 6}

    def conclude(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {"pearson": pearson(*sums["moments"].tolist())}


def pearson(n: float, x: float, y: float, xx: float, yy: float, xy: float) -> float:
    """The correlation of n pairs, given the sums of x, y, their squares and their products; NaN where there is none."""
    variances = (xx - x * x / n) * (yy - y * y / n) if n else 0.0
    return (xy - x * y / n) / math.sqrt(variances) if variances > 0 else math.nan
