from typing import Any

import pytest
import torch

from tests.models.composed import build, ids
from triform.layers.alternate import Alternate


def alternate(**changes: Any) -> Alternate:
    settings: dict[str, Any] = {"every": 3, "first": 0, "local_theta": 100.0, "full_theta": None}
    return Alternate(local=lambda: "local", full=lambda: "full", **settings | changes)


def test_modernbert_and_gemma_3() -> None:
    every_third, every_sixth = alternate(), alternate(every=6, first=5)
    assert [i for i in range(22) if every_third.is_full(i)] == [0, 3, 6, 9, 12, 15, 18, 21]
    assert [i for i in range(26) if every_sixth.is_full(i)] == [5, 11, 17, 23]
    assert [every_third.at_layer(i)() for i in range(4)] == ["full", "local", "local", "full"]
    assert [every_third.theta_at(i) for i in range(4)] == [None, 100.0, 100.0, None]


GEMMA = (
    "model/attention=alternate",
    "model.attention.every=2",
    "model.attention.first=1",
    "model.attention.local.window=3",
    "model.attention.local_theta=100.0",
    "model/position=rotary_linear",
)


def test_each_kind_has_its_window_and_its_base() -> None:
    stack = build("decoder", *GEMMA, "model.n_layers=4").stack
    assert [layer.attention.window for layer in stack.layers] == [3, None, 3, None]
    assert stack.thetas == [100.0, None, 100.0, None]
    local = stack.other_positions[100.0]
    assert (local.theta, local.scaling) == (100.0, None)
    assert (stack.position.theta, stack.position.scaling.factor) == (1e4, 8.0)


@torch.no_grad()
def test_a_stack_of_one_kind_equals_the_plain_one() -> None:
    """Local layers with a window of everything, and the usual base as their own."""
    plain = build("decoder", "model/position=rotary")
    both = build("decoder", "model/attention=alternate", "model.attention.local_theta=10000.0")
    torch.testing.assert_close(both(ids(2, 7)).logits, plain(ids(2, 7)).logits)


@torch.no_grad()
def test_layers_without_positions_read_a_bag_of_tokens() -> None:
    nope = ("model/attention=alternate_nope", "model.attention.every=1", "model.attention.first=0")
    for position in ("rotary", "alibi", "t5"):
        model, tokens = build("encoder", *nope, f"model/position={position}"), ids(1, 7)
        torch.testing.assert_close(model(tokens.flip(1)).hidden.flip(1), model(tokens).hidden, rtol=1e-5, atol=1e-5)


def test_cross_attention_is_of_the_full_kind() -> None:
    model = build("encoder_decoder", *GEMMA)
    assert [layer.attention.window for layer in model.decoder.layers] == [3, None]
    assert [layer.cross_attention.window for layer in model.decoder.layers] == [None, None]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"every": 0}, r"every=0 is less than 1 layer; set model\.attention\.every"),
        ({"first": 3}, r"first=3 is not among the first every=3 layers; set model\.attention\.first"),
        ({"local_theta": 0.5}, r"local_theta=0\.5 is no base of wavelengths; set model\.attention\.local_theta"),
        ({"full_theta": "nope"}, r"full_theta=nope is no base of wavelengths"),
    ],
)
def test_refuses_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        alternate(**changes)


def test_refuses_bases_where_nothing_rotates() -> None:
    with pytest.raises(Exception, match=r"theta=100\.0 of its own has no meaning under Learned"):
        build("decoder", *GEMMA[:-1], "model/position=learned")
    with pytest.raises(Exception, match=r"positions of Sinusoidal are in the embeddings, so no layer is without"):
        build("decoder", "model/attention=alternate_nope", "model/position=sinusoidal", "model.n_layers=4")


def test_refuses_patterns_and_positions_in_cross_attention() -> None:
    cross = "model/attention@model.decoder.cross_attention"
    with pytest.raises(Exception, match=r"alternate layers have no meaning between source and target"):
        build("encoder_decoder", f"{cross}=alternate")
    for attention in ((), (f"{cross}=multi_head",)):
        position = "+model/position@model.decoder.cross_attention.position=rotary"
        with pytest.raises(Exception, match=r"model\.decoder\.cross_attention\.position is set, but source"):
            build("encoder_decoder", *attention, position)
