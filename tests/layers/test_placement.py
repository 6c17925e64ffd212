from functools import partial

import pytest
import torch
from torch import nn

from tests.models.composed import build, ids
from triform.layers.placement import DeepNorm, Depth, PostNorm, PreNorm, SandwichNorm


def test_each_as_its_formula() -> None:
    x, sublayer = torch.randn(2, 7, 24), nn.Linear(24, 24)
    post, pre, sandwich, deep = (
        placement(d_model=24, norm=nn.LayerNorm, dropout=0.0, depth=Depth(2), is_first=True)
        for placement in (PostNorm, partial(PreNorm, first_norm=True), SandwichNorm, DeepNorm)
    )
    for placement in (post, pre, sandwich, deep):
        nn.init.normal_(placement.norm.weight)
    nn.init.normal_(sandwich.out_norm.weight)
    torch.testing.assert_close(post(x, sublayer), post.norm(x + sublayer(x)))
    torch.testing.assert_close(pre(x, sublayer), x + sublayer(pre.norm(x)))
    torch.testing.assert_close(sandwich(x, sublayer), x + sandwich.out_norm(sublayer(sandwich.norm(x))))
    torch.testing.assert_close(deep(x, sublayer), deep.norm(4**0.25 * x + sublayer(x)))


def test_dropout_falls_on_the_sublayer_not_on_the_shortcut() -> None:
    x = torch.randn(2, 7, 24)
    place = {"d_model": 24, "norm": nn.LayerNorm, "dropout": 0.5, "depth": Depth(2)}
    out = PreNorm(**place, is_first=True, first_norm=True)(x, torch.ones_like)
    assert (out - x).round().unique().tolist() == [0, 2]


@pytest.mark.parametrize("first_norm", [True, False])
def test_the_first_sublayer_of_a_stack_may_do_without_its_norm(first_norm: bool) -> None:
    model = build("encoder", "model/placement=pre", f"model.placement.first_norm={str(first_norm).lower()}")
    first, *others = [module for layer in model.stack.layers for module in (layer.attn_residual, layer.ff_residual)]
    assert isinstance(first.norm, nn.LayerNorm) == first_norm
    assert all(isinstance(other.norm, nn.LayerNorm) for other in others)
    if not first_norm:
        x = torch.randn(2, 7, 24)
        torch.testing.assert_close(first(x, torch.square), x + x.square())


@pytest.mark.parametrize("placement", ["parallel", "parallel_norms"])
@torch.no_grad()
def test_parallel_sublayers_read_the_same_stream(placement: str) -> None:
    layer = build("encoder_decoder", f"model/placement={placement}").decoder.layers[0]
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    x, memory = torch.randn(2, 7, 24), torch.randn(2, 5, 24)
    norms = [layer.attn_residual.norm] * 3
    if placement == "parallel_norms":
        norms[1:] = layer.cross_residual.norm, layer.ff_residual.norm
    assert sum(isinstance(module, nn.LayerNorm) for module in layer.modules()) == len(set(norms))
    attended, crossed = layer.attention(norms[0](x)), layer.cross_attention(norms[1](x), memory=memory)
    expected = x + attended + crossed + layer.feed_forward(norms[2](x))
    torch.testing.assert_close(layer(x, memory=memory), expected)


def test_deepnorm_has_the_constants_of_the_paper() -> None:
    def constants(depth: Depth) -> tuple[float, float]:
        placement = DeepNorm(d_model=24, norm=nn.LayerNorm, dropout=0.0, depth=depth, is_first=True)
        return placement.alpha, placement.beta

    assert constants(Depth(18)) == pytest.approx((36**0.25, 144**-0.25))
    assert constants(Depth(18, read_by=6)) == pytest.approx(
        (0.81 * (18**4 * 6) ** (1 / 16), 0.87 * (18**4 * 6) ** (-1 / 16))
    )
    assert constants(Depth(6, reads=18)) == pytest.approx((18**0.25, 72**-0.25))


def test_deepnorm_knows_the_depth_of_both_stacks_and_scales_what_it_names() -> None:
    sizes = ("model.encoder.n_layers=3", "model.decoder.n_layers=2")
    plain = build("encoder_decoder", "model/placement=post", *sizes)
    deep = build("encoder_decoder", "model/placement=deepnorm", *sizes)
    betas = {"encoder": 0.87 * (3**4 * 2) ** (-1 / 16), "decoder": 24**-0.25}
    for name, value in deep.named_parameters():
        if value.ndim == 2:
            scaled = name.split(".")[-2] in ("v_proj", "out_proj", "up_proj", "down_proj")
            beta = betas[name.split(".")[0]] if scaled else 1.0
            torch.testing.assert_close(value, plain.get_parameter(name) * beta)


@torch.no_grad()
def test_deepnorm_begins_near_the_identity_at_depth() -> None:
    """What a deep stack adds at first stays small beside its input, layer by layer."""
    model = build("encoder", "model/placement=deepnorm", "model/init=xavier", "model.n_layers=50")
    x = torch.randn(2, 7, 24)
    for layer in model.stack.layers:
        after = layer(x)
        assert nn.functional.cosine_similarity(x, after, dim=-1).min() > 0.8
        x = after
    assert read_is_finite(model)


def read_is_finite(model: nn.Module) -> bool:
    return bool(model(ids(2, 7)).logits.isfinite().all())
