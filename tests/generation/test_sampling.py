import math

import pytest
import torch
from torch import Tensor

from triform.generation.sampling import Repetition, Sampler, greedy, random_numbers

LOGITS = torch.tensor([[0.5, 0.3, 0.1, 0.1]]).log()


def sampler(
    temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None
) -> Sampler:
    return Sampler(temperature, top_k, top_p, min_p)


def kept(sampler: Sampler, logits: Tensor = LOGITS) -> list[bool]:
    return sampler.cut(logits)[0].isfinite().tolist()


def drawn(sampler: Sampler, n: int = 20_000) -> Tensor:
    return sampler(LOGITS.expand(n, -1), torch.rand(n, dtype=torch.float64))


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.8, 2), (0.81, 3), (0.5, 1), (1e-9, 1), (1.0, 4)],
)
def test_top_p_keeps_the_fewest_that_reach_it(top_p: float, expected: int) -> None:
    assert sum(kept(sampler(top_p=top_p))) == expected


def test_top_p_follows_probability_not_place() -> None:
    assert kept(sampler(top_p=0.8), LOGITS[:, [2, 0, 3, 1]]) == [False, True, False, True]


@pytest.mark.parametrize(("top_k", "expected"), [(1, 1), (2, 2), (100, 4)])
def test_top_k_keeps_as_many_or_all(top_k: int, expected: int) -> None:
    assert sum(kept(sampler(top_k=top_k))) == expected


@pytest.mark.parametrize(
    ("min_p", "expected"), [(0.0, 4), (0.19, 4), (0.2, 4), (0.21, 2), (0.6, 2), (0.61, 1), (1.0, 1)]
)
def test_min_p_keeps_what_is_near_the_likeliest(min_p: float, expected: int) -> None:
    assert sum(kept(sampler(min_p=min_p))) == expected


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_cuts_as_transformers_does(temperature: float) -> None:
    """With the temperature first, then all three at once."""
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    for seed in range(20):
        logits = 3 * torch.randn(5, 23, generator=torch.Generator().manual_seed(seed)) / temperature
        expected = logits
        for warper in (TopKLogitsWarper(9), TopPLogitsWarper(0.83), MinPLogitsWarper(0.07)):
            expected = warper(None, expected)
        assert torch.equal(sampler(top_k=9, top_p=0.83, min_p=0.07).cut(logits), expected)


def test_draws_follow_the_probabilities() -> None:
    shares = drawn(sampler()).bincount(minlength=4) / 20_000
    torch.testing.assert_close(shares, LOGITS[0].exp(), rtol=0, atol=0.015)
    hot = drawn(sampler(temperature=2.0)).bincount(minlength=4) / 20_000
    torch.testing.assert_close(hot, (LOGITS[0] / 2).softmax(0), rtol=0, atol=0.015)


def test_cut_tokens_are_never_drawn() -> None:
    assert drawn(sampler(top_k=2)).max() == 1
    ends = torch.tensor([0.0, 1 - 2**-40], dtype=torch.float64)
    rising = LOGITS.flip(1).expand(2, -1)
    assert sampler(top_k=2)(rising, ends).tolist() == [2, 3]
    assert sampler(top_k=2)(LOGITS.expand(2, -1), ends).tolist() == [0, 1]


def test_a_temperature_near_zero_is_greedy() -> None:
    numbers = torch.tensor([0.1, 0.999], dtype=torch.float64)
    assert sampler(temperature=1e-45)(100 * LOGITS.expand(2, -1), numbers).tolist() == [0, 0]


def test_greedy_takes_the_first_of_equals() -> None:
    assert greedy(torch.tensor([[1.0, 2.0, 2.0], [3.0, 0.0, 3.0]])).tolist() == [1, 0]


def test_random_numbers_are_a_rows_own() -> None:
    """The same alone, in a batch, padded, and with fewer of them; others for equal rows, other ids, another seed."""
    ids = torch.tensor([[0, 8, 9], [7, 8, 9], [0, 8, 9]])
    real = torch.tensor([[False, True, True], [True, True, True], [False, True, True]])
    numbers = random_numbers(ids, real, 6, seed=1)
    assert numbers.shape == (3, 6)
    assert torch.equal(numbers[:1], random_numbers(ids[:1, 1:], None, 6, seed=1))
    assert torch.equal(numbers[1:2], random_numbers(ids[1:2], None, 6, seed=1))
    assert torch.equal(numbers[:, :2], random_numbers(ids, real, 2, seed=1))
    other = torch.cat((numbers, random_numbers(ids, real, 6, seed=2), random_numbers(ids[:1], None, 6, seed=1)))
    assert len(other.unique(dim=0)) == 7
    assert 0 <= other.min() < other.max() < 1


def test_repetition_lowers_negative_scores_too() -> None:
    scores = torch.tensor([[3.0, -3.0, 1.0, -1.0]])
    assert Repetition(1.5, torch.tensor([[0, 1]]), None, 4)(scores).tolist() == [[2.0, -4.5, 1.0, -1.0]]


def test_repetition_knows_what_is_added_and_what_is_padding() -> None:
    padded = Repetition(2.0, torch.tensor([[0, 1], [2, 2]]), torch.tensor([[False, True], [True, True]]), 6)
    ones = torch.ones(2, 4)  # of fewer tokens than the model has rows
    assert padded(ones).tolist() == [[1.0, 0.5, 1.0, 1.0], [1.0, 1.0, 0.5, 1.0]]
    padded.add(torch.tensor([3, 2]))
    padded.select(torch.tensor([1, 0, 0]))
    assert padded(torch.ones(3, 4)).tolist() == [[1.0, 1.0, 0.5, 1.0], *[[1.0, 0.5, 1.0, 0.5]] * 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1.0 is negative; set it to 0"),
        ({"temperature": math.nan}, "temperature=nan is negative"),
        ({"top_k": 0}, "top_k=0 leaves no token"),
        ({"top_p": 0.0}, r"top_p=0\.0 is no share"),
        ({"top_p": 1.1}, r"top_p=1\.1 is no share"),
        ({"min_p": -0.1}, r"min_p=-0\.1 is no share"),
        ({"min_p": 1.1}, r"min_p=1\.1 is no share"),
    ],
)
def test_refuses_in_one_line(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        sampler(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("penalty", [0.0, -1.0, math.nan, math.inf])
def test_a_penalty_is_positive(penalty: float) -> None:
    with pytest.raises(ValueError, match=f"repetition_penalty={penalty} is not positive; set it above 0"):
        Repetition(penalty, torch.tensor([[0, 1]]), None, 4)
