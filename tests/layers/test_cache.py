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
    with pytest.raises(ValueError, match=r"5 tokens are more than max_len=4; make one for more: new_cache\(5\)"):
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


def test_rows_are_selected() -> None:
    """Fewer, the same or more of them; what comes later follows what was."""
    cache = KVCache(n_layers=2, max_len=5)
    own, crossing = cache.of_layer(1)
    (k, v), memory = projected(3), projected(4)
    own.through(lambda: (k, v))
    crossing.through(lambda: memory)
    rows = [0, 1]
    for chosen in ([1, 0], [0, 0, 1, 1, 1], [4, 0], [1]):
        cache.select(torch.tensor(chosen), torch.tensor(chosen))
        rows = [rows[i] for i in chosen]
    assert rows == [1]
    new = torch.randn(1, 3, 1, 5)
    held = own.through(lambda: (new, -new))
    assert torch.equal(held[0], torch.cat((k[rows], new), dim=2))
    assert torch.equal(held[1], torch.cat((v[rows], -new), dim=2))
    kept = crossing.through(lambda: pytest.fail("projected again"))
    assert torch.equal(kept[0], memory[0][rows])
    assert torch.equal(kept[1], memory[1][rows])
    cache.select(torch.tensor([0, 0]), None)
    assert crossing.kept is kept


def test_what_rows_have_in_common_stays() -> None:
    cache = KVCache(n_layers=1, max_len=5)
    k, v = projected(4)
    k[1, :, :2], v[1, :, :2] = k[0, :, :2], v[0, :, :2]
    own = cache.of_layer(0)[0]
    own.through(lambda: (k, v))
    cache.select(torch.tensor([1, 1]), None, common=2)
    assert torch.equal(own.k[:, :, :4], k[[1, 1]])
    assert torch.equal(own.v[:, :, :4], v[[1, 1]])


def test_memory_is_taken_once() -> None:
    cache = KVCache(n_layers=1, max_len=6)
    own = cache.of_layer(0)[0]
    own.through(lambda: projected(2))
    at = own.k.data_ptr()
    for chosen in ([1, 0], [1]):
        cache.select(torch.tensor(chosen), None)
        new = torch.ones(len(chosen), 3, 1, 5)
        assert own.through(lambda new=new: (new, new))[0].data_ptr() == at


def test_an_empty_cache_has_rows_of_any_kind() -> None:
    cache = KVCache(n_layers=1, max_len=3)
    cache.select(torch.tensor([1, 0, 0]), None)
    assert cache.length == 0
