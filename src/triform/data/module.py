"""Batches for Lightning: one stream of micro-batches from the first optimizer step to the last."""

from collections.abc import Callable, Iterator
from typing import Any

import lightning.pytorch as pl
import numpy as np
from torch.utils.data import DataLoader, Dataset, Sampler

from triform.data.order import Order, cut, held_out_batches
from triform.data.prepare import Prepared, Split
from triform.data.rows import TextRows, training_rows

LOADER = ("seq_len", "batch_size", "batch_tokens", "num_workers")
"""Keys of `data` in the configuration that are the loaders', not the source's."""

Collate = Callable[[list[dict[str, Any]], list[tuple[int, int]]], dict[str, Any]]


class _Examples:
    """A split as numbered examples: rows of running text, or the split's own."""

    def __init__(self, split: Split, seq_len: int, seed: int, train: bool) -> None:
        self.split, self.seq_len, self.seed, self.train = split, seq_len, seed, train
        self.epoch = -1
        self.rows: Split | TextRows = split

    def of_epoch(self, epoch: int) -> Split | TextRows:
        if self.split.kind == "text" and epoch != self.epoch:
            if self.train:
                self.rows = training_rows(self.split, self.seq_len, self.seed, epoch)
            else:
                self.rows = TextRows(self.split, self.seq_len, offset=0)
        self.epoch = epoch
        return self.rows

    @property
    def lengths(self) -> np.ndarray:
        """Tokens read of each example: what a row longer than `seq_len` has beyond it is not."""
        if self.split.kind == "text":
            return np.full((len(self.of_epoch(0)), 1), self.seq_len)
        return np.minimum(self.split.lengths, self.seq_len)


class _MicroBatches(Dataset):
    """Item k is micro-batch k % accumulate of optimizer step k // accumulate, as this rank reads it."""

    def __init__(
        self,
        examples: _Examples,
        order: Order,
        collate: Collate,
        world: int,
        rank: int,
        accumulate: int,
        overfit: bool,
    ) -> None:
        self.examples, self.order, self.collate = examples, order, collate
        self.world, self.rank, self.accumulate, self.overfit = world, rank, accumulate, overfit

    def __getitem__(self, k: int) -> dict[str, Any]:
        step, micro = divmod(k, self.accumulate)
        epoch, batch = self.order.batch(0 if self.overfit else step)
        indices = cut(batch, self.world, self.accumulate, self.rank, micro).tolist()
        rows = self.examples.of_epoch(epoch)
        return self.collate([rows[i] for i in indices], [(epoch, i) for i in indices])


class _HeldOut(Dataset):
    """The batches of a split that one rank reads."""

    def __init__(self, examples: _Examples, batches: list[np.ndarray], collate: Collate) -> None:
        self.examples, self.batches, self.collate = examples, batches, collate

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, k: int) -> dict[str, Any]:
        indices = self.batches[k].tolist()
        rows = self.examples.of_epoch(0)
        return self.collate([rows[i] for i in indices], [(0, i) for i in indices])


class _From(Sampler[int]):
    """From `start` to `stop`, but as long as from 0: Lightning adds what it read before it resumed."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))

    def __len__(self) -> int:
        return self.stop


def _as_it_is(batch: Any) -> Any:
    return batch


class DataModule(pl.LightningDataModule):
    """Loaders over prepared data.

    The training loader is one stream over the whole run: micro-batches of the optimizer steps from
    `trainer.global_step` to `total_steps`. Each is a pure function of the seed and its number, so that
    neither a resumed run, nor the number of workers, nor validation changes what is read; devices and
    accumulation only cut a step's batch (`triform.data.order.cut`). The Trainer must have
    `use_distributed_sampler=False`.

    Held-out loaders give each example to exactly one rank, once; ragged ones in order of length. The epoch in
    their keys is always 0.

    Args:
        collate: (examples, keys) to a batch, where keys are (epoch, index) by example, from which its noise
            is drawn; must take an empty list, and pickle if there are workers.
        seq_len: tokens per row of running text; tokens of any other example that are counted.
        batch_size: examples per optimizer step, over all devices and micro-batches; this or `batch_tokens`,
            not both.
        batch_tokens: tokens per optimizer step, padding counted, over all devices and micro-batches.
        num_workers: loader processes per device; 0: batches are made between steps.
        seed: of order and row offsets.
        accumulate: micro-batches per optimizer step.
        overfit: read the first batch in every optimizer step.

    Raises:
        ValueError: text shorter than a row, or what `Order` refuses.

    Attributes:
        total_steps: optimizer steps of the run, from its first; set it before fitting.
        order: of the training examples (`order.steps_per_epoch`, `order.steps_for`).
    """

    total_steps: int

    def __init__(
        self,
        prepared: Prepared,
        collate: Collate,
        seq_len: int,
        batch_size: int | None,
        batch_tokens: int | None,
        num_workers: int,
        seed: int,
        accumulate: int,
        overfit: bool = False,
    ) -> None:
        super().__init__()
        self.prepared, self.collate, self.seq_len = prepared, collate, seq_len
        self.batch_size, self.batch_tokens = batch_size, batch_tokens
        self.num_workers, self.seed, self.accumulate, self.overfit = num_workers, seed, accumulate, overfit
        check_text_length(prepared, seq_len)
        self.order = training_order(prepared, seq_len, batch_size, batch_tokens, seed)

    def train_dataloader(self) -> DataLoader:
        world, rank = self._place()
        examples = _Examples(self.prepared.splits["train"], self.seq_len, self.seed, train=True)
        stream = _MicroBatches(examples, self.order, self.collate, world, rank, self.accumulate, self.overfit)
        start = self.trainer.global_step if self.trainer is not None else 0
        return self._loader(stream, _From(start * self.accumulate, self.total_steps * self.accumulate))

    def val_dataloader(self) -> DataLoader:
        return self.loader("validation")

    def test_dataloader(self) -> DataLoader:
        return self.loader("test")

    def loader(self, split: str) -> DataLoader:
        """Every example of a split once, over all ranks, in batches of the size of a training micro-batch.

        Raises:
            ValueError: there is no such split.
        """
        if split not in self.prepared.splits:
            raise ValueError(
                f"DataModule: there is no split {split!r}, only {', '.join(self.prepared.splits)}; "
                f"give data.{split}_files or name one of these"
            )
        world, rank = self._place()
        examples = _Examples(self.prepared.splits[split], self.seq_len, self.seed, train=False)
        parts = world * self.accumulate
        batches = held_out_batches(examples.lengths, self.batch_size, self.batch_tokens, parts)[rank::world]
        # A rank without a batch gets an empty one, lest it miss what all ranks do together.
        dataset = _HeldOut(examples, batches or [np.empty(0, dtype=np.int64)], self.collate)
        return self._loader(dataset, _From(0, len(dataset)))

    def _loader(self, dataset: Dataset, sampler: Sampler[int]) -> DataLoader:
        workers: dict[str, Any] = {}
        if self.num_workers > 0:  # forked workers hang after OpenMP has run and copy CUDA's state
            workers = {"multiprocessing_context": "forkserver", "persistent_workers": True}
        return DataLoader(
            dataset,
            batch_size=None,
            sampler=sampler,
            collate_fn=_as_it_is,
            num_workers=self.num_workers,
            **workers,
        )

    def _place(self) -> tuple[int, int]:
        if self.trainer is None:
            return 1, 0
        return self.trainer.world_size, self.trainer.global_rank


def training_order(
    prepared: Prepared, seq_len: int, batch_size: int | None, batch_tokens: int | None, seed: int
) -> Order:
    """The order in which a run reads its training examples; refuses what `Order` refuses."""
    examples = _Examples(prepared.splits["train"], seq_len, seed, train=True)
    return Order(examples.lengths, batch_size, batch_tokens, seed)


def check_text_length(prepared: Prepared, seq_len: int) -> None:
    """Raises ValueError: text too short for one training row, or held-out text with nothing to predict."""
    if prepared.kind != "text":
        return
    for name, split in prepared.splits.items():
        least = seq_len + 1 if name == "train" else 2
        if len(split.tokens) < least:
            raise ValueError(
                f"DataModule: the text of the split {name} has {len(split.tokens)} tokens, fewer than the "
                f"{least} of one row of data.seq_len={seq_len} and its last target; "
                f"add to data.{name}_files or lower data.seq_len"
            )
