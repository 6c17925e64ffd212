import pytest
import torch

from tests.models.composed import FAMILIES, build, ids, read
from triform.layers.layer_drop import LayerDrop

BEFORE, AFTER = torch.zeros(4000, 1, 2), torch.ones(4000, 1, 2)


def drop(layer: int = 0, n_layers: int = 4, **changes: float | bool) -> LayerDrop:
    settings: dict[str, float | bool] = {"rate": 0.4, "growing": False, "rescaled": False}
    return LayerDrop(layer, n_layers, **settings | changes)  # type: ignore[arg-type]


def test_rows_skip_a_layer_in_training_only() -> None:
    layer = drop()
    out = layer(BEFORE, AFTER)
    assert out.unique().tolist() == [0, 1]
    assert (out[:, :, 0] == out[:, :, 1]).all()
    assert out.mean().item() == pytest.approx(0.6, abs=0.03)
    assert torch.equal(layer.eval()(BEFORE, AFTER), AFTER)


def test_rescaled_keeps_the_mean() -> None:
    out = drop(rescaled=True)(BEFORE, AFTER)
    assert out.max().item() == pytest.approx(1 / 0.6)
    assert out.mean().item() == pytest.approx(1.0, abs=0.05)


def test_growing_ends_with_the_rate() -> None:
    assert [drop(i, growing=True).rate for i in range(4)] == pytest.approx([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_that_skips_every_layer_is_its_embedding(family: str) -> None:
    """And every parameter has a gradient, though of zero: ranks must agree on which have one."""
    model = build(family, "model/layer_drop=constant", "model.layer_drop.rate=0.999", "model/placement=pre")
    model.train()
    tokens = ids(2, 7)
    stack = model.decoder if family == "encoder_decoder" else model.stack
    hidden = read(model, tokens).hidden
    x = stack.position.embed(model.embedding(tokens), torch.arange(7)[None])
    torch.testing.assert_close(hidden, stack.final_norm(x))
    hidden.sum().backward()
    for name, parameter in stack.named_parameters():
        assert parameter.grad is not None, name


def test_refuses_a_rate_of_one() -> None:
    with pytest.raises(ValueError, match=r"rate=1\.0 is no share; set model\.layer_drop\.rate"):
        drop(rate=1.0)
