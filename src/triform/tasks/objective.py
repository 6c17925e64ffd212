"""What a task is: how examples become batches, what is minimised, what is measured."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from triform.data.prepare import Split

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
    """Sums of one evaluation batch: the loss over `n_targets` labels, name -> (sum, count) pairs, and other sums."""

    loss: Tensor
    n_targets: int
    ratios: Mapping[str, tuple[Tensor, int | Tensor]]
    sums: Mapping[str, Tensor] = field(default_factory=dict)


class Criterion(ABC):
    """What is minimised and what is measured, given the states that the head reads."""

    @abstractmethod
    def loss(self, model: Model, hidden: Tensor, batch: Batch) -> Tensor:
        """Loss summed over the batch's targets: what is trained on."""

    @abstractmethod
    def evaluate(self, model: Model, hidden: Tensor, batch: Batch) -> Measures:
        """Loss without smoothing and weights, and the measures."""

    def sums(self) -> Mapping[str, int]:
        """How many numbers each of the sums has that `evaluate` returns."""
        return {}

    def conclude(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Figures of the sums over all batches and ranks; sums that nothing was added to are 0."""
        return {}

    def derive(self, loss: float, n_targets: float, n_bytes: int | None) -> dict[str, float]:
        """Figures that follow from the mean loss over a split of `n_bytes` bytes of text."""
        return {}


class Objective(ABC):
    """A task without its training loop, so that it runs in a notebook as well as under Lightning.

    `conf/task/*.yaml` names a subclass; the runner calls it with `family` (of the model), `tokenizer`, `labels`
    (class names, or None), `seq_len` (longest row in tokens) and `seed`.
    """

    kinds: ClassVar[tuple[str, ...]]
    """Kinds of data that it learns from, of `triform.data.sources.base.COLUMNS`."""
    families: ClassVar[tuple[str, ...]]
    """Families of model that it trains."""
    packs: ClassVar[tuple[str, ...]] = ()
    """Families for which several examples can stand in a row, each seeing only itself: those with `row_lengths`."""
    monitor: tuple[str, str] = ("loss", "min")
    """Measure that picks the best checkpoint, and which way it improves."""
    measures: tuple[str, ...] = ()
    """Names of the ratios that `evaluate` returns besides the loss."""
    derived: tuple[str, ...] = ()
    """Names of the figures that `derive` and `conclude` add."""
    written: tuple[str, ...] = ()
    """Names of the figures that `conclude` adds where `write` has been called."""
    criterion: Criterion
    extra_tokens: int = 0
    """Rows of the model's table beyond the tokenizer's vocabulary, for marks that only this task has."""

    @abstractmethod
    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        """Make a batch of examples. None at all gives one row of padding without a target."""

    def hidden(self, model: Model, batch: Batch) -> Tensor:
        """States from which the head predicts the labels: here those of all tokens of a single stack."""
        hidden: Tensor = model(**model_inputs(batch)).hidden
        return hidden

    def loss(self, model: Model, batch: Batch) -> Tensor:
        """See `Criterion`."""
        return self.criterion.loss(model, self.hidden(model, batch), batch)

    def evaluate(self, model: Model, batch: Batch) -> Measures:
        """See `Criterion`."""
        return self.criterion.evaluate(model, self.hidden(model, batch), batch)

    @abstractmethod
    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        """What the model makes of some examples, as text."""

    def sums(self) -> Mapping[str, int]:
        """How many numbers each of the sums has that `evaluate` and `write` return."""
        return self.criterion.sums()

    def writes(self, final: bool) -> bool:
        """Whether what the model writes is measured, which takes long: at the end of a run (`final`), or in each
        validation."""
        return False

    def write(self, model: Model, batch: Batch) -> Mapping[str, Tensor]:
        """Sums of what the model writes for a batch."""
        return {}

    def conclude(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Figures of the sums over all batches and ranks; sums that nothing was added to are 0."""
        return self.criterion.conclude(sums)

    def signatures(self) -> dict[str, str]:
        """How figures are computed that others compute otherwise, by the figure's name."""
        return {}

    def look(self, train: Split) -> None:  # noqa: B027
        """See the training split before training begins. Whoever uses the trained model does without."""

    def text_length(self) -> int | None:
        """Tokens of running text that fill a row of this task; None: `seq_len`."""
        return None

    def row_lengths(self, lengths: np.ndarray) -> np.ndarray:
        """Tokens of a row that examples of so many tokens, (examples, columns), become at most; see `packs`."""
        raise NotImplementedError

    def room(self) -> int | None:
        """Most tokens of a text that a batch holds beside the task's marks; None: running text is never cut."""
        return None

    def left_out(self, name: str, split: Split) -> list[str]:
        """What is to be said of a split's examples that are not read as they are: longer than `room`, or made of
        nothing that the tokenizer knows, as control characters are to some."""
        room = self.room()
        if room is None:
            return []
        lengths = split.lengths
        n_cut, n_empty = (int(found.any(axis=1).sum()) for found in (lengths > room, lengths == 0))
        cut = (
            f"{n_cut:,} of {len(lengths):,} {name} examples are longer than {room} tokens and are cut, by data.seq_len "
            f"(the longest has {int(lengths.max()):,})"
        )
        empty = f"{n_empty:,} of {len(lengths):,} {name} examples have a text without a token, which is read as empty"
        return [said for said, n in ((cut, n_cut), (empty, n_empty)) if n]

    def derive(self, loss: float, n_targets: float, n_bytes: int | None) -> dict[str, float]:
        """See `Criterion`."""
        return self.criterion.derive(loss, n_targets, n_bytes)

    def model_arguments(self) -> dict[str, Any]:
        """What the model must be built with for this task, such as another head."""
        return {}


def pad(rows: Sequence[Ids], value: int) -> Tensor:
    """Rows of token ids as one matrix, filled up on the right; no rows give one row of one `value`."""
    length = max((len(row) for row in rows), default=1) or 1
    matrix = np.full((len(rows) or 1, length), value)  # by numpy, which takes a row in a fifth of torch's time
    for i, row in enumerate(rows):
        matrix[i, : len(row)] = row
    return torch.from_numpy(matrix)


def padding_mask(rows: Sequence[Ids]) -> Tensor | None:
    """True where a token is real. None when every row is full, so that faster kernels apply."""
    lengths = np.array([len(row) for row in rows] or [0])
    longest = max(int(lengths.max()), 1)
    return None if (lengths == longest).all() else torch.from_numpy(np.arange(longest) < lengths[:, None])


def present(batch: Mapping[str, Any]) -> Batch:
    """The batch without its absent (None) entries."""
    return {key: value for key, value in batch.items() if value is not None}


def model_inputs(batch: Batch) -> dict[str, Tensor]:
    """What of a batch a single stack reads."""
    return {
        key: batch[key]
        for key in ("input_ids", "padding_mask", "position_ids", "document_ids", "prefix_length")
        if batch.get(key) is not None
    }
