"""What a task is: how examples become batches, what is minimised, what is measured."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

Batch = dict[str, Any]
Model = Any
"""A model of `triform.models`, or what is called like one and has a `head`."""

Ids = Sequence[int] | np.ndarray
"""Token ids of one text."""

Key = tuple[int, int]
"""(epoch, index) of an example: all that its noise depends on besides the run's seed."""

IGNORED = -100
"""Label of a position that is no target."""


@dataclass(frozen=True)
class Sample:
    """One example with what the model made of it; `correct` is None where nothing is right or wrong."""

    source: str
    output: str
    target: str | None = None
    correct: bool | None = None


@dataclass(frozen=True)
class Measures:
    """Sums of one evaluation batch: the loss over `n_targets` labels, and name -> (sum, count) pairs."""

    loss: Tensor
    n_targets: int
    ratios: Mapping[str, tuple[Tensor, int]]


class Objective(ABC):
    """A task without its training loop, so that it runs in a notebook as well as under Lightning.

    `conf/task/*.yaml` names a subclass; the runner calls it with `family` (of the model), `tokenizer`, `labels`
    (class names, or None), `seq_len` (longest row in tokens) and `seed`.
    """

    kinds: ClassVar[tuple[str, ...]]
    """Kinds of data that it learns from: "text", "pairs", "labelled"."""
    families: ClassVar[tuple[str, ...]]
    """Families of model that it trains."""
    monitor: ClassVar[tuple[str, str]] = ("loss", "min")
    """Measure that picks the best checkpoint, and which way it improves."""
    measures: ClassVar[tuple[str, ...]] = ()
    """Names of the ratios that `evaluate` returns besides the loss."""
    derived: ClassVar[tuple[str, ...]] = ()
    """Names of the figures that `derive` adds."""

    @abstractmethod
    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        """Make a batch of examples. None at all gives one row of padding without a target."""

    @abstractmethod
    def hidden(self, model: Model, batch: Batch) -> Tensor:
        """States from which the head predicts the labels."""

    @abstractmethod
    def loss(self, model: Model, batch: Batch) -> Tensor:
        """Loss summed over the batch's targets: what is trained on."""

    @abstractmethod
    def evaluate(self, model: Model, batch: Batch) -> Measures:
        """Loss without smoothing and the task's measures."""

    @abstractmethod
    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        """What the model makes of some examples, as text."""

    def room(self) -> int | None:
        """Most tokens of a text that a batch holds beside the task's marks; None: running text is never cut."""
        return None

    def derive(self, loss: float, n_targets: float, n_bytes: int | None) -> dict[str, float]:
        """Figures that follow from the mean loss over a split of `n_bytes` bytes of text."""
        return {}

    def model_arguments(self) -> dict[str, Any]:
        """What the model must be built with for this task, such as another head."""
        return {}


def pad(rows: Sequence[Ids], value: int) -> Tensor:
    """Rows of token ids as one matrix, filled up on the right; no rows give one row of one `value`."""
    length = max((len(row) for row in rows), default=1) or 1
    matrix = torch.full((len(rows) or 1, length), value, dtype=torch.long)
    for i, row in enumerate(rows):
        matrix[i, : len(row)] = torch.as_tensor(row, dtype=torch.long)
    return matrix


def padding_mask(rows: Sequence[Ids]) -> Tensor | None:
    """True where a token is real. None when every row is full, so that faster kernels apply."""
    lengths = torch.tensor([len(row) for row in rows] or [0])
    longest = max(int(lengths.max()), 1)
    mask = torch.arange(longest) < lengths[:, None]
    return None if bool(mask.all()) else mask


def present(batch: Mapping[str, Any]) -> Batch:
    """The batch without its absent (None) entries."""
    return {key: value for key, value in batch.items() if value is not None}


def model_inputs(batch: Batch) -> dict[str, Tensor]:
    """What of a batch a single stack reads."""
    return {
        key: batch[key]
        for key in ("input_ids", "padding_mask", "position_ids", "document_ids")
        if batch.get(key) is not None
    }


def perplexity(loss: float) -> float:
    """exp of the mean loss; infinite where a float cannot hold it."""
    return math.exp(loss) if loss < 700 else math.inf
