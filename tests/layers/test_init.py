import pytest
import torch
from torch import nn

from triform.layers.init import Normal, Xavier, initialise, stable_hash


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
