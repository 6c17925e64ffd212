from typing import Any

import pytest
import torch
from torch import nn

from triform.layers import kernels
from triform.layers.attention import Attention, capture_weights, head_width
from triform.layers.cache import FixedCache
from triform.layers.masks import AttentionMask

D_MODEL, HEADS, HEAD_DIM = 24, 3, 8


def attention(**changes: Any) -> Attention:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "d_model": D_MODEL,
        "n_heads": HEADS,
        "n_kv_heads": None,
        "head_dim": HEAD_DIM,
        "group_size": 1,
        "bias": True,
        "out_bias": None,
        "qk_norm": None,
        "scale": None,
        "softcap": None,
        "sinks": False,
        "window": None,
        "weights_dropout": 0.0,
        "kernel": "sdpa",
    }
    return Attention(**settings | changes)


def test_equals_torch_multihead_attention() -> None:
    """torch means the opposite by its mask: True = ignore."""
    ours, theirs = attention(), nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in (ours.q_proj, ours.k_proj, ours.v_proj)]))
        theirs.in_proj_bias.copy_(torch.cat([p.bias for p in (ours.q_proj, ours.k_proj, ours.v_proj)]))
        theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
    x, memory = torch.randn(2, 7, D_MODEL), torch.randn(2, 5, D_MODEL)
    padding = torch.arange(5) < torch.tensor([[3], [5]])
    out = ours(x, AttentionMask(causal=True))
    later = torch.ones(7, 7, dtype=torch.bool).triu(1)
    torch.testing.assert_close(out, theirs(x, x, x, attn_mask=later)[0])
    crossed = ours(x, AttentionMask(padding=padding), memory=memory)
    torch.testing.assert_close(crossed, theirs(x, memory, memory, key_padding_mask=~padding)[0])


def test_rows_may_share_a_memory() -> None:
    """As the beams of a search do, with a padded memory, and keys that a cache holds."""
    ours, x, memory = attention(), torch.randn(6, 1, D_MODEL), torch.randn(2, 5, D_MODEL)
    padding = torch.arange(5) < torch.tensor([[5], [3]])
    repeated = AttentionMask(padding=padding.repeat_interleave(3, dim=0))
    apart = ours(x, repeated, memory=memory.repeat_interleave(3, dim=0))
    cache = FixedCache()
    for _ in range(2):
        torch.testing.assert_close(ours(x, AttentionMask(padding=padding), memory=memory, cache=cache), apart)


def test_the_width_of_a_head_is_free() -> None:
    layer = attention(head_dim=5)
    assert layer.q_proj.weight.shape == (15, D_MODEL)
    assert layer.out_proj.weight.shape == (D_MODEL, 15)
    assert layer(torch.randn(2, 7, D_MODEL)).shape == (2, 7, D_MODEL)


def test_grouped_queries_share_keys_in_order() -> None:
    """Query heads 0, 1 read head 0; 2, 3 read head 1: as many heads with each key and value head twice."""
    grouped, full = attention(n_heads=4, n_kv_heads=2, head_dim=6), attention(n_heads=4, head_dim=6)
    full.load_state_dict(
        grouped.state_dict()
        | {
            f"{name}.{kind}": getattr(getattr(grouped, name), kind)
            .unflatten(0, (2, 6))
            .repeat_interleave(2, dim=0)
            .flatten(0, 1)
            for name in ("k_proj", "v_proj")
            for kind in ("weight", "bias")
        }
    )
    x = torch.randn(2, 7, D_MODEL)
    torch.testing.assert_close(grouped(x), full(x))


def test_group_size_counts_where_n_kv_heads_is_not_set() -> None:
    assert attention(n_heads=6, group_size=2).n_kv_heads == 3
    assert attention(n_heads=6, group_size=2, n_kv_heads=1).n_kv_heads == 1


def test_window_hides_the_far_past() -> None:
    layer, x = attention(window=3), torch.randn(2, 7, D_MODEL)
    before = layer(x, AttentionMask(causal=True))
    x[:, 2] += 1
    changed = (layer(x, AttentionMask(causal=True)) != before).any(-1).any(0)
    assert changed.tolist() == [False, False, True, True, True, False, False]


def test_dropout_on_the_weights_is_for_training_only() -> None:
    layer, x = attention(weights_dropout=0.5), torch.randn(2, 7, D_MODEL)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
    torch.testing.assert_close(layer(x), attention()(x))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_kv_heads": 2}, r"n_heads=3 is not a multiple of n_kv_heads=2; set model\.n_kv_heads .* 1 or 3"),
        ({"group_size": 2}, r"n_heads=3 is not a multiple of group_size=2; set model\.attention\.group_size"),
        ({"window": 0}, r"window=0 is less than 1 token; set model\.attention\.window"),
        ({"weights_dropout": 1.0}, r"weights_dropout=1\.0 is no share; set model\.attention\.weights_dropout"),
        ({"kernel": "flash"}, r"kernel='flash' is unknown; set model\.attention\.kernel to sdpa or eager"),
    ],
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        attention(**changes)
    assert "\n" not in str(error.value)


def test_head_width() -> None:
    assert head_width(24, 3, None) == 8
    assert head_width(24, 5, 7) == 7
    with pytest.raises(ValueError, match=r"d_model=512 is not a multiple of n_heads=12; .* such as 8 or 16"):
        head_width(512, 12, None)
    with pytest.raises(ValueError, match=r"n_heads=0 is less than 1; set model\.n_heads"):
        head_width(512, 0, None)
    with pytest.raises(ValueError, match=r"head_dim=0 is less than 1; set model\.head_dim"):
        head_width(512, 8, 0)


def test_capture_weights_shows_what_was_read_and_leaves_no_trace() -> None:
    model = nn.ModuleDict({"first": attention(), "second": attention(n_kv_heads=1)})
    x, mask = torch.randn(2, 7, D_MODEL), AttentionMask(causal=True)
    plain = model["second"](model["first"](x, mask))
    with capture_weights(model) as weights:
        captured = model["second"](model["first"](x, mask))
    torch.testing.assert_close(captured, plain)
    assert {name: seen.shape for name, seen in weights.items()} == {
        "first": (2, HEADS, 7, 7),
        "second": (2, HEADS, 7, 7),
    }
    assert weights["first"].triu(1).eq(0).all()
    torch.testing.assert_close(weights["first"].sum(-1), torch.ones(2, HEADS, 7))
    assert {layer.kernel for layer in model.values()} == {kernels.sdpa}


def test_multi_query_shares_one_head_among_all() -> None:
    assert attention(n_heads=6, group_size=None).n_kv_heads == 1


def test_queries_and_keys_are_normed_by_head_before_the_rotation() -> None:
    seen: list[torch.Tensor] = []

    def rotate(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x

    layer = attention(qk_norm=lambda width: nn.RMSNorm(width, eps=1e-6))
    layer(torch.randn(2, 7, D_MODEL), rotate=rotate)
    assert [tuple(x.shape) for x in seen] == [(2, HEADS, 7, HEAD_DIM)] * 2
    for x in seen:
        torch.testing.assert_close(x.square().mean(-1), torch.ones(2, HEADS, 7), rtol=1e-3, atol=1e-3)
    assert layer.q_norm.weight.shape == (HEAD_DIM,)
    assert layer.q_norm is not layer.k_norm


def test_the_output_projection_may_have_no_bias_of_its_own() -> None:
    layer = attention(bias=True, out_bias=False)
    assert layer.q_proj.bias is not None
    assert layer.out_proj.bias is None
    assert attention(bias=True).out_proj.bias is not None


def test_captured_weights_are_those_of_the_scores_in_use() -> None:
    layer, x = attention(softcap=2.0, sinks=True, scale=0.9), torch.randn(2, 7, D_MODEL)
    nn.init.normal_(layer.sinks)
    mask = AttentionMask(causal=True)
    with capture_weights(layer) as weights:
        out = layer(x, mask)
    torch.testing.assert_close(out, layer(x, mask))
    assert weights[""].sum(-1).lt(1).all()


def test_a_soft_cap_says_once_that_it_is_slower(caplog: pytest.LogCaptureFixture) -> None:
    from triform.layers.attention import _say_once

    _say_once.cache_clear()
    attention(softcap=2.0)
    attention(softcap=3.0)
    assert [record.message for record in caplog.records] == [
        "model.attention.softcap is not fused: attention takes the memory of the eager kernel"
    ]


@pytest.mark.parametrize("name", ["scale", "softcap"])
def test_refuses_a_factor_of_zero(name: str) -> None:
    with pytest.raises(ValueError, match=rf"Attention: {name}=0\.0 is not positive; set model\.attention\.{name}"):
        attention(**{name: 0.0})
