import numpy as np
import pytest

from triform.data.order import Order
from triform.training.budget import Budget, budget


@pytest.fixture
def order() -> Order:
    return Order(np.full((10, 1), 3), batch_size=4, batch_tokens=None, seed=0)  # 3 steps an epoch


def test_first_limit_ends_training(order: Order) -> None:
    assert budget(order, 100, 2, None, None).max_steps == 6
    assert budget(order, 5, 2, None, None).max_steps == 5
    assert budget(order, None, None, 24, None).max_steps == 2
    assert budget(order, None, 0.5, None, None).max_steps == 2


def test_hours_estimate_the_total_from_the_pace() -> None:
    hour = Budget(max_steps=10**9, max_hours=1.0)
    assert hour.total(step=100, seconds=360) == pytest.approx(1000)
    assert not hour.spent(100, 3599)
    assert hour.spent(100, 3600)


def test_no_limit_and_a_limit_of_nothing_are_refused(order: Order) -> None:
    with pytest.raises(ValueError, match=r"none of max_steps, .* is set; set one, such as trainer\.max_steps=1000"):
        budget(order, None, None, None, None)
    with pytest.raises(ValueError, match=r"max_tokens=-1 is not positive; set trainer\.max_tokens above 0"):
        budget(order, None, None, -1, None)
