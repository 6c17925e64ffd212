import torch
import torch.nn.functional as F
from torch import nn

from triform.layers.feed_forward.gated import GatedFeedForward
from triform.layers.feed_forward.plain import FeedForward


def test_plain() -> None:
    layer, x = FeedForward(24, 40, activation=nn.ReLU, bias=True), torch.randn(2, 7, 24)
    up = x @ layer.up_proj.weight.T + layer.up_proj.bias
    torch.testing.assert_close(layer(x), up.clamp(min=0) @ layer.down_proj.weight.T + layer.down_proj.bias)


def test_gated() -> None:
    layer, x = GatedFeedForward(24, 40, activation=nn.SiLU, bias=False), torch.randn(2, 7, 24)
    gate = F.silu(x @ layer.gate_proj.weight.T)
    torch.testing.assert_close(layer(x), (gate * (x @ layer.up_proj.weight.T)) @ layer.down_proj.weight.T)
    assert [name for name, _ in layer.named_parameters()] == [
        "gate_proj.weight",
        "up_proj.weight",
        "down_proj.weight",
    ]


def test_every_layer_has_its_own_activation() -> None:
    """PReLU learns a slope: shared between layers it would be one."""
    first, second = (FeedForward(24, 40, activation=nn.PReLU, bias=True) for _ in range(2))
    assert first.activation is not second.activation


def test_relu_squared() -> None:
    from triform.layers.feed_forward.activations import ReLUSquared

    assert ReLUSquared()(torch.tensor([-2.0, 0.0, 0.5, 3.0])).tolist() == [0.0, 0.0, 0.25, 9.0]
