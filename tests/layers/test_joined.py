from typing import Any

import pytest
import torch
from torch import nn

from tests.models.composed import build, ids
from triform.layers.joined import Joined, joined_projections

PARTS = {
    "swiglu": (),
    "grouped": ("model.n_kv_heads=2",),
    "biases": ("model.attention.bias=true", "model.feed_forward.bias=true"),
    "norm of queries": ("model/attention=qk_norm",),
    "not gated": ("model/feed_forward=gelu",),
}


def joined_parts(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(getattr(module, "joined", None), Joined)]


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS.keys())
@torch.no_grad()
def test_changes_nothing(parts: tuple[str, ...]) -> None:
    """With and without a cache, and nothing of it stays behind."""
    model = build("decoder", *parts).eval()
    expected = model(ids(2, 7)).logits
    with joined_projections(model):
        assert "stack.layers.1.attention" in joined_parts(model)
        torch.testing.assert_close(model(ids(2, 7)).logits, expected)
        cache = model.new_cache(7)
        pieces = [model(piece, cache=cache).logits for piece in ids(2, 7).split((4, 1, 2), dim=1)]
        torch.testing.assert_close(torch.cat(pieces, dim=1), expected)
    assert joined_parts(model) == []


def test_a_memory_is_read_apart() -> None:
    """Keys and values of the cross-attention are of another input than its queries."""
    model = build("encoder_decoder").eval()
    with joined_projections(model):
        assert joined_parts(model) == [
            f"{stack}.layers.{i}.attention" for stack in ("encoder", "decoder") for i in (0, 1)
        ]


@pytest.mark.parametrize("hook", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize("parts", [("model/adapter=lora", "model.adapter.targets=[k_proj]"), ()])
def test_what_is_no_plain_projection_stays(parts: tuple[str, ...], hook: str) -> None:
    """Adapted, or watched from outside."""
    model = build("decoder", *parts).eval()
    seen: list[Any] = []
    if not parts:
        for layer in model.stack.layers:
            getattr(layer.attention.v_proj, hook)(lambda *call: seen.append(call))
    with joined_projections(model):
        assert joined_parts(model) == [f"stack.layers.{i}.feed_forward" for i in (0, 1)]


def test_a_compiled_model_stays() -> None:
    model = build("decoder").eval()
    model.compile(backend="eager")
    with joined_projections(model):
        assert joined_parts(model) == []
