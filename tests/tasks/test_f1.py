import math

import numpy as np
import pytest
import torch

from triform.tasks.f1 import class_counts, macro_f1, micro_f1, one_hot

TRUE = torch.tensor([[1, 0, 1, 0], [0, 0, 1, 0], [1, 0, 0, 0]]).bool()
GUESSED = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]).bool()


def test_counts_add_up_over_batches() -> None:
    whole = class_counts(GUESSED, TRUE)
    assert whole.tolist() == [1, 0, 1, 0, 1, 1, 1, 0, 2, 0, 2, 0]
    assert whole.equal(class_counts(GUESSED[:1], TRUE[:1]) + class_counts(GUESSED[1:], TRUE[1:]))
    assert class_counts(GUESSED[:0], TRUE[:0]).tolist() == [0] * 12


def test_micro_and_macro() -> None:
    """Classes 2/3, 0 and 2/3; the last one neither occurs nor is guessed. Together 2 right of 3 guessed, 4 true."""
    counts = class_counts(GUESSED, TRUE).numpy()
    assert macro_f1(counts) == pytest.approx((2 / 3 + 0 + 2 / 3) / 3)
    assert micro_f1(counts) == pytest.approx(4 / 7)


def test_nothing_has_no_f1() -> None:
    assert math.isnan(macro_f1(np.zeros(6)))
    assert math.isnan(micro_f1(np.zeros(6)))


def test_one_hot_of_an_ignored_label_is_no_class() -> None:
    assert one_hot(torch.tensor([1, -100]), 3).tolist() == [[False, True, False], [False, False, False]]
