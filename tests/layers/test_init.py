from collections.abc import Callable

import pytest
import torch
from torch import nn

from triform.layers.init import T5, MuP, Normal, Scheme, Xavier, initialise, stable_hash


class Layer(nn.Module):
    def __init__(self, reverse: bool = False) -> None:
        super().__init__()
        names = ["up_proj", "out_proj"]
        for name in reversed(names) if reverse else names:
            setattr(self, name, nn.Linear(40, 40))
        self.norm = nn.LayerNorm(40)


class Net(nn.Module):
    def __init__(self, reverse: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(300, 40)
        self.layers = nn.ModuleList(Layer(reverse) for _ in range(8))


def test_values_depend_on_the_seed_and_the_name_alone() -> None:
    first, second, other = Net(), Net(reverse=True), Net()
    torch.manual_seed(1)
    initialise(first, Xavier(), seed=5)
    torch.manual_seed(2)
    initialise(second, Xavier(), seed=5)
    initialise(other, Xavier(), seed=6)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    assert not torch.equal(first.table.weight, other.table.weight)
    assert not torch.equal(first.layers[0].up_proj.weight, first.layers[1].up_proj.weight)


def test_gains_are_one_and_biases_zero() -> None:
    net = Net()
    for parameter in net.parameters():
        nn.init.constant_(parameter, float("nan"))
    initialise(net, Normal(std=0.02, depth_scaled=True, cut=None), seed=0)
    for name, value in net.named_parameters():
        assert value.isfinite().all(), name
    assert net.layers[3].norm.weight.eq(1).all()
    assert net.layers[3].norm.bias.eq(0).all()
    assert net.layers[3].up_proj.bias.eq(0).all()


def test_depth_scaling_is_by_the_projections_into_the_residual_stream() -> None:
    net = Net()
    initialise(net, Normal(std=0.02, depth_scaled=True, cut=None), seed=0)
    assert net.layers[0].up_proj.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert net.layers[0].out_proj.weight.std().item() == pytest.approx(0.02 / 8**0.5, rel=0.05)
    assert net.table.weight.std().item() == pytest.approx(0.02, rel=0.05)
    initialise(net, Normal(std=0.02, depth_scaled=False, cut=None), seed=0)
    assert net.layers[0].out_proj.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_xavier() -> None:
    net = Net()
    initialise(net, Xavier(), seed=0)
    bound = (6 / 80) ** 0.5
    assert net.layers[0].up_proj.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert net.layers[0].up_proj.weight.abs().max() <= bound
    assert net.table.weight.std().item() == pytest.approx(40**-0.5, rel=0.05)


def test_a_part_says_how_its_own_parameters_begin() -> None:
    class Slopes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slopes = nn.Parameter(torch.empty(3, 2))

        def initialise_parameter(self, name: str, value: torch.Tensor, generator: torch.Generator) -> None:
            value.uniform_(2.0, 3.0, generator=generator)

    part = Slopes()
    initialise(part, Xavier(), seed=0)
    assert part.slopes.ge(2).all()
    assert part.slopes.unique().numel() == 6


def test_refuses_a_parameter_nobody_speaks_for() -> None:
    class Silent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slopes = nn.Parameter(torch.empty(3, 2))

    with pytest.raises(TypeError, match=r"how slopes of Silent begins; .* initialise_parameter"):
        initialise(Silent(), Xavier(), seed=0)


def test_refuses_a_standard_deviation_of_zero() -> None:
    with pytest.raises(ValueError, match=r"std=0\.0 is not positive; set model\.init\.std"):
        Normal(std=0.0, depth_scaled=False, cut=None)


def test_stable_hash_never_changes() -> None:
    assert stable_hash(0, "embedding.table.weight") == 2488240804381836335
    assert stable_hash(1, "2") != stable_hash(12, "")


def test_truncated_values_stay_within_the_cut() -> None:
    net = Net()
    initialise(net, Normal(std=0.02, depth_scaled=True, cut=2.0), seed=0)
    assert 0.039 < net.table.weight.abs().max() <= 0.04
    assert net.layers[0].out_proj.weight.abs().max() <= 0.04 / 8**0.5
    assert net.table.weight.std().item() == pytest.approx(0.0176, rel=0.02)  # of a normal cut at 2 sigma: 0.88 sigma


def test_t5_has_the_standard_deviations_of_its_code() -> None:
    from tests.models.composed import build

    sizes = ("model.d_model=64", "model.n_heads=4", "model.head_dim=24", "model.d_ff=160", "model.head.tied=false")
    model = build("decoder", "model/init=t5", "model/feed_forward=relu", "model/position=t5", *sizes, vocab_size=500)
    layer, expected = model.stack.layers[0], {}
    expected[model.embedding.table] = expected[model.head.projection] = 1.0
    expected[layer.attention.q_proj] = (64 * 24) ** -0.5
    expected[layer.attention.k_proj] = expected[layer.attention.v_proj] = 64**-0.5
    expected[layer.attention.out_proj] = (4 * 24) ** -0.5
    expected[layer.feed_forward.up_proj], expected[layer.feed_forward.down_proj] = 64**-0.5, 160**-0.5
    for module, std in expected.items():
        assert module.weight.std().item() == pytest.approx(std, rel=0.05)
    assert model.stack.position.table.weight.std().item() == pytest.approx(1 / 8, rel=0.2)


def test_experts_of_a_mixture_write_to_the_stream_as_one() -> None:
    from tests.models.composed import build

    model = build("decoder", "model/feed_forward=mixture", "model.d_model=64", "model.d_ff=80")
    down = model.stack.layers[0].feed_forward.experts[1].down_proj
    assert down.weight.std().item() == pytest.approx(0.02 / 4**0.5, rel=0.05)  # 2 layers of 2 sublayers


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (lambda: Normal(std=0.02, depth_scaled=False, cut=0.0), r"cut=0\.0 is not positive; set model\.init\.cut"),
        (lambda: T5(factor=0.0), r"T5: factor=0\.0 is not positive; set model\.init\.factor"),
        (lambda: MuP(std=0.02, depth_scaled=True, base_width=0, base_head_dim=8), r"MuP: base_width=0 is not positive"),
    ],
)
def test_refuses_what_is_not_positive(scheme: Callable[[], Scheme], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scheme()
