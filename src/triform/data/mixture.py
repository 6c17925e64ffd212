"""Sources that are read as often as their weights say."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from triform.data.order import by_length
from triform.data.prepare import Split


class Part:
    """Those examples of a split that are of one source, like a split."""

    def __init__(self, split: Split, start: int, end: int) -> None:
        self.split, self.start, self.end = split, start, end
        self.kind = split.kind

    def __len__(self) -> int:
        return self.end - self.start

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self.split[self.start + i]

    def texts(self, i: int) -> dict[str, str]:
        return self.split.texts(self.start + i)

    @property
    def lengths(self) -> np.ndarray:
        return self.split.lengths[self.start : self.end]

    @property
    def tokens(self) -> np.ndarray:
        first = int(self.split.document_ends[self.start - 1]) if self.start > 0 else 0
        return self.split.tokens[first : int(self.split.document_ends[self.end - 1])]

    @property
    def document_ends(self) -> np.ndarray:
        first = int(self.split.document_ends[self.start - 1]) if self.start > 0 else 0
        return self.split.document_ends[self.start : self.end] - first


def parts_of(split: Split, sizes: Sequence[int]) -> list[Part]:
    ends = np.cumsum(sizes).tolist()
    return [Part(split, end - size, end) for end, size in zip(ends, sizes, strict=True)]


def shares(weights: Mapping[str, float] | None, names: Sequence[str], counts: Sequence[int]) -> np.ndarray:
    """Each source's share of the examples of an epoch.

    Args:
        weights: by name; None or none at all: each source is read once in an epoch.

    Raises:
        ValueError: a weight is missing or not above 0, or there is no such source.
    """
    if not weights:
        return np.array(counts) / sum(counts)
    for name in [*weights, *names]:
        if name not in names:
            raise ValueError(
                f"Mixture: weights has {name!r}, but the sources are {', '.join(names)}; set data.weights for those"
            )
        if name not in weights or not weights[name] > 0:
            raise ValueError(
                f"Mixture: weights={dict(weights)} has nothing above 0 for {name!r}; set data.weights.{name}, or leave "
                f"data.sources.{name} out"
            )
    values = np.array([float(weights[name]) for name in names])
    return values / values.sum()


class Places:
    """What stands at each place of an epoch, the same number of places in each.

    An epoch has as many places as there are examples, of which each source gets its share, at least one. A source of n
    examples with n places or more is read whole, as often as it has room for. Of what is left, r places, each has an
    example out of n / r neighbours in the order of length, all shifted by as much in each epoch: after n epochs every
    example has been read equally often, and in any one the lengths are nearly the same.

    Args:
        lengths: of the examples of each source, (examples, columns).
        shares: of the sources, which add up to 1.
        seed: of the shift in the first epoch.

    Attributes:
        lengths: of the longest example that stands at each place in any epoch, by column.
        offsets: the examples of the sources before each.
    """

    def __init__(self, lengths: Sequence[np.ndarray], shares: np.ndarray, seed: int) -> None:
        self.counts = np.array([len(of_one) for of_one in lengths])
        self.offsets = np.cumsum(self.counts) - self.counts
        places = _rounded(shares * self.counts.sum())
        self.wholes, self.rests = np.divmod(places, self.counts)
        self.starts = [int(np.random.default_rng([seed, i, 6]).integers(n)) for i, n in enumerate(self.counts)]
        self.sources = np.repeat(np.arange(len(places)), places)
        place = np.arange(places.sum()) - np.repeat(np.cumsum(places) - places, places)
        self.turns, self.ranks = np.divmod(place, self.counts[self.sources])
        self.order = np.concatenate([by_length(of_one) for of_one in lengths])

        n, rest = self.counts[self.sources], np.maximum(self.rests[self.sources], 1)
        is_part = self.turns == self.wholes[self.sources]
        first = np.where(is_part, self.ranks * n // rest, self.ranks)
        end = np.where(is_part, (self.ranks * n + n - 1) // rest, self.ranks) + 1
        in_order = np.concatenate([of_one[by_length(of_one)] for of_one in lengths])
        bounds = (np.stack([first, end], axis=1) + self.offsets[self.sources, None]).ravel()
        self.lengths = np.maximum.reduceat(np.append(in_order, in_order[:1], axis=0), bounds)[::2]

    def __len__(self) -> int:
        return len(self.sources)

    def find(self, epoch: int, place: int) -> tuple[int, int, int]:
        """The source and the example of it (from 0) that stand at a place, and the number of that reading of it."""
        source, turn, rank = int(self.sources[place]), int(self.turns[place]), int(self.ranks[place])
        n, whole = int(self.counts[source]), int(self.wholes[source])
        if turn == whole:
            shift = (self.starts[source] + _stride(n) * epoch) % n
            rank = (rank * n + shift) // int(self.rests[source])
        return source, int(self.order[self.offsets[source] + rank]), epoch * (whole + 1) + turn


def _rounded(wanted: np.ndarray) -> np.ndarray:
    """Whole numbers of at least 1 with the same sum: the largest remainders are rounded up."""
    total = round(float(wanted.sum()))
    whole = np.maximum(np.floor(wanted + 1e-9).astype(np.int64), 1)
    whole[np.argsort(whole - wanted, kind="stable")[: max(total - int(whole.sum()), 0)]] += 1
    return whole


@cache
def _stride(n: int) -> int:
    """A number without a common divisor with n, near its golden section: its multiples spread evenly over n."""
    stride = max(1, round(n * 0.6180339887498949))
    while math.gcd(stride, n) > 1:
        stride -= 1
    return stride
