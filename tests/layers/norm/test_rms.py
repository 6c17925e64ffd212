import pytest
import torch
from torch import Tensor, nn

from triform.layers.norm.rms import RMSNorm


def test_equals_torch() -> None:
    ours, theirs = RMSNorm(24, 1e-3, "before", False), nn.RMSNorm(24, eps=1e-3)
    nn.init.normal_(ours.weight)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 7, 24)
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("cast", ["before", "after"])
@pytest.mark.parametrize("unit_offset", [False, True])
def test_gradients_equal_those_of_torch_and_training_changes_no_output(cast: str, unit_offset: bool) -> None:
    ours, theirs = RMSNorm(24, 1e-3, cast, unit_offset), nn.RMSNorm(24, eps=1e-3)
    nn.init.normal_(ours.weight)
    with torch.no_grad():
        theirs.weight.copy_(ours.weight + float(unit_offset))
    x = torch.randn(2, 7, 24, requires_grad=True)
    out, expected = ours(x), theirs(x)
    assert torch.equal(out, expected)
    with torch.no_grad():
        assert torch.equal(ours(x), out)
    towards = torch.randn(2, 7, 24)
    for one, other in zip(
        torch.autograd.grad(out, (x, ours.weight), towards),
        torch.autograd.grad(expected, (x, theirs.weight), towards),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_a_frozen_weight_and_an_input_without_gradient() -> None:
    norm = RMSNorm(24, 1e-3, "before", False)
    x = torch.randn(2, 7, 24)
    norm(x).sum().backward()
    assert norm.weight.grad is not None
    norm.requires_grad_(False)
    assert not norm(x).requires_grad
    assert norm(x.requires_grad_()).requires_grad


@pytest.mark.parametrize("unit_offset", [False, True])
@pytest.mark.parametrize("shape", [(7,), (3, 7), (0, 7), (2, 3, 7)])
def test_first_and_second_derivatives_in_double_precision(shape: tuple[int, ...], unit_offset: bool) -> None:
    norm = RMSNorm(7, 1e-3, "before", unit_offset).double()
    x = torch.randn(shape, dtype=torch.double, requires_grad=True)
    weight = torch.randn(7, dtype=torch.double, requires_grad=True)

    def of(x: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(norm, {"weight": weight}, x)

    assert torch.autograd.gradcheck(of, (x, weight))
    assert torch.autograd.gradgradcheck(of, (x, weight))


def test_a_penalty_on_the_gradient_has_the_gradient_that_torch_gives_it() -> None:
    x = torch.randn(2, 7, 24, requires_grad=True)
    found = []
    for norm in (RMSNorm(24, 1e-3, "before", False), nn.RMSNorm(24, eps=1e-3)):
        loss = norm(x).sin().sum()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        found.append(torch.autograd.grad(loss + gradient.square().sum(), (x, norm.weight)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gradients_of_each_example_by_torch_func() -> None:
    norm, x = RMSNorm(24, 1e-3, "before", False), torch.randn(5, 7, 24)
    weight = norm.weight.detach().normal_()

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return torch.func.functional_call(norm, {"weight": weight}, x).sin().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, x)
    (total,) = torch.autograd.grad(norm(x).sin().sum(), norm.weight)
    torch.testing.assert_close(each.sum(0), total)


def test_a_backward_pass_under_autocast_stays_in_single_precision() -> None:
    norm, x, towards = RMSNorm(24, 1e-3, "before", False), torch.randn(5, 24, requires_grad=True), torch.randn(5, 24)
    (expected,) = torch.autograd.grad(norm(x), x, towards)
    with torch.autocast("cpu", torch.bfloat16):
        (gradient,) = torch.autograd.grad(norm(x), x, towards)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casts_before_the_weight_like_llama(dtype: torch.dtype) -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    ours, theirs = RMSNorm(4096, 1e-6, "before", False), LlamaRMSNorm(4096, eps=1e-6)
    nn.init.normal_(ours.weight, mean=1.0, std=0.2, generator=torch.Generator().manual_seed(0))
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(1, 3, 4096, generator=torch.Generator().manual_seed(1)).to(dtype)
    out = ours.to(dtype)(x)
    assert out.dtype == dtype
    assert torch.equal(out, theirs.to(dtype)(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_multiplies_by_one_plus_the_weight_and_then_casts_like_gemma(dtype: torch.dtype) -> None:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

    ours, theirs = RMSNorm(4096, 1e-6, "after", True), GemmaRMSNorm(4096, eps=1e-6)
    nn.init.normal_(ours.weight, std=0.2, generator=torch.Generator().manual_seed(0))
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(1, 3, 4096, generator=torch.Generator().manual_seed(1)).to(dtype)
    out = ours.to(dtype)(x)
    assert out.dtype == dtype
    assert torch.equal(out, theirs.to(dtype)(x))


def test_the_order_of_cast_and_product_shows_in_half_precision_only() -> None:
    before, after = RMSNorm(4096, 1e-6, "before", False), RMSNorm(4096, 1e-6, "after", False)
    nn.init.normal_(before.weight, mean=1.0, std=0.2, generator=torch.Generator().manual_seed(0))
    after.load_state_dict(before.state_dict())
    x = torch.randn(1, 4096, generator=torch.Generator().manual_seed(1))
    assert torch.equal(before(x), after(x))
    half = before.to(torch.bfloat16)(x.bfloat16()) != after.to(torch.bfloat16)(x.bfloat16())
    assert half.sum() > 100


def test_the_factor_begins_at_one() -> None:
    x = torch.randn(3, 24)
    plain, offset = RMSNorm(24, 1e-6, "before", False), RMSNorm(24, 1e-6, "before", True)
    for norm in (plain, offset):
        norm.initialise_parameter("weight", norm.weight.data.fill_(float("nan")), torch.Generator())
    assert torch.equal(plain(x), offset(x))
    assert offset.weight.eq(0).all()


def test_refuses_an_unknown_order() -> None:
    with pytest.raises(ValueError, match=r"cast='late' is unknown; set model\.norm\.cast to before or after"):
        RMSNorm(24, 1e-6, "late", False)


@pytest.mark.parametrize("eps", [-1.0, float("nan")])
def test_refuses_a_negative_eps(eps: float) -> None:
    with pytest.raises(ValueError, match=rf"RMSNorm: eps={eps} is no size; set model\.norm\.eps to at least 0"):
        RMSNorm(24, eps, "before", False)
