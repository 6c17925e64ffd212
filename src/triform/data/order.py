"""The order of training examples: pure functions of (seed, epoch, step), so that there is no state to save.

A batch is what one optimizer step reads, on all devices together. `cut` deals it to ranks and micro-batches;
nothing before `cut` knows how many there are.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from triform.data.packing import best_fit

Rows = TypeVar("Rows", np.ndarray, Sequence[np.ndarray])

MOST_PADDING = 0.05
"""Share of padding from which on batches are `boxes`: those of a line are fuller, and have less where they are many."""
ROOM = 0.1
"""Padding that a batch of `boxes` is expected to have, over its tokens: half as many would be too large with less."""

MANY = 2**20
"""Examples from which on those of a batch are found by `shuffled`: shuffling 10 million takes 0.3 s."""
N_ROUNDS = 6
"""Of the cipher; four make it a random permutation to who can't ask for billions of its values (Luby, Rackoff 1988)."""

_Epoch = tuple[int, np.ndarray, np.ndarray]
"""An epoch, with what `Order._order_of` says of it."""


def epoch_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """The permutation of range(n) in which an epoch reads its examples."""
    numbers = np.arange(n, dtype=np.int32 if n < 2**31 else np.int64)  # of 100 million examples half a gigabyte less
    return np.random.default_rng([seed, epoch]).permutation(numbers)


def shuffled(places: np.ndarray, n: int, seed: int, epoch: int) -> np.ndarray:
    """What stands at some places of a permutation of range(n), without the rest of it: in no time, and no memory.

    A Feistel cipher with a key for (seed, epoch) permutes the numbers below a power of four; one that it takes out of
    the range is enciphered again until it is in it (Black and Rogaway 2002, section 4), at most four times on average.
    """
    half = ((n - 1).bit_length() + 1) // 2
    mask = np.uint64((1 << half) - 1)
    keys = np.random.default_rng([seed, epoch]).integers(2**63, size=N_ROUNDS, dtype=np.uint64)
    found = places.astype(np.uint64)
    outside = np.arange(len(found))
    while len(outside):
        left, right = found[outside] >> np.uint64(half), found[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        found[outside] = (left << np.uint64(half)) | right
        outside = outside[found[outside] >= n]
    return found.astype(np.int64)


def _mixed(x: np.ndarray) -> np.ndarray:
    """A hash of each number: SplitMix64's (Steele et al. 2014, figure 18)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


class Share(NamedTuple):
    """Which part of each step's rows a rank reads, see `cut`."""

    world: int
    rank: int
    accumulate: int


def cut(rows: Rows, world: int, accumulate: int, rank: int, micro: int) -> Rows:
    """What `rank` reads of a batch in its micro-batch `micro`; every row falls to exactly one pair of them.

    Dealt like cards, so that sizes differ by one at most and neighbours of a length-sorted batch spread
    evenly. May be empty when there are fewer rows than `world * accumulate`.
    """
    return rows[micro * world + rank :: world * accumulate]


def by_length(lengths: np.ndarray) -> np.ndarray:
    """Indices that sort examples by their first column (source), then the next; equal ones stay in place."""
    return np.lexsort(lengths.T[::-1])


def alike(lengths: np.ndarray, n_batches: int) -> np.ndarray:
    """Indices that put examples after each other whose neighbours are alike in both columns.

    Sorted by the first column into bands, about as many as each band has batches; within a band by the second one, up
    and down in turns, so that neighbours across a band's end are alike, too. Sorted by the first column alone, a batch
    of many examples has targets of every length: at 8192 tokens 8 % of Multi30k's batches are padding, not 6 %. The
    sorted lengths do not depend on the order that the examples come in.
    """
    first, rest = lengths[:, 0], lengths[:, 1:]
    n_bands = max(1, round(math.sqrt(n_batches)))
    band = np.searchsorted(np.sort(first), first) * n_bands // len(first)
    return np.lexsort((first, *np.where(band[:, None] % 2, -rest, rest).T[::-1], band))


def token_bounds(lengths: np.ndarray, batch_tokens: int) -> list[int]:
    """Where to cut examples, in their order, into batches of at most `batch_tokens` tokens, padding counted.

    Args:
        lengths: (examples, columns) in tokens. A batch pads each column (source, target) to its longest on
            its own.

    Returns:
        The first example of every batch but the first, as `np.split` takes them.
    """
    bounds: list[int] = []
    start, ahead = 0, 64
    while True:
        # A batch is about as long as the one before, so that little is looked at in vain.
        widest = np.maximum.accumulate(lengths[start : start + ahead], axis=0).sum(axis=1)
        too_many = widest * np.arange(1, len(widest) + 1) > batch_tokens
        too_many[:1] = False  # of one example
        n = int(too_many.argmax())
        if n == 0 and start + ahead < len(lengths):
            ahead *= 2
            continue
        if n == 0:
            return bounds
        start, ahead = start + n, 2 * n + 8
        bounds.append(start)


def padding(lengths: np.ndarray, bounds: Sequence[int]) -> float:
    """Share of what is read in such batches that is no token."""
    sizes = np.diff([0, *bounds, len(lengths)])
    widest = np.maximum.reduceat(lengths, [0, *bounds], axis=0).sum(axis=1)
    return 1 - float(lengths.sum() / (sizes * widest).sum())


def boxes(lengths: np.ndarray, batch_tokens: int) -> tuple[np.ndarray, list[int]]:
    """Batches of at most `batch_tokens` tokens, padding counted, with little of it, where they are few and large.

    All examples are cut in two, and each half again: by the column and at the place that leave the fewest tokens,
    padding counted, among places where as many tokens come before as whole batches hold. Of Multi30k's pairs in 117
    batches along a line 6 % are padding; in 126 boxes 3 %.

    Returns:
        Indices of the examples, batch by batch, and where to cut them.
    """
    found: list[np.ndarray] = []
    left = [np.arange(len(lengths))]
    while left:
        chosen = left.pop()
        if len(chosen) == 1 or _padded(lengths[chosen])[-1] <= batch_tokens:
            found.append(chosen)
            continue
        n_batches = max(2, math.ceil(lengths[chosen].sum() * (1 + ROOM) / batch_tokens))
        cuts = []
        for column in range(lengths.shape[1]):
            others = np.delete(lengths[chosen], column, axis=1)
            order = chosen[np.lexsort((*others.T[::-1], lengths[chosen, column]))]
            passed = np.cumsum(lengths[order].sum(axis=1))
            ends = np.searchsorted(passed, passed[-1] * np.arange(1, n_batches) / n_batches)
            ends = np.unique(np.clip(ends, 0, len(order) - 2))
            both = _padded(lengths[order])[ends] + _padded(lengths[order[::-1]])[::-1][ends + 1]
            cuts.append((int(both.min()), column, int(ends[both.argmin()]) + 1, order))
        _, _, end, order = min(cuts, key=lambda cut: cut[:2])
        left += [order[end:], order[:end]]
    return np.concatenate(found), np.cumsum([len(chosen) for chosen in found])[:-1].tolist()


def _padded(lengths: np.ndarray) -> np.ndarray:
    """Tokens of the first example, of the first two, ..., padding counted."""
    return np.maximum.accumulate(lengths, axis=0).sum(axis=1) * np.arange(1, len(lengths) + 1)


def held_out_batches(
    lengths: np.ndarray, batch_size: int | None, batch_tokens: int | None, parts: int
) -> list[np.ndarray]:
    """Every example once, like lengths together, in batches as large as the `parts` of a training batch."""
    order = by_length(lengths)
    if batch_size is not None:
        size = -(-batch_size // parts)
        return np.split(order, range(size, len(order), size))
    assert batch_tokens is not None
    order = alike(lengths, -(-int(lengths.sum()) * parts // batch_tokens))
    return np.split(order, token_bounds(lengths[order], batch_tokens // parts))


class Order:
    """Which examples each optimizer step reads, for any step without reading the ones before.

    With `batch_size` an epoch is one permutation, cut into batches; its last one may be short (of a million examples or
    more only a batch of it is ever computed, so that going on far into them is no work). With
    `batch_tokens` examples of like length are put together, equal ones in an order drawn anew each epoch, cut into
    batches of at most that many tokens (padding counted, special tokens that a task adds not counted), and
    the batches shuffled: little padding, and as many steps in each epoch.

    Where examples are packed, several of them are in a row, by `best_fit`; those of equal length change places in each
    epoch, and the rows are shuffled. All but the last batch of an epoch have equally many rows.

    Args:
        lengths: tokens of each example, (examples, columns).
        batch_size: examples, or rows if they are packed, per optimizer step over all devices; exactly one of this and
            `batch_tokens` is set.
        batch_tokens: tokens per optimizer step over all devices, padding counted.
        seed: of the order.
        row_lengths: tokens that each example takes of a row; None: examples are not packed.
        row_length: tokens of a row of packed examples.

    Raises:
        ValueError: both or neither batch limit, a limit below 1, or an example or row longer than `batch_tokens`.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int | None,
        batch_tokens: int | None,
        seed: int,
        row_lengths: np.ndarray | None = None,
        row_length: int = 0,
    ) -> None:
        self.lengths, self.row_lengths = lengths.astype(np.int64, copy=False), row_lengths
        self.batch_size, self.batch_tokens, self.seed = batch_size, batch_tokens, seed
        if (batch_size is None) == (batch_tokens is None):
            raise ValueError(
                f"Order: batch_size={batch_size} and batch_tokens={batch_tokens}; set one of data.batch_size "
                "and data.batch_tokens and leave the other null"
            )
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"Order: batch_size={batch_size} reads nothing; set data.batch_size to 1 or more")
        if row_lengths is not None:
            self._pack(row_lengths, row_length)
            return
        if batch_size is not None:
            self._bounds: Sequence[int] = range(batch_size, len(lengths), batch_size)
        else:
            assert batch_tokens is not None
            longest = int(self.lengths.sum(axis=1).max())
            if batch_tokens < longest:
                raise ValueError(
                    f"Order: batch_tokens={batch_tokens} is less than the longest example, {longest} tokens; "
                    f"raise data.batch_tokens to {longest} or more, or lower data.seq_len"
                )
            # Of places in the order of length, which are the same in every epoch: only the examples change places.
            in_order = self.lengths[by_length(self.lengths)]
            self._members = alike(in_order, -(-int(in_order.sum()) // batch_tokens))
            self._bounds = token_bounds(in_order[self._members], batch_tokens)
            if padding(in_order[self._members], self._bounds) > MOST_PADDING:
                self._members, self._bounds = boxes(in_order, batch_tokens)
        self.steps_per_epoch = len(self._bounds) + 1
        self._memory: _Epoch = (-1, np.empty(0), np.empty(0))

    def _pack(self, row_lengths: np.ndarray, row_length: int) -> None:
        rows = self.batch_size
        if self.batch_tokens is not None:
            rows = self.batch_tokens // row_length
            if rows < 1:
                raise ValueError(
                    f"Order: batch_tokens={self.batch_tokens} is less than a packed row, {row_length} tokens; raise "
                    f"data.batch_tokens to {row_length} or more, or lower data.seq_len"
                )
        assert rows is not None
        # Of places in the order of length, which are the same in every epoch: only the examples change places.
        self._members, self._row_ends = best_fit(np.sort(row_lengths), row_length)
        self._row_starts = np.append(0, self._row_ends)
        self._bounds = range(rows, len(self._row_ends), rows)
        self.steps_per_epoch = len(self._bounds) + 1
        self._memory = (-1, np.empty(0), np.empty(0))
        self._sorted: tuple[int, np.ndarray] = (-1, row_lengths)

    is_exact = True
    """Whether the steps and tokens below are counted."""

    def described(self) -> str:
        """How much an epoch reads."""
        return f"{len(self.lengths):,} training examples, {self.steps_per_epoch:,} steps an epoch"

    @property
    def n_rows(self) -> int:
        """Rows that an epoch reads."""
        return len(self.lengths) if self.row_lengths is None else len(self._row_ends)

    def batch(self, step: int) -> tuple[int, np.ndarray]:
        """The epoch that optimizer step `step` (from 0) is in, and the examples it reads."""
        epoch, rows = self.rows(step)
        return epoch, rows if isinstance(rows, np.ndarray) else np.concatenate(rows)

    def rows(self, step: int) -> tuple[int, np.ndarray | list[np.ndarray]]:
        """The same, where examples are packed row by row."""
        epoch, place = divmod(step, self.steps_per_epoch)
        batch = self._batch(epoch, place)
        if self.row_lengths is None:
            return epoch, batch
        in_order = self._in_order(epoch)
        starts, ends = self._row_starts[batch].tolist(), self._row_ends[batch].tolist()
        return epoch, [in_order[self._members[start:end]] for start, end in zip(starts, ends, strict=True)]

    def steps_for(self, epochs: float) -> int:
        """Optimizer steps that read everything `epochs` times; a part of a step counts as one."""
        return int(np.ceil(epochs * self.steps_per_epoch))

    def steps_for_tokens(self, n_tokens: int) -> int:
        """The fewest optimizer steps that read at least `n_tokens` tokens, padding not counted."""
        epochs, rest = divmod(n_tokens, int(self.lengths.sum()))
        if rest == 0:
            return epochs * self.steps_per_epoch
        read = np.cumsum(self._tokens(epochs, self.steps_per_epoch))
        return epochs * self.steps_per_epoch + int(np.searchsorted(read, rest)) + 1

    def tokens_in(self, n_steps: int) -> int:
        """Tokens that the first `n_steps` optimizer steps read, padding not counted."""
        epochs, rest = divmod(n_steps, self.steps_per_epoch)
        return epochs * int(self.lengths.sum()) + int(self._tokens(epochs, rest).sum())

    def _tokens(self, epoch: int, n_steps: int) -> np.ndarray:
        """Of each of the first steps of an epoch."""
        if not self._found_alone:
            first = epoch * self.steps_per_epoch
            return np.array([self.lengths[self.batch(first + i)[1]].sum() for i in range(n_steps)], dtype=np.int64)
        assert self.batch_size is not None
        n = min(n_steps * self.batch_size, len(self.lengths))
        read = np.zeros(n_steps, dtype=np.int64)
        for start in range(0, n, MANY):  # batch by batch it takes a minute, all at once a gigabyte
            places = np.arange(start, min(start + MANY, n))
            sizes = self.lengths[shuffled(places, len(self.lengths), self.seed, epoch)].sum(axis=1)
            np.add.at(read, places // self.batch_size, sizes)
        return read

    @property
    def _found_alone(self) -> bool:
        """Whether a batch is found without the rest of its epoch."""
        return self.row_lengths is None and self.batch_size is not None and len(self.lengths) >= MANY

    def _batch(self, epoch: int, place: int) -> np.ndarray:
        """The examples of a batch, or its rows if examples are packed."""
        if self._found_alone:
            assert self.batch_size is not None
            start = place * self.batch_size
            places = np.arange(start, min(start + self.batch_size, len(self.lengths)))
            return shuffled(places, len(self.lengths), self.seed, epoch)
        if self._memory[0] != epoch:
            self._memory = (epoch, *self._order_of(epoch))
        _, order, places = self._memory
        number = int(places[place]) if len(places) else place
        start = self._bounds[number - 1] if number > 0 else 0
        return order[start : self._bounds[number] if number < len(self._bounds) else len(order)]

    def _in_order(self, epoch: int) -> np.ndarray:
        """Examples by the length that they take of a row, equal ones in this epoch's order."""
        if self._sorted[0] != epoch:
            assert self.row_lengths is not None
            order = epoch_order(len(self.lengths), self.seed, epoch)
            self._sorted = (epoch, order[np.argsort(self.row_lengths[order], kind="stable")])
        return self._sorted[1]

    def _order_of(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The examples, or rows of them, in an order that is cut at the bounds, and which batch is read when; none at
        all: they are read in this order."""
        in_turn = np.empty(0, dtype=np.int64)
        if self.row_lengths is not None:
            return np.random.default_rng([self.seed, epoch, 1]).permutation(len(self._row_ends)), in_turn
        order = epoch_order(len(self.lengths), self.seed, epoch)
        if self.batch_size is not None:
            return order, in_turn
        order = order[by_length(self.lengths[order])][self._members]
        return order, np.random.default_rng([self.seed, epoch, 1]).permutation(self.steps_per_epoch)
