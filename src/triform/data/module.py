"""Batches for Lightning: one stream of micro-batches from the first optimizer step to the last."""

from collections.abc import Iterable, Mapping
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from triform.data.corpus import Corpus
from triform.data.mixture import Part, parts_of, shares
from triform.data.order import Order, Share, cut, held_out_batches
from triform.data.packing import Packing
from triform.data.prepare import Prepared, Split
from triform.data.stream import Collate, Examples, From, HeldOut, MicroBatches, Mixed, data_loader
from triform.data.streaming import Streaming


class DataModule(pl.LightningDataModule):
    """Loaders over prepared data.

    The training loader is one stream over the whole run: micro-batches of the optimizer steps from
    `trainer.global_step` to `total_steps`. Each is a function of the seed and its number, so that
    neither a resumed run, nor the number of workers, nor validation changes what is read; devices and
    accumulation only cut a step's batch (`triform.data.order.cut`). The Trainer must have
    `use_distributed_sampler=False`.

    Held-out loaders give each example to exactly one rank, once; ragged ones in order of length. The epoch in
    their keys is -1: their noise is the same for all runs.

    Args:
        collate: (examples, keys) to a batch, where keys are (epoch, index) by example, from which its noise
            is drawn; must take an empty list, and pickle if there are workers.
        seq_len: tokens per row of running text; tokens of any other example that are counted.
        batch_size: examples, or rows if they are packed, per optimizer step, over all devices and micro-batches; this
            or `batch_tokens`, not both.
        batch_tokens: tokens per optimizer step, padding counted, over all devices and micro-batches.
        num_workers: loader processes per device; 0: batches are made between steps.
        seed: of order and row offsets.
        accumulate: micro-batches per optimizer step.
        overfit: read the first batch in every optimizer step.
        packing: puts several training examples, of running text whole documents, in a row; None: each has a row of its
            own, running text is cut anywhere.
        weights: of the sources of a mixture, by name, see `shares`.
        corpus: what is learned from instead of the split "train", read while training; without `overfit` and `weights`.

    Raises:
        ValueError: text shorter than a row, or what `Order` refuses.

    Attributes:
        total_steps: optimizer steps of the run, from its first; set it before fitting.
        training: what is read.
        order: how long that is (`order.steps_per_epoch`, `order.steps_for`).
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
        packing: Packing | None = None,
        weights: Mapping[str, float] | None = None,
        corpus: Corpus | None = None,
    ) -> None:
        super().__init__()
        self.prepared, self.collate, self.seq_len = prepared, collate, seq_len
        self.batch_size, self.batch_tokens = batch_size, batch_tokens
        self.num_workers, self.seed, self.accumulate, self.overfit = num_workers, seed, accumulate, overfit
        self.packing, self.weights = packing, weights
        if packing is None:
            check_text_length(prepared, seq_len)
        self.training: Numbered | Streaming
        if corpus is None:
            self.training = Numbered(
                prepared, collate, seq_len, batch_size, batch_tokens, seed, packing, weights, overfit
            )
        else:
            self.training = Streaming(corpus, prepared, collate, seq_len, batch_size, batch_tokens, seed, packing)
        self.order = self.training.order

    def train_dataloader(self) -> Iterable[dict[str, Any]]:
        world, rank = self._place()
        start = self.trainer.global_step if self.trainer is not None else 0
        share = Share(world, rank, self.accumulate)
        return self.training.loader(share, start, self.total_steps, self.num_workers)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        if device.type == "cpu":  # where it was made: looking through it takes as long as a small layer
            return batch
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.trainer is None else self.training.state(self.trainer.global_step)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.training.restore(state_dict)

    def val_dataloader(self) -> DataLoader:
        return self.loader("validation")

    def test_dataloader(self) -> DataLoader:
        return self.loader("test")

    def loader(self, split: str) -> DataLoader:
        """Every example of a split once, over all ranks, in batches of the size of a training micro-batch.

        With `overfit` the one batch that is trained on instead, so that figures say whether it has been learnt.

        Raises:
            ValueError: there is no such split.
        """
        if split not in self.prepared.splits:
            raise ValueError(
                f"DataModule: there is no split {split!r}, only {', '.join(self.prepared.splits)}; "
                f"give data.{split}_files or name one of these"
            )
        world, rank = self._place()
        if self.overfit:
            assert isinstance(self.training, Numbered)
            batches = [cut(self.training.order.batch(0)[1], world, 1, rank, 0)]
            return self._loader(HeldOut(self.training.learnt, batches, self.collate), From(0, 1))
        examples = Examples(self.prepared.splits[split], self.seq_len, self.seed, train=False)
        parts = world * self.accumulate
        batches = held_out_batches(examples.lengths, self.batch_size, self.batch_tokens, parts)
        # A rank with one batch less gets an empty one, lest it miss what all ranks do together in each.
        batches += [np.empty(0, dtype=np.int64)] * (-len(batches) % world)
        dataset = HeldOut(examples, batches[rank::world], self.collate)
        return self._loader(dataset, From(0, len(dataset)))

    def read_in(self, step: int) -> tuple[int, list[int]]:
        """The epoch, and the numbers of the training examples that this rank reads in an optimizer step, from 0.

        Raises:
            NotImplementedError: they have no numbers, as where text is streamed.
        """
        if not isinstance(self.order, Order):
            raise NotImplementedError
        world, rank = self._place()
        epoch, rows = self.order.rows(0 if self.overfit else step)
        parts = [cut(list(rows), world, self.accumulate, rank, micro) for micro in range(self.accumulate)]
        return epoch, [int(number) for part in parts for row in part for number in np.atleast_1d(row)]

    def _loader(self, dataset: Dataset, sampler: Sampler[int]) -> DataLoader:
        return data_loader(dataset, sampler, self.num_workers)

    def _place(self) -> tuple[int, int]:
        """Of this process among those that read different rows; some ranks of tensor parallelism read the same."""
        place = None if self.trainer is None else self.trainer.distributed_sampler_kwargs
        return (1, 0) if place is None else (place["num_replicas"], place["rank"])


class Numbered:
    """Training examples that are known by number, and so are read in any order; beside `Streaming`.

    Attributes:
        learnt: the examples.
        order: of them.
    """

    def __init__(
        self,
        prepared: Prepared,
        collate: Collate,
        seq_len: int,
        batch_size: int | None,
        batch_tokens: int | None,
        seed: int,
        packing: Packing | None,
        weights: Mapping[str, float] | None,
        overfit: bool,
    ) -> None:
        self.collate, self.overfit, self.packing = collate, overfit, packing
        self.learnt = training_examples(prepared, seq_len, seed, packing, weights)
        self.order = training_order(self.learnt, batch_size, batch_tokens, seed, packing)

    def loader(self, share: Share, start: int, n_steps: int, num_workers: int) -> DataLoader:
        """A rank's micro-batches of the optimizer steps from `start` to `n_steps`."""
        join = None if self.packing is None else self.packing.join
        stream = MicroBatches(self.learnt, self.order, self.collate, *share, self.overfit, join)
        return data_loader(stream, From(start * share.accumulate, n_steps * share.accumulate), num_workers)

    def state(self, step: int) -> dict[str, Any]:
        """Nothing: where a step reads follows from its number."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


def training_examples(
    prepared: Prepared,
    seq_len: int,
    seed: int,
    packing: Packing | None,
    weights: Mapping[str, float] | None,
) -> Examples | Mixed:
    """What a run learns from; see `DataModule`."""
    split, whole = prepared.splits["train"], packing is not None
    if prepared.parts is None or prepared.sizes is None:
        return Examples(split, seq_len, seed, train=True, whole=whole)
    sizes = prepared.sizes["train"]
    if 0 in sizes:
        name = prepared.parts[sizes.index(0)]
        raise ValueError(f"DataModule: there is nothing to learn of data.sources.{name}; leave it out, or add examples")
    parts = parts_of(split, sizes)
    counts = [len(Examples(part, seq_len, seed, train=True, whole=whole).lengths) for part in parts]
    return Mixed(parts, shares(weights, prepared.parts, counts), seq_len, seed, whole)


def training_order(
    examples: Examples | Mixed, batch_size: int | None, batch_tokens: int | None, seed: int, packing: Packing | None
) -> Order:
    """The order in which a run reads its training examples; refuses what `Order` refuses."""
    lengths = examples.lengths
    if packing is None:
        return Order(lengths, batch_size, batch_tokens, seed)
    return Order(lengths, batch_size, batch_tokens, seed, packing.row_lengths(lengths), packing.length)


def check_text_length(prepared: Prepared, seq_len: int) -> None:
    """Raises ValueError: text too short for one training row, or held-out text with nothing to predict."""
    if prepared.kind != "text":
        return
    texts: list[tuple[str, Split | Part, str]] = [
        (name, split, f"the split {name}") for name, split in prepared.splits.items()
    ]
    if prepared.parts is not None and prepared.sizes is not None:
        found = zip(
            prepared.parts,
            prepared.sizes["train"],
            parts_of(prepared.splits["train"], prepared.sizes["train"]),
            strict=True,
        )
        texts += [("train", part, f"data.sources.{source} in the split train") for source, size, part in found if size]
    for name, split, place in texts:
        least = seq_len + 1 if name == "train" else 2
        if len(split.tokens) < least:
            raise ValueError(
                f"DataModule: the text of {place} has {len(split.tokens)} tokens, fewer than the "
                f"{least} of one row of data.seq_len={seq_len} and its last target; "
                f"add to data.{name}_files or lower data.seq_len"
            )
