import pytest
import torch
import torch.nn.functional as F
from torch import nn

from triform.layers.feed_forward.gated import GatedFeedForward
from triform.layers.feed_forward.plain import FeedForward


def test_plain() -> None:
    layer, x = FeedForward(24, 40, activation=nn.ReLU, bias=True, dropout=0.0), torch.randn(2, 7, 24)
    up = x @ layer.up_proj.weight.T + layer.up_proj.bias
    torch.testing.assert_close(layer(x), up.clamp(min=0) @ layer.down_proj.weight.T + layer.down_proj.bias)


def test_gated() -> None:
    layer, x = GatedFeedForward(24, 40, activation=nn.SiLU, bias=False, dropout=0.0), torch.randn(2, 7, 24)
    gate = F.silu(x @ layer.gate_proj.weight.T)
    torch.testing.assert_close(layer(x), (gate * (x @ layer.up_proj.weight.T)) @ layer.down_proj.weight.T)
    assert [name for name, _ in layer.named_parameters()] == [
        "gate_proj.weight",
        "up_proj.weight",
        "down_proj.weight",
    ]


def test_every_layer_has_its_own_activation() -> None:
    """PReLU learns a slope: shared between layers it would be one."""
    first, second = (FeedForward(24, 40, activation=nn.PReLU, bias=True, dropout=0.0) for _ in range(2))
    assert first.activation is not second.activation


def test_relu_squared() -> None:
    from triform.layers.feed_forward.activations import ReLUSquared

    assert ReLUSquared()(torch.tensor([-2.0, 0.0, 0.5, 3.0])).tolist() == [0.0, 0.0, 0.25, 9.0]


@pytest.mark.parametrize(("layer", "activation"), [(FeedForward, nn.ReLU), (GatedFeedForward, nn.SiLU)])
def test_inner_dropout_falls_between_the_projections_in_training_only(layer: type, activation: type) -> None:
    ours = layer(24, 4000, activation=activation, bias=False, dropout=0.5)
    nn.init.ones_(ours.down_proj.weight)
    seen: list[torch.Tensor] = []
    ours.down_proj.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    x = torch.rand(1, 24) + 1
    for name in ("up_proj", "gate_proj"):
        if hasattr(ours, name):
            nn.init.ones_(getattr(ours, name).weight)
    ours(x)
    ours.eval()(x)
    assert 0.4 < (seen[0] == 0).float().mean() < 0.6
    torch.testing.assert_close(seen[0][seen[0] != 0], 2 * seen[1][0, :1].expand(int((seen[0] != 0).sum())))
    with pytest.raises(ValueError, match=f"{layer.__name__}: dropout=1.5 is no share; set model.feed_forward.dropout"):
        layer(24, 40, activation=activation, bias=False, dropout=1.5)
