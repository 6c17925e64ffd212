"""A position part of one's own needs one class: it overrides the hooks it wants."""

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tests.models.composed import FAMILIES, build, ids, read
from triform.layers.attention import capture_weights
from triform.layers.position.base import Position


class Nearness(Position):
    """Lowers a score by the distance, times 1, 2, 3, ... in the heads."""

    def __init__(self, *, d_model: int, n_heads: int, head_dim: int, max_seq_len: int, causal: bool) -> None:
        super().__init__()
        self.n_heads = n_heads

    def bias(
        self, queries: Int[Tensor, " q_len"], keys: Int[Tensor, " kv_len"]
    ) -> Float[Tensor, "1 n_heads q_len kv_len"]:
        slopes = torch.arange(1, self.n_heads + 1, device=keys.device)[:, None, None]
        return (-slopes * (queries[:, None] - keys).abs()).float()[None]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_bias_reaches_every_self_attention(family: str) -> None:
    biased, plain = build(family, position=Nearness), build(family, "model/position=none")
    tokens = ids(2, 7)
    with capture_weights(biased) as with_bias, capture_weights(plain) as without:
        biased_out, plain_out = read(biased, tokens).hidden, read(plain, tokens).hidden
    assert not torch.allclose(biased_out, plain_out)
    torch.testing.assert_close(read(biased, tokens).hidden, biased_out)  # the fused kernel agrees
    name = next(iter(with_bias))
    slopes = torch.arange(1, 5)[:, None, None]
    distances = (torch.arange(7)[:, None] - torch.arange(7)).abs()
    expected = without[name] * (-slopes * distances).exp()
    torch.testing.assert_close(with_bias[name], expected / expected.sum(-1, keepdim=True))


@torch.no_grad()
def test_a_bias_under_a_cache_knows_the_distances() -> None:
    model, tokens = build("decoder", position=Nearness), ids(2, 9)
    whole, cache = model(tokens).logits, model.new_cache(9)
    pieces = [model(part, cache=cache).logits for part in tokens.split([4, 1, 3, 1], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=1e-5, atol=1e-5)
