from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from triform.layers import kernels
from triform.layers.masks import AttentionMask

BATCH, HEADS, Q_LEN, HEAD_DIM = 2, 6, 7, 5


def inputs(kv_heads: int = HEADS, kv_len: int = Q_LEN) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    q = torch.randn(BATCH, HEADS, Q_LEN, HEAD_DIM, generator=g, requires_grad=True)
    k = torch.randn(BATCH, kv_heads, kv_len, HEAD_DIM, generator=g, requires_grad=True)
    v = torch.randn(BATCH, kv_heads, kv_len, HEAD_DIM, generator=g, requires_grad=True)
    return q, k, v


def naive(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """One query of one head at a time."""
    out = torch.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                scores = torch.einsum("d,kd->k", q[b, h, i], k[b, h // group]) / HEAD_DIM**0.5
                if isinstance(bias, Tensor):
                    scores = scores + bias[0, h, i]
                seen = visible[b, i]
                if seen.any():
                    out[b, h, i] = scores[seen].softmax(0) @ v[b, h // group][seen]
    return out


MASKS = {
    "causal": AttentionMask(causal=True),
    "window": AttentionMask(causal=True, window=3),
    "both sides": AttentionMask(window=4),
    "padding": AttentionMask(padding=torch.arange(Q_LEN) < torch.tensor([[4], [7]])),
    "left padding": AttentionMask(causal=True, padding=torch.arange(Q_LEN) >= torch.tensor([[3], [0]])),
    "documents": AttentionMask(causal=True, documents=torch.tensor([[0] * 3 + [1] * 4, [0] * 5 + [1] * 2])),
    "prefix": AttentionMask(causal=True, prefix_length=torch.tensor([4, 2])),
}


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("kv_heads", [HEADS, 3, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_equals_the_formula(kernel: str, kv_heads: int, mask: str) -> None:
    q, k, v = inputs(kv_heads)
    visible = MASKS[mask].dense(Q_LEN, Q_LEN, q.device)
    assert visible is not None
    expected = naive(q, k, v, visible[:, 0].expand(BATCH, Q_LEN, Q_LEN))
    torch.testing.assert_close(kernels.KERNELS[kernel](q, k, v, MASKS[mask], None, 0.0), expected)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_bias_is_added_to_the_scores(kernel: str) -> None:
    q, k, v = inputs()
    bias = torch.randn(1, HEADS, Q_LEN, Q_LEN, generator=torch.Generator().manual_seed(1))
    visible = torch.ones(Q_LEN, Q_LEN, dtype=torch.bool).tril().expand(BATCH, -1, -1)
    expected = naive(q, k, v, visible, bias)
    out = kernels.KERNELS[kernel](q, k, v, AttentionMask(causal=True), bias, 0.0)
    torch.testing.assert_close(out, expected)
    unmasked = kernels.KERNELS[kernel](q, k, v, None, bias, 0.0)
    torch.testing.assert_close(unmasked, naive(q, k, v, torch.ones_like(visible), bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("mask", [None, "causal", "padding", "left padding"])
def test_a_bias_that_learns_has_the_gradient_that_torch_gives_it(
    mask: str | None, kv_heads: int, dtype: torch.dtype
) -> None:
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in inputs(kv_heads))
    bias = torch.randn(1, HEADS, Q_LEN, Q_LEN, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    visible = torch.ones(BATCH, 1, Q_LEN, Q_LEN, dtype=torch.bool)
    if mask is not None:
        dense = MASKS[mask].dense(Q_LEN, Q_LEN, q.device)
        assert dense is not None
        visible = dense.expand(visible.shape)
    sees = visible.any(-1, keepdim=True)
    added = bias.where(visible | ~sees, float("-inf"))
    expected = F.scaled_dot_product_attention(q, k, v, added, scale=1.3, enable_gqa=True) * sees
    out = kernels.sdpa(q, k, v, None if mask is None else MASKS[mask], bias, 0.0, scale=1.3)
    assert out.dtype == dtype
    torch.testing.assert_close(out, expected)
    ours, theirs = (torch.autograd.grad(x.square().sum(), (q, k, v, bias)) for x in (out, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("mask", [None, "causal", "documents"])
def test_dropout_leaves_out_some_weights_and_enlarges_the_rest(kernel: str, mask: str | None) -> None:
    q, k = torch.randn(BATCH, HEADS, Q_LEN, Q_LEN), torch.randn(BATCH, 3, Q_LEN, Q_LEN)
    of = None if mask is None else MASKS[mask]
    each = torch.eye(Q_LEN).expand(BATCH, 3, -1, -1)  # what is read of these values are the weights
    torch.manual_seed(0)
    out = kernels.KERNELS[kernel](q, k, each, of, None, 0.25)
    weights = kernels.attention_weights(q, k, of, None)
    kept = out != 0
    torch.testing.assert_close(out, weights * kept / 0.75)
    dropped = ~kept[weights != 0]
    assert 0.15 < dropped.float().mean() < 0.35


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_query_that_sees_nothing_reads_zero_and_passes_no_gradient(kernel: str, with_bias: bool) -> None:
    q, k, v = inputs()
    padding = torch.ones(BATCH, Q_LEN, dtype=torch.bool)
    padding[0] = False  # a whole row of padding
    padding[1, :2] = False  # the first two queries of a causal row
    bias = torch.zeros(1, HEADS, Q_LEN, Q_LEN) if with_bias else None
    out = kernels.KERNELS[kernel](q, k, v, AttentionMask(causal=True, padding=padding), bias, 0.0)
    assert out[0].eq(0).all()
    assert out[1, :, :2].eq(0).all()
    assert out[1, :, 2:].ne(0).all()
    out.square().sum().backward()
    for x in (q, k, v):
        assert x.grad is not None
        assert x.grad.isfinite().all()
        assert x.grad[0].eq(0).all()
        assert x.grad[1, :, :2].eq(0).all()


def test_attention_weights_sum_to_one() -> None:
    q, k, _ = inputs(kv_heads=2)
    weights = kernels.attention_weights(q, k, MASKS["left padding"], None)
    torch.testing.assert_close(weights.sum(-1)[0, :, 3:], torch.ones(HEADS, 4))
    assert weights[0, :, :3].eq(0).all()


def test_causal_attention_builds_no_dense_mask() -> None:
    q, k, v = inputs()
    mask = AttentionMask(causal=True)
    kernels.sdpa(q, k, v, mask, None, 0.0)
    assert "dense" not in mask.derived


def test_a_mask_used_for_two_lengths_fits_both() -> None:
    mask = AttentionMask(causal=True, window=2)
    for kv_len in (Q_LEN, Q_LEN + 2):
        q, k, v = inputs(kv_len=kv_len)
        torch.testing.assert_close(kernels.sdpa(q, k, v, mask, None, 0.0), kernels.eager(q, k, v, mask, None, 0.0))


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_half_precision_masks_exactly(kernel: str) -> None:
    """A masked key has weight 0 in bf16 too: changing it changes nothing."""
    q, k, v = (x.detach().bfloat16() for x in inputs())
    mask = AttentionMask(padding=torch.arange(Q_LEN) < torch.tensor([[4], [4]]))
    before = kernels.KERNELS[kernel](q, k, v, mask, None, 0.0)
    v[:, :, 4:], k[:, :, 4:] = 1e4, -1e4
    assert torch.equal(kernels.KERNELS[kernel](q, k, v, mask, None, 0.0), before)


def scored(scale: float | None, softcap: float | None, sinks: Tensor | None) -> Tensor:
    """What queries read under a causal mask, step by step; the first of 6 heads reads key head 0, the last 2."""
    q, k, v = inputs(kv_heads=3)
    out = torch.zeros_like(q)
    for b in range(BATCH):
        for h in range(HEADS):
            for i in range(Q_LEN):
                scores = (k[b, h // 2, : i + 1] @ q[b, h, i]) * (HEAD_DIM**-0.5 if scale is None else scale)
                if softcap is not None:
                    scores = softcap * (scores / softcap).tanh()
                values = v[b, h // 2, : i + 1]
                if sinks is not None:
                    scores = torch.cat((scores, sinks[h : h + 1]))
                    values = torch.cat((values, torch.zeros_like(values[:1])))
                out[b, h, i] = scores.softmax(0) @ values
    return out


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("scale", [None, 1.3])
@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_scores_as_the_formulas_have_them(
    kernel: str, scale: float | None, softcap: float | None, with_sinks: bool
) -> None:
    sinks = torch.linspace(-2, 2, HEADS).requires_grad_() if with_sinks else None
    expected = scored(scale, softcap, sinks)
    padding = torch.ones(BATCH, Q_LEN, dtype=torch.bool)
    for mask in (AttentionMask(causal=True), AttentionMask(causal=True, padding=padding)):
        q, k, v = inputs(kv_heads=3)
        out = kernels.KERNELS[kernel](q, k, v, mask, None, 0.0, scale, softcap, sinks)
        torch.testing.assert_close(out, expected)
        if sinks is not None:
            (ours,) = torch.autograd.grad(out.square().sum(), sinks)
            (theirs,) = torch.autograd.grad(expected.square().sum(), sinks, retain_graph=True)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_sinks_keep_double_precision() -> None:
    q, k, v = (x.double() for x in inputs())
    sinks = torch.randn(HEADS, dtype=torch.double)
    fused, stepwise = (kernel(q, k, v, None, None, 0.0, None, None, sinks) for kernel in kernels.KERNELS.values())
    torch.testing.assert_close(stepwise, fused)


def test_sinks_without_a_mask_and_with_a_bias() -> None:
    q, k, v = inputs()
    sinks, bias = torch.randn(HEADS), torch.randn(1, HEADS, Q_LEN, Q_LEN)
    for b in (None, bias):
        for mask in (None, MASKS["left padding"], MASKS["documents"]):
            one, other = (kernel(q, k, v, mask, b, 0.0, None, None, sinks) for kernel in (kernels.sdpa, kernels.eager))
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_a_large_mask_in_pieces_equals_it_at_once(mask: str, with_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bias = torch.randn(1, HEADS, Q_LEN, Q_LEN, requires_grad=True) if with_bias else None
    sinks = torch.randn(HEADS, requires_grad=True)
    learned = [x for x in (bias, sinks) if x is not None]

    def result() -> list[Tensor]:
        q, k, v = inputs(kv_heads=2)
        out = kernels.sdpa(q, k, v, MASKS[mask], bias, 0.0, None, None, sinks)
        return [out, *torch.autograd.grad(out.square().sum(), [q, k, v, *learned])]

    at_once = result()
    monkeypatch.setattr(kernels, "MAX_MASK", 8)
    monkeypatch.setattr(kernels, "PIECE", 3)
    for piece, whole in zip(result(), at_once, strict=True):
        torch.testing.assert_close(piece, whole)
    q, k, v = inputs(kv_heads=2, kv_len=Q_LEN)
    last = kernels.sdpa(q[:, :, 3:], k, v, MASKS[mask], None, 0.0)  # the newest queries under a cache
    torch.testing.assert_close(last, kernels.eager(q[:, :, 3:], k, v, MASKS[mask], None, 0.0))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("large", [True, False])
def test_a_narrow_window_in_pieces_equals_it_at_once(
    causal: bool, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a query sees nothing; and no mask is as large as all pairs."""
    padding = torch.ones(1, 19, dtype=torch.bool)
    padding[0, :6] = False
    mask = AttentionMask(causal=causal, window=3, padding=padding)
    q, k, v = (torch.randn(1, 2, 19, 5, requires_grad=True) for _ in range(3))
    expected = kernels.eager(q, k, v, mask, None, 0.0)
    monkeypatch.setattr(kernels, "WINDOWED_PIECE", 4)
    monkeypatch.setattr(kernels, "MAX_MASK", 8 if large else 2**22)
    sizes: list[int] = []
    block = AttentionMask.block

    def counted(self: AttentionMask, *spans: Any) -> Tensor | None:
        found = block(self, *spans)
        sizes.append(0 if found is None else found.numel())
        return found

    monkeypatch.setattr(AttentionMask, "block", counted)
    out = kernels.sdpa(q, k, v, mask, None, 0.0)
    torch.testing.assert_close(out, expected)
    for ours, theirs in zip(
        torch.autograd.grad(out.square().sum(), (q, k, v)),
        torch.autograd.grad(expected.square().sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    assert len(sizes) == (10 if large else 5), "each piece once, or again in the backward pass"
    assert max(sizes) == 4 * 6  # queries of a piece, and keys with the two in reach of them


def test_a_piece_looks_only_at_the_keys_it_may_see() -> None:
    causal, window = AttentionMask(causal=True), AttentionMask(causal=True, window=3)
    assert causal.keys_of((4, 6), 9) == (0, 6)
    assert window.keys_of((4, 6), 9) == (2, 6)
    assert AttentionMask(window=4).keys_of((4, 6), 9) == (2, 8)
    assert MASKS["prefix"].keys_of((4, 6), 9) == (0, 9)
    assert AttentionMask(padding=torch.ones(1, 9, dtype=torch.bool)).keys_of((4, 6), 9) == (0, 9)


class Largest(TorchDispatchMode):
    """The numbers in the largest tensor that an operation returns."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, Tensor):
                self.numbers = max(self.numbers, value.numel())
        return out


@pytest.mark.parametrize("kind", ["causal", "padding", "left padding", "window", "both sides", "documents"])
def test_memory_is_linear_in_length(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward nothing is as large as a tenth of all pairs."""
    monkeypatch.setattr(kernels, "MAX_MASK", 64**2)
    monkeypatch.setattr(kernels, "PIECE", 16)
    length, places = 512, torch.arange(512)[None]
    masks = {
        "causal": AttentionMask(causal=True),
        "padding": AttentionMask(padding=places < 500),
        "left padding": AttentionMask(causal=True, padding=places > 5),
        "window": AttentionMask(causal=True, window=16),
        "both sides": AttentionMask(window=16, padding=places < 500),
        "documents": AttentionMask(causal=True, documents=places // 100),
    }
    q, k, v = (torch.randn(1, 1, length, 4, requires_grad=True) for _ in range(3))
    with Largest() as largest:
        kernels.sdpa(q, k, v, masks[kind], None, 0.0).square().sum().backward()
    assert largest.numbers < length**2 / 10
    with Largest() as largest:
        kernels.eager(q, k, v, masks[kind], None, 0.0)
    assert largest.numbers >= length**2
