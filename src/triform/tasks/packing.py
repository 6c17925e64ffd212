"""Rows of several examples, each of which sees only itself."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from triform.data.packing import Packing
from triform.tasks.objective import IGNORED, Batch, Objective, pad, padding_mask, present


def packing(objective: Objective, length: int) -> Packing:
    """How a task's examples are put together in rows of `length` tokens.

    In a row neither attention nor labels cross from one example to the next, and positions begin anew, so that the
    loss and its gradient are those of the examples in rows of their own.
    """
    padding = int(objective.collate([], [])["input_ids"][0, 0])
    return Packing(length, objective.row_lengths, partial(joined, pad_id=padding))


def joined(batches: Sequence[Batch], pad_id: int) -> Batch:
    """One batch with a row for each of `batches`: their rows after each other, without the padding between them."""
    rows = [_Row(batch) for batch in batches]
    tokens = [row.after_each_other("input_ids") for row in rows]
    return present(
        {
            "input_ids": pad(tokens, pad_id),
            "padding_mask": padding_mask(tokens),
            "labels": pad([row.after_each_other("labels") for row in rows], IGNORED),
            "document_ids": pad([row.numbers() for row in rows], 0),
            "position_ids": pad([row.positions() for row in rows], 0),
            "prefix_length": pad([row.prefix_ends() for row in rows], 0) if "prefix_length" in batches[0] else None,
            "n_tokens": sum(batch["n_tokens"] for batch in batches),
            "n_targets": sum(batch["n_targets"] for batch in batches),
        }
    )


class _Row:
    """What becomes one row: a batch that is padded on the right."""

    def __init__(self, batch: Batch) -> None:
        self.batch, shape = batch, batch["input_ids"].shape
        mask = batch.get("padding_mask")
        self.lengths = np.full(shape[0], shape[1]) if mask is None else mask.sum(-1).numpy()
        self.starts = np.cumsum(self.lengths) - self.lengths

    def after_each_other(self, name: str) -> np.ndarray:
        rows = zip(self.batch[name].numpy(), self.lengths.tolist(), strict=True)
        return np.concatenate([row[:length] for row, length in rows])

    def numbers(self) -> np.ndarray:
        """Each token's example, from 1."""
        return np.repeat(np.arange(1, len(self.lengths) + 1), self.lengths)

    def positions(self) -> np.ndarray:
        """Each token's place in its example."""
        return np.arange(self.lengths.sum()) - np.repeat(self.starts, self.lengths)

    def prefix_ends(self) -> np.ndarray:
        """For each token, where in the row the prefix of its example ends."""
        return np.repeat(self.starts + self.batch["prefix_length"].numpy(), self.lengths)
