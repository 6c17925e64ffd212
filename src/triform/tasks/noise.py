"""What is hidden of a text, drawn anew in each epoch from (seed, epoch, index) alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from triform.tasks.objective import Key


def generator(seed: int, key: Key) -> np.random.Generator:
    """Of an example's noise; of held-out text (epoch -1) from the index alone, the same in all runs."""
    epoch, index = key
    return np.random.default_rng([index] if epoch < 0 else [seed, epoch, index])


def documents(example: Mapping[str, Any], length: int) -> list[np.ndarray]:
    """The documents, or parts of them, among the first `length` tokens of a row of running text."""
    ids = np.asarray(example["ids"][:length], dtype=np.int64)
    if "documents" not in example:
        return [ids] if len(ids) else []
    numbers = np.asarray(example["documents"][:length])
    return np.split(ids, np.flatnonzero(np.diff(numbers)) + 1) if len(ids) else []


def texts(example: Mapping[str, Any], length: int, end: int) -> list[np.ndarray]:
    """The same without their end marks, and without those that are nothing else."""
    found = (ids[:-1] if ids[-1] == end else ids for ids in documents(example, length))
    return [ids for ids in found if len(ids)]


def parts(rng: np.random.Generator, n: int, n_parts: int) -> np.ndarray:
    """`n` cut into `n_parts` whole numbers of at least 1, every way equally likely."""
    cuts = np.sort(rng.choice(n - 1, size=n_parts - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=n)


def gaps(rng: np.random.Generator, n_clean: int, n_spans: int, apart: int) -> np.ndarray:
    """How many of `n_clean` tokens stand before each span and after the last one, every way equally likely.

    Args:
        apart: fewest tokens between two spans.
    """
    free = n_clean - apart * max(n_spans - 1, 0)
    bars = np.sort(rng.choice(free + n_spans, size=n_spans, replace=False))
    between = np.diff(bars, prepend=-1, append=free + n_spans) - 1
    between[1:-1] += apart
    return between


def spans(between: Sequence[int] | np.ndarray, lengths: Sequence[int] | np.ndarray) -> list[tuple[int, int]]:
    """First token and the one after the last of each span, given what stands between them and their lengths."""
    found, place = [], 0
    for gap, length in zip(between, lengths, strict=False):
        found.append((place + int(gap), place + int(gap) + int(length)))
        place = found[-1][1]
    return found
