import pytest
import torch
from torch import Tensor

from triform.layers.dropout import Dropout, dropout

DROPPED = round(0.3 * 2**16)
FACTOR = 2**16 / (2**16 - DROPPED)


def drawn(size: int, share: float = 0.3, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    return dropout(torch.ones(size), share)


def test_each_number_is_dropped_or_divided_by_the_share_that_is_left() -> None:
    torch.manual_seed(1)
    x = torch.randn(5, 7, requires_grad=True)
    y = Dropout(0.3)(x)
    kept = y != 0
    assert 0 < kept.sum() < 35
    torch.testing.assert_close(y, x * kept * FACTOR)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, kept * torch.tensor(FACTOR))


@pytest.mark.parametrize("share", [0.001, 0.1, 0.3, 0.9])
def test_the_share_is_dropped_and_the_mean_stays(share: float) -> None:
    n = 2**20
    y = drawn(n, share)
    deviation = (share * (1 - share) / n) ** 0.5
    assert (y == 0).float().mean() == pytest.approx(share, abs=5 * deviation + 2**-17)
    assert y.mean() == pytest.approx(1, abs=5 * deviation / (1 - share))


def test_numbers_that_are_drawn_together_are_dropped_independently() -> None:
    n = 2**18
    dropped = (drawn(4 * n) == 0).double().view(n, 4)
    expected = torch.full((4, 4), 0.3 * 0.3, dtype=torch.double).fill_diagonal_(0.3)
    torch.testing.assert_close(dropped.T @ dropped / n, expected, rtol=0, atol=5 * (0.3 * 0.7 / n) ** 0.5)
    neighbours = (dropped[1:] * dropped[:-1]).mean(0)
    torch.testing.assert_close(neighbours, expected[0, 1].expand(4), rtol=0, atol=5 * (0.09 * 0.91 / n) ** 0.5)


def test_the_seed_decides_whatever_the_size() -> None:
    assert torch.equal(drawn(1003), drawn(1003))
    assert not torch.equal(drawn(1003), drawn(1003, seed=2))
    for size in (0, 1, 2, 3, 5):
        assert torch.equal(drawn(size), drawn(1003)[:size])


@pytest.mark.parametrize("share", [0.0, 1e-7])
def test_a_share_too_small_to_be_counted_drops_nothing(share: float) -> None:
    assert torch.equal(drawn(1003, share), torch.ones(1003))


def test_nearly_all_may_be_dropped() -> None:
    assert drawn(1003, 1 - 1e-9).isfinite().all()


def test_half_precision_stays_so() -> None:
    torch.manual_seed(1)
    y = dropout(torch.ones(1003, dtype=torch.bfloat16), 0.3)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, drawn(1003).bfloat16())


def test_in_evaluation_the_very_same() -> None:
    x = torch.randn(5, 7)
    assert Dropout(0.3).eval()(x) is x


def test_a_share_of_one_leaves_nothing() -> None:
    assert not dropout(torch.ones(2**20), 1.0).any()


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_refuses_what_is_no_share(share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        dropout(torch.ones(3), share)


def test_draws_where_the_numbers_are_whatever_the_default_device() -> None:
    x = torch.ones(1003)
    torch.manual_seed(1)
    with torch.device("meta"):
        y = dropout(x, 0.3)
    assert torch.equal(y, drawn(1003))


def test_draws_for_each_example_under_vmap() -> None:
    torch.manual_seed(1)
    y = torch.func.vmap(lambda x: dropout(x, 0.3), randomness="different")(torch.ones(5, 1003))
    assert len(y.eq(0).unique(dim=0)) == 5
