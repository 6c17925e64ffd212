from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triform.layers.feed_forward.gated import GatedFeedForward
from triform.layers.feed_forward.mixture import MixtureOfExperts, balance_loss, loads, rebalance
from triform.layers.feed_forward.plain import FeedForward
from triform.layers.init import Normal, initialise

D_MODEL, D_FF, EXPERTS = 24, 10, 5
SWIGLU = partial(GatedFeedForward, activation=nn.SiLU, bias=False, dropout=0.0)


def mixture(**changes: Any) -> MixtureOfExperts:
    settings: dict[str, Any] = {
        "expert": SWIGLU,
        "n_experts": EXPERTS,
        "top_k": 2,
        "n_shared": 0,
        "normalised": True,
        "balance_loss": 0.0,
        "balance_rate": 0.0,
    }
    layer = MixtureOfExperts(D_MODEL, D_FF, **settings | changes)
    initialise(layer, Normal(std=0.5, depth_scaled=False, cut=None), seed=0)
    return layer


def one_rank(value: Tensor) -> Tensor:
    return value


def chosen_by(layer: MixtureOfExperts, x: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of all experts, and the numbers of the chosen."""
    scores = layer.router(x).softmax(-1)
    bias = 0 if layer.choice_bias is None else layer.choice_bias
    return scores, (scores + bias).topk(layer.top_k).indices


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("n_shared", [0, 2])
@torch.no_grad()
def test_a_token_is_the_weighted_sum_of_its_experts(normalised: bool, n_shared: int) -> None:
    layer, x = mixture(normalised=normalised, n_shared=n_shared), torch.randn(2, 7, D_MODEL)
    scores, chosen = chosen_by(layer, x)
    expected = torch.zeros_like(x)
    for b in range(2):
        for t in range(7):
            picked = scores[b, t, chosen[b, t]]
            weights = picked / picked.sum() if normalised else picked
            for expert, weight in zip(chosen[b, t].tolist(), weights, strict=True):
                expected[b, t] += weight * layer.experts[expert](x[b, t])
            for expert in layer.shared:
                expected[b, t] += expert(x[b, t])
    torch.testing.assert_close(layer(x), expected)


@torch.no_grad()
def test_equals_mixtral() -> None:
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=D_MODEL, intermediate_size=D_FF, num_local_experts=EXPERTS, num_experts_per_tok=2
    )
    ours, theirs = mixture(), MixtralSparseMoeBlock(config).eval()
    theirs.gate.weight.copy_(ours.router.weight)
    for i, expert in enumerate(ours.experts):
        theirs.experts.gate_up_proj[i].copy_(torch.cat((expert.gate_proj.weight, expert.up_proj.weight)))
        theirs.experts.down_proj[i].copy_(expert.down_proj.weight)
    x = torch.randn(2, 7, D_MODEL)
    out = theirs(x)
    torch.testing.assert_close(ours(x), out[0] if isinstance(out, tuple) else out)


@torch.no_grad()
def test_one_expert_is_the_expert() -> None:
    layer, x = mixture(n_experts=1, top_k=1), torch.randn(2, 7, D_MODEL)
    torch.testing.assert_close(layer(x), layer.experts[0](x))


def test_an_expert_without_tokens_has_a_gradient_of_zero() -> None:
    """On every rank each parameter must have one."""
    layer = mixture(top_k=1, normalised=False)
    layer(torch.randn(1, 1, D_MODEL)).sum().backward()
    idle = [all(p.grad.eq(0).all() for p in expert.parameters()) for expert in layer.experts]
    assert sorted(idle) == [False, True, True, True, True]


def test_the_balance_loss_is_that_of_the_switch_transformer() -> None:
    layer, x = mixture(balance_loss=0.3), torch.randn(2, 7, D_MODEL)
    padding = torch.arange(7) < torch.tensor([[7], [4]])
    layer(x, padding)
    scores, chosen = chosen_by(layer, x)
    real = chosen[padding]
    share = torch.tensor([(real == i).sum() / real.numel() for i in range(EXPERTS)])
    expected = 0.3 * EXPERTS * (share * scores[padding].mean(0)).sum()
    found = balance_loss(layer, 13, one_rank)
    assert found is not None
    torch.testing.assert_close(found, 13 * expected)
    (ours,) = torch.autograd.grad(found, layer.router.weight)
    (theirs,) = torch.autograd.grad(13 * expected, layer.router.weight)
    torch.testing.assert_close(ours, theirs)


def test_the_balance_loss_of_ranks_sums_to_that_of_their_batch() -> None:
    layer, x = mixture(balance_loss=0.3), torch.randn(4, 7, D_MODEL)

    def noted(rows: Tensor) -> Tensor:
        layer(rows)
        numbers: list[Tensor] = []
        balance_loss(layer, len(rows), lambda value: numbers.append(value) or value)
        return numbers[0]

    total = noted(x[:1]) + noted(x[1:])
    layer(x)
    whole = balance_loss(layer, 4, one_rank)
    losses = []
    for rows in (x[:1], x[1:]):
        layer(rows)
        losses.append(balance_loss(layer, len(rows), lambda _: total))
    torch.testing.assert_close(losses[0] + losses[1], whole)


def test_without_a_coefficient_or_in_evaluation_there_is_no_loss() -> None:
    plain, still = mixture(), mixture(balance_loss=0.3).eval()
    for layer in (plain, still):
        layer(torch.randn(2, 7, D_MODEL))
        assert balance_loss(layer, 14, one_rank) is None
    assert balance_loss(nn.Linear(2, 2), 14, one_rank) is None


def test_a_bias_on_the_choice_moves_tokens_to_idle_experts() -> None:
    layer = mixture(balance_rate=0.02, top_k=1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 20, D_MODEL, generator=generator) + 1.5  # a common direction: some experts would be idle

    def busiest() -> float:
        layer(x)
        return max(loads(layer)[""])

    first = busiest()
    for _ in range(150):
        layer(x)
        rebalance(layer, one_rank)
    assert busiest() < 1.5 < first
    assert layer.choice_bias is not None
    assert not layer.choice_bias.requires_grad
    assert "choice_bias" in layer.state_dict()


@torch.no_grad()
def test_the_bias_decides_who_is_chosen_not_with_what_weight() -> None:
    layer, x = mixture(balance_rate=0.1, top_k=1, normalised=False), torch.randn(1, 3, D_MODEL)
    assert layer.choice_bias is not None
    layer.choice_bias[3] = 9.0
    expected = layer.router(x).softmax(-1)[..., 3:4] * layer.experts[3](x)
    torch.testing.assert_close(layer(x), expected)


def test_micro_batches_count_together_and_padding_not_at_all() -> None:
    layer, x = mixture(balance_rate=0.1), torch.randn(2, 7, D_MODEL)
    padding = torch.arange(7) < torch.tensor([[7], [4]])
    layer(x[:1], padding[:1])
    layer(x[1:], padding[1:])
    assert layer.since_rebalance is not None
    assert layer.since_rebalance.sum() == 11 * 2
    rebalance(layer, one_rank)
    assert layer.since_rebalance is None


def test_loads_are_relative_to_the_mean() -> None:
    layer, x = mixture(), torch.randn(2, 7, D_MODEL)
    layer(x)
    chosen = chosen_by(layer, x)[1]
    expected = [(chosen == i).sum().item() / (2 * 7 * 2 / EXPERTS) for i in range(EXPERTS)]
    assert loads(layer)[""] == pytest.approx(expected)
    other = torch.tensor([28.0, 0, 0, 0, 0])  # what another rank counted
    assert layer.routing is not None
    both = layer.routing.tokens + other
    assert loads(layer, lambda counts: counts + other)[""] == pytest.approx((both / both.mean()).tolist())
    assert loads(nn.Linear(2, 2)) == {}


def test_loads_of_layers_of_several_sizes() -> None:
    layers = nn.ModuleDict({"few": mixture(n_experts=3), "many": mixture(n_experts=EXPERTS), "silent": mixture()})
    for name in ("few", "many"):
        layers[name](torch.randn(2, 7, D_MODEL))
    found = loads(layers)
    assert {name: (len(of), sum(of)) for name, of in found.items()} == {
        "few": (3, pytest.approx(3)),
        "many": (EXPERTS, pytest.approx(EXPERTS)),
    }


def test_experts_may_be_of_any_kind() -> None:
    layer = mixture(expert=partial(FeedForward, activation=nn.GELU, bias=True, dropout=0.0))
    assert layer(torch.randn(2, 7, D_MODEL)).shape == (2, 7, D_MODEL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_experts": 1}, r"n_experts=1 are fewer than top_k=2; set model\.feed_forward\.top_k to at most 1"),
        ({"top_k": 0}, r"top_k=0 is less than 1; set model\.feed_forward\.top_k"),
        ({"n_shared": -1}, r"n_shared=-1 is negative; set model\.feed_forward\.n_shared"),
        ({"balance_loss": -0.1}, r"balance_loss=-0\.1 is negative"),
        ({"balance_rate": -0.1}, r"balance_rate=-0\.1 is negative"),
    ],
)
def test_refuses_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mixture(**changes)
