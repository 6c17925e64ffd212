import pytest
import torch
from torch import Tensor

from triform.generation.sampling import Sampler, greedy

LOGITS = torch.tensor([[0.5, 0.3, 0.1, 0.1]]).log()


def sampler(temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None) -> Sampler:
    return Sampler(temperature, top_k, top_p, seed=0, device=torch.device("cpu"))


def kept(sampler: Sampler, logits: Tensor = LOGITS) -> list[bool]:
    return sampler.cut(logits)[0].isfinite().tolist()


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


def test_draws_follow_the_probabilities() -> None:
    logits = LOGITS.expand(20_000, -1)
    shares = sampler()(logits).bincount(minlength=4) / 20_000
    torch.testing.assert_close(shares, LOGITS[0].exp(), rtol=0, atol=0.015)
    hot = sampler(temperature=2.0)(logits).bincount(minlength=4) / 20_000
    torch.testing.assert_close(hot, (LOGITS[0] / 2).softmax(0), rtol=0, atol=0.015)


def test_cut_tokens_are_never_drawn() -> None:
    assert sampler(top_k=2)(LOGITS.expand(2_000, -1)).max() == 1


def test_greedy_takes_the_first_of_equals() -> None:
    assert greedy(torch.tensor([[1.0, 2.0, 2.0], [3.0, 0.0, 3.0]])).tolist() == [1, 0]
