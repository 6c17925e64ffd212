import numpy as np
import pytest

from triform.data.packing import best_fit


def rows_of(lengths: np.ndarray, length: int) -> list[list[int]]:
    members, ends = best_fit(lengths, length)
    return [row.tolist() for row in np.split(members, ends[:-1])]


def test_written_out() -> None:
    # 7 and 6 open rows; 4 fits in both and fills the second, 3 fills the first, 2 and 2 share a third.
    assert rows_of(np.array([2, 6, 3, 7, 2, 4]), 10) == [[2, 3], [1, 5], [0, 4]]


@pytest.mark.parametrize("seed", range(5))
def test_every_example_is_in_one_row_that_holds_it(seed: int) -> None:
    draw = np.random.default_rng(seed)
    lengths = np.minimum(draw.geometric(0.02, size=3000), 256) - draw.integers(2, size=3000)
    members, ends = best_fit(lengths, 256)
    assert sorted(members) == list(range(3000))
    sums = np.add.reduceat(lengths[members], np.append(0, ends[:-1]))
    assert sums.max() <= 256
    assert len(ends) == np.ceil(lengths.sum() / 256) or sums.mean() > 0.98 * 256


def test_examples_without_a_token_take_no_row_of_their_own() -> None:
    assert rows_of(np.array([0, 5, 0]), 5) == [[0, 1, 2]]


def test_all_as_long_as_a_row() -> None:
    assert rows_of(np.array([5, 5]), 5) == [[0], [1]]
