import pytest
import torch
from torch import nn

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
