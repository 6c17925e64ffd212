"""Less is kept for the backward pass, and nothing else changes."""

from typing import Any

import pytest
import torch

from tests.models.composed import FAMILIES, build, ids, read
from triform.layers.block import Block
from triform.layers.feed_forward.mixture import balance_loss, rebalance
from triform.layers.losses import CrossEntropy
from triform.layers.recompute import recompute

NOISY = ("model.dropout=0.3", "model.attention.weights_dropout=0.2", "model/layer_drop=constant")
MIXED = ("model/feed_forward=mixture", "model.feed_forward.balance_loss=0.5", "model.feed_forward.balance_rate=0.1")


def blocks(model: Any) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, Block)]


def trained(family: str, mode: str, *overrides: str) -> tuple[Any, int]:
    """A model after a step's backward pass, and how often its first block's feed-forward layer was called."""
    model = build(family, *overrides).train()
    recompute(blocks(model), mode)
    calls = []
    blocks(model)[0].feed_forward.register_forward_pre_hook(lambda *_: calls.append(1))
    torch.manual_seed(5)
    out = read(model, ids(3, 7), padding_mask=torch.arange(7) < torch.tensor([[7], [5], [2]]))
    loss = model.head(out.hidden, ids(3, 7, seed=1), CrossEntropy(0.0))
    balance = balance_loss(model, 21, lambda value: value)
    (loss if balance is None else loss + balance).backward()
    return model, len(calls)


@pytest.mark.parametrize("mode", ["block", "selective"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_keeping_everything(family: str, mode: str) -> None:
    expected, once = trained(family, "none", *NOISY)
    found, twice = trained(family, mode, *NOISY)
    assert (once, twice) == (1, 2)
    for (name, a), b in zip(expected.named_parameters(), found.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad), name


@pytest.mark.parametrize("mode", ["block", "selective"])
def test_experts_are_counted_once(mode: str) -> None:
    expected, _ = trained("decoder", "none", *MIXED)
    found, _ = trained("decoder", mode, *MIXED)
    for a, b in zip(blocks(expected), blocks(found), strict=True):
        assert torch.equal(a.feed_forward.since_rebalance, b.feed_forward.since_rebalance)
        assert torch.equal(a.feed_forward.router.weight.grad, b.feed_forward.router.weight.grad)
    rebalance(found, lambda value: value)
    assert blocks(found)[0].feed_forward.choice_bias.any()


def test_nothing_is_computed_twice_without_a_backward_pass() -> None:
    model = build("decoder")
    before = read(model, ids(2, 5)).logits
    recompute(blocks(model), "block")
    calls = []
    blocks(model)[0].feed_forward.register_forward_pre_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        assert torch.equal(read(model, ids(2, 5)).logits, before)
    assert calls == [1]


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"activation_checkpointing='all' is unknown; set trainer\.activation_check"):
        recompute([], "all")


@pytest.mark.parametrize("mode", ["block", "selective"])
def test_a_model_without_blocks_is_refused(mode: str) -> None:
    recompute([], "none")
    with pytest.raises(ValueError, match=rf"activation_checkpointing={mode} is about .* set trainer\.activation_check"):
        recompute([], mode)
