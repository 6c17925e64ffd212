import pytest
import torch
from torch import Tensor

from triform.layers.cache import FixedCache, GrowingCache, KVCache


def projected(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, n, 5), torch.randn(2, 3, n, 5)


def test_growing_cache_returns_every_token_so_far() -> None:
    cache, pieces = GrowingCache(max_len=6), [projected(n) for n in (3, 1, 2)]
    for piece in pieces:
        k, v = cache.through(lambda piece=piece: piece)
    assert cache.length == 6
    assert torch.equal(k, torch.cat([piece[0] for piece in pieces], dim=2))
    assert torch.equal(v, torch.cat([piece[1] for piece in pieces], dim=2))


def test_growing_cache_refuses_more_than_it_holds() -> None:
    cache = GrowingCache(max_len=4)
    cache.through(lambda: projected(3))
    with pytest.raises(ValueError, match="5 tokens are more than its max_len=4"):
        cache.through(lambda: projected(2))


def test_fixed_cache_projects_once() -> None:
    cache = FixedCache()
    first = cache.through(lambda: projected(3))
    assert cache.through(lambda: pytest.fail("projected again")) is first


def test_layers_have_their_own() -> None:
    cache = KVCache(n_layers=2, max_len=4)
    cache.of_layer(0)[0].through(lambda: projected(3))
    assert cache.length == 3
    assert cache.of_layer(1)[0].length == 0
