"""What loaders and their workers read, a pure function of a number. Imports no Lightning: a worker starts sooner."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from triform.data.mixture import Part, Places
from triform.data.order import Order, cut
from triform.data.packing import Join
from triform.data.prepare import Split
from triform.data.rows import Documents, TextRows, training_rows

HELD_OUT_EPOCH = -1
"""In the keys of held-out examples: their noise is the same in all runs, whatever the seed, so that runs compare."""

Collate = Callable[[list[dict[str, Any]], list[tuple[int, int]]], dict[str, Any]]
"""Examples, and for each its (epoch, index), to a batch."""


class Examples:
    """A split as numbered examples: rows of running text, or its documents (`whole`), or the split's own."""

    def __init__(self, split: Split | Part, seq_len: int, seed: int, train: bool, whole: bool = False) -> None:
        self.split, self.seq_len, self.seed, self.train, self.whole = split, seq_len, seed, train, whole
        self.epoch = -1
        self.rows: Split | Part | TextRows | Documents = split

    def of_epoch(self, epoch: int) -> Split | Part | TextRows | Documents:
        if self.split.kind == "text" and epoch != self.epoch:
            if self.whole:
                self.rows = self.rows if isinstance(self.rows, Documents) else Documents(self.split, self.seq_len)
            elif self.train:
                self.rows = training_rows(self.split, self.seq_len, self.seed, epoch)
            else:
                self.rows = TextRows(self.split, self.seq_len, offset=0)
        self.epoch = epoch
        return self.rows

    def read(self, epoch: int, i: int) -> tuple[dict[str, Any], tuple[int, int]]:
        """Example i as an epoch reads it, and its key."""
        return self.of_epoch(epoch)[i], (epoch, i)

    def held_out(self, i: int) -> dict[str, Any]:
        """Example i; of pairs with `texts`, what it was before it was tokenised, to compare written text with."""
        example = self.of_epoch(0)[i]
        return example | {"texts": self.split.texts(i)} if self.split.kind == "pairs" else example

    @property
    def lengths(self) -> np.ndarray:
        """Tokens, or patches of images, read of each example: what a row longer than `seq_len` has beyond it is not."""
        if self.whole and self.split.kind == "text":
            documents = self.of_epoch(0)
            assert isinstance(documents, Documents)
            return documents.lengths[:, None]
        if self.split.kind in ("text", "images"):
            return np.broadcast_to(np.int64(self.seq_len), (len(self.of_epoch(0)), 1))
        return np.minimum(self.split.lengths, self.seq_len)


class Mixed:
    """Several sources as numbered examples, which change from epoch to epoch; see `Places`.

    Args:
        shares: of each part in an epoch.
    """

    def __init__(self, parts: Sequence[Part], shares: np.ndarray, seq_len: int, seed: int, whole: bool) -> None:
        self.parts = [Examples(part, seq_len, seed, train=True, whole=whole) for part in parts]
        self.places = Places([part.lengths for part in self.parts], shares, seed)

    @property
    def lengths(self) -> np.ndarray:
        return self.places.lengths

    def read(self, epoch: int, i: int) -> tuple[dict[str, Any], tuple[int, int]]:
        source, example, reading = self.places.find(epoch, i)
        return self.parts[source].of_epoch(reading)[example], (reading, int(self.places.offsets[source]) + example)

    def held_out(self, i: int) -> dict[str, Any]:
        """What stands there in the first epoch."""
        source, example, _ = self.places.find(0, i)
        return self.parts[source].held_out(example)


class MicroBatches(Dataset):
    """Item k is micro-batch k % accumulate of optimizer step k // accumulate, as this rank reads it."""

    def __init__(
        self,
        examples: Examples | Mixed,
        order: Order,
        collate: Collate,
        world: int,
        rank: int,
        accumulate: int,
        overfit: bool,
        join: Join | None = None,
    ) -> None:
        self.examples, self.order, self.collate, self.join = examples, order, collate, join
        self.world, self.rank, self.accumulate, self.overfit = world, rank, accumulate, overfit

    def __getitem__(self, k: int) -> dict[str, Any]:
        step, micro = divmod(k, self.accumulate)
        epoch, batch = self.order.rows(0 if self.overfit else step)
        place = (self.world, self.accumulate, self.rank, micro)
        if isinstance(batch, np.ndarray):
            return self._collated(epoch, cut(batch, *place))
        rows = cut(batch, *place)
        if not rows:
            return self.collate([], [])
        assert self.join is not None
        return self.join([self._collated(epoch, row) for row in rows])

    def _collated(self, epoch: int, indices: np.ndarray) -> dict[str, Any]:
        read = [self.examples.read(epoch, i) for i in indices.tolist()]
        return self.collate([example for example, _ in read], [key for _, key in read])


class HeldOut(Dataset):
    """The batches of a split that one rank reads."""

    def __init__(self, examples: Examples | Mixed, batches: list[np.ndarray], collate: Collate) -> None:
        self.examples, self.batches, self.collate = examples, batches, collate

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, k: int) -> dict[str, Any]:
        indices = self.batches[k].tolist()
        return self.collate([self.examples.held_out(i) for i in indices], [(HELD_OUT_EPOCH, i) for i in indices])


class From(Sampler[int]):
    """From `start` to `stop`, but as long as from 0: Lightning adds what it read before it resumed."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))

    def __len__(self) -> int:
        return self.stop


def data_loader(dataset: Dataset, sampler: Sampler[int] | None, num_workers: int) -> DataLoader:
    """A loader of a data set whose items are batches."""
    workers: dict[str, Any] = {}
    if num_workers > 0:  # forked workers hang after OpenMP has run and copy CUDA's state
        workers = {
            "multiprocessing_context": "forkserver",
            "persistent_workers": True,
            "worker_init_fn": follow_parent,
        }
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=sampler,
        collate_fn=as_it_is,
        num_workers=num_workers,
        pin_memory=torch.cuda.is_available(),
        **workers,
    )


def as_it_is(batch: Any) -> Any:
    return batch


def follow_parent(worker: int) -> None:
    """End this loader worker when the process that reads from it ends, however that happens.

    PyTorch's own watch looks at the parent by the system's account, which under a forkserver is the server.
    """
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()


def _end_with(parent: BaseProcess | None) -> None:
    if parent is not None:
        parent.join()
        os._exit(1)
