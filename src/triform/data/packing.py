"""Several examples in one row."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Join = Callable[[Sequence[dict[str, Any]]], dict[str, Any]]
"""Batches, each of the examples of one row, to one batch of these rows."""


class Packing(NamedTuple):
    """How examples are put in rows together.

    Args:
        length: tokens of a row.
        row_lengths: tokens of examples, (examples, columns), to those that each takes of a row at most.
        join: see `Join`; must pickle if there are workers.
    """

    length: int
    row_lengths: Callable[[np.ndarray], np.ndarray]
    join: Join


def best_fit(lengths: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Put examples in as few rows as best-fit decreasing does: the longest first, each in the row that it fills best.

    A million examples take about two seconds. It needs at most 11/9 of the fewest rows that there could be, and for
    texts of all lengths next to none too many.

    Args:
        lengths: of the examples, each from 0 to `length`.

    Returns:
        The examples by row, and where each row ends among them.
    """
    rows = np.empty(len(lengths), dtype=np.int64)
    with_room: list[list[int]] = [[] for _ in range(length + 1)]  # rows by what is left of them
    some, n_rows = 0, 0  # bit r of `some`: there is a row with room for r tokens
    for example in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[example])
        fitting = some >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                some ^= 1 << room
        else:
            row, room, n_rows = n_rows, length, n_rows + 1
        rows[example] = row
        if not with_room[room - size]:
            some |= 1 << (room - size)
        with_room[room - size].append(row)
    return np.argsort(rows, kind="stable"), np.cumsum(np.bincount(rows, minlength=n_rows))
