"""Attention itself: from queries, keys and values to what each query read. The kernels agree to rounding.

All take the same arguments:

    scale: what scores are multiplied by; None: 1 / sqrt(head_dim).
    softcap: scores s become softcap * tanh(s / softcap), before bias and mask (Gemma Team 2024,
        https://arxiv.org/abs/2408.00118, section 2). None: they stay.
    sinks: a score for each query head that takes part in its softmax but stands for no key, so that a head may
        read little or nothing (gpt-oss; Xiao et al. 2024, https://arxiv.org/abs/2309.17453). None: no such score.
"""

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from triform.layers.dropout import dropout as dropped
from triform.layers.masks import AttentionMask, Span

# Pairs of a query and a key that a mask may spell out at once, and the queries of a piece of a larger one.
MAX_MASK = 2**22
PIECE = 512
# Queries of a piece under a window, on a CPU, where skipping keys out of reach gains more than small products lose.
WINDOWED_PIECE = 64


def sdpa(
    q: Float[Tensor, "batch n_heads q_len head_dim"],
    k: Float[Tensor, "batch n_kv_heads kv_len head_dim"],
    v: Float[Tensor, "batch n_kv_heads kv_len head_dim"],
    mask: AttentionMask | None,
    bias: Float[Tensor, "#batch n_heads q_len kv_len"] | None,
    dropout: float,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " n_heads"] | None = None,
) -> Float[Tensor, "batch n_heads q_len head_dim"]:
    """PyTorch's fused attention. Memory linear in length unless `dropout` > 0 or a bias or `softcap` is given.

    Where PyTorch does not fuse (on a CPU with `dropout` > 0 or a bias that learns, and with `softcap`), this is the
    formula step by step as in `eager`, in less time than by the steps that PyTorch takes.

    A mask of more than `MAX_MASK` pairs is spelled out for `PIECE` queries at a time, in the forward pass and
    again in the backward pass, together with the keys that they may see. On a CPU a window of less than half the row
    is taken `WINDOWED_PIECE` queries at a time. Not so under torch.compile, where the number of pieces would have to be
    fixed.
    """
    if softcap is not None:
        return eager(q, k, v, mask, bias, dropout, scale, softcap, sinks)
    q_len, kv_len = q.shape[2], k.shape[2]
    if mask is not None and bias is None and mask.is_causal_only(q_len, kv_len) and _fuses(q, bias, dropout):
        return _fused(q, k, v, None, dropout, True, scale, sinks)
    if torch.compiler.is_compiling() or mask is None or mask.is_flat(q_len, kv_len):
        return _masked(q, k, v, *_dense(mask, q_len, kv_len, q.device), bias, dropout, scale, sinks)
    size, n_pairs = PIECE, q_len * kv_len
    if mask.reach is not None and not q.is_cuda and 2 * (mask.reach + WINDOWED_PIECE) <= kv_len:
        size, n_pairs = WINDOWED_PIECE, q_len * (mask.reach + WINDOWED_PIECE)
    if q_len <= size or (size == PIECE and n_pairs <= MAX_MASK):
        return _masked(q, k, v, *_dense(mask, q_len, kv_len, q.device), bias, dropout, scale, sinks)
    pieces = []
    for start in range(0, q_len, size):
        queries = kv_len - q_len + start, kv_len - q_len + min(start + size, q_len)
        piece = partial(_piece, mask, queries, mask.keys_of(queries, kv_len), kv_len - q_len, dropout, scale)
        if n_pairs <= MAX_MASK:
            pieces.append(piece(q, k, v, bias, sinks))
        else:
            pieces.append(checkpoint(piece, q, k, v, bias, sinks, use_reentrant=False, preserve_rng_state=dropout > 0))
    return torch.cat(pieces, dim=2)


def eager(
    q: Float[Tensor, "batch n_heads q_len head_dim"],
    k: Float[Tensor, "batch n_kv_heads kv_len head_dim"],
    v: Float[Tensor, "batch n_kv_heads kv_len head_dim"],
    mask: AttentionMask | None,
    bias: Float[Tensor, "#batch n_heads q_len kv_len"] | None,
    dropout: float,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " n_heads"] | None = None,
) -> Float[Tensor, "batch n_heads q_len head_dim"]:
    """The formula, softmax(q k^T / sqrt(head_dim)) v, step by step. Memory quadratic in length."""
    return attend(attention_weights(q, k, mask, bias, scale, softcap, sinks), v, dropout)


def attention_weights(
    q: Float[Tensor, "batch n_heads q_len head_dim"],
    k: Float[Tensor, "batch n_kv_heads kv_len head_dim"],
    mask: AttentionMask | None,
    bias: Float[Tensor, "#batch n_heads q_len kv_len"] | None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " n_heads"] | None = None,
) -> Float[Tensor, "batch n_heads q_len kv_len"]:
    """How much each query reads from each key.

    Rows sum to 1, with `sinks` to less, and are 0 for a query that sees no key.
    """
    visible, blind = _dense(mask, q.shape[2], k.shape[2], q.device)
    weights = _weights(q, k, visible, bias, scale, softcap, sinks)
    return weights if blind is None else weights.masked_fill(blind, 0)


def _weights(
    q: Tensor,
    k: Tensor,
    visible: Tensor | None,
    bias: Tensor | None,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """As in `attention_weights`, where each query sees a key; in few passes over the scores, the largest tensor."""
    factor = _scale(q, scale)
    scores = (q if factor == 1 else q * factor) @ _of_each_head(k, q).transpose(-2, -1)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if visible is not None:
        unseen = torch.zeros(visible.shape, device=q.device).masked_fill_(~visible, float("-inf"))
        bias = unseen if bias is None else bias + unseen
    if bias is not None:
        scores += bias
    if sinks is not None:
        sink = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, sink), dim=-1)
    return scores.softmax(dim=-1).to(q.dtype)[..., : k.shape[2]]


def attend(
    weights: Float[Tensor, "batch n_heads q_len kv_len"],
    v: Float[Tensor, "batch n_kv_heads kv_len head_dim"],
    dropout: float,
) -> Float[Tensor, "batch n_heads q_len head_dim"]:
    """The weighted mean of the values."""
    return (dropped(weights, dropout) if dropout > 0 else weights) @ _of_each_head(v, weights)


KERNELS = {"sdpa": sdpa, "eager": eager}


def _of_each_head(k: Tensor, q: Tensor) -> Tensor:
    """The keys or values of each query head: head i reads head i // group size."""
    return k if k.shape[1] == q.shape[1] else k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)


def _scale(q: Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def _piece(
    mask: AttentionMask,
    queries: Span,
    keys: Span,
    offset: int,
    dropout: float,
    scale: float | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
) -> Tensor:
    """What some queries read from the keys that they may see; `offset`: place in the row of the first query."""
    rows, columns = slice(queries[0] - offset, queries[1] - offset), slice(*keys)
    visible, blind = _unblinded(mask, mask.block(queries, keys, k.shape[2], q.device))
    q, k, v = q[:, :, rows], k[:, :, columns], v[:, :, columns]
    bias = None if bias is None else bias[:, :, rows, columns]
    return _masked(q, k, v, visible, blind, bias, dropout, scale, sinks)


def _masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor | None,
    blind: Tensor | None,
    bias: Tensor | None,
    dropout: float,
    scale: float | None,
    sinks: Tensor | None,
) -> Tensor:
    if _fuses(q, bias, dropout):
        if bias is not None:
            visible = bias.to(q.dtype) if visible is None else bias.to(q.dtype).where(visible, float("-inf"))
        out = _fused(q, k, v, visible, dropout, False, scale, sinks)
    else:
        out = attend(_weights(q, k, visible, bias, scale, None, sinks), v, dropout)
    return out if blind is None else out.masked_fill(blind, 0)


def _fuses(q: Tensor, bias: Tensor | None, dropout: float) -> bool:
    """Whether PyTorch has one kernel for this."""
    return q.device.type != "cpu" or not (dropout > 0 or (bias is not None and bias.requires_grad))


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    sinks: Tensor | None,
) -> Tensor:
    scale, grouped = _scale(q, scale), q.shape[1] != k.shape[1]
    if sinks is None and grouped and q.shape[2] == 1 and (visible is None or visible.shape[1] == 1):
        # One query, as in generating: those that share a head's keys are read as queries of it, and nothing repeats.
        queries = q.reshape(q.shape[0], k.shape[1], -1, q.shape[3])
        return F.scaled_dot_product_attention(queries, k, v, visible, dropout, scale=scale).reshape(q.shape)
    if sinks is None:
        return F.scaled_dot_product_attention(q, k, v, visible, dropout, is_causal, scale=scale, enable_gqa=grouped)
    # A sink is one more key, with value 0: an axis of its own, on which it alone is not 0, gives it its score.
    # As a bias that learns it would take the fused kernel away.
    width = q.shape[-1]
    axis = (sinks / scale).to(q.dtype)[None, :, None, None].expand(*q.shape[:3], 1)
    key = F.pad(torch.zeros_like(k[:, :, :1]), (0, 1), value=1.0)
    q, k, v = torch.cat((q, axis), dim=-1), torch.cat((key, F.pad(k, (0, 1))), dim=2), F.pad(v, (0, 1, 1, 0))
    if is_causal:
        q = F.pad(q, (0, 0, 1, 0))  # a query before the first, so that the triangle stays square
    elif visible is not None:
        visible = F.pad(visible, (1, 0), value=True if visible.dtype == torch.bool else 0.0)
    out = F.scaled_dot_product_attention(q, k, v, visible, dropout, is_causal, scale=scale, enable_gqa=grouped)
    return out[:, :, int(is_causal) :, :width]


def _dense(
    mask: AttentionMask | None, q_len: int, kv_len: int, device: torch.device
) -> tuple[Bool[Tensor, "#batch 1 #q_len #kv_len"] | None, Bool[Tensor, "#batch 1 #q_len 1"] | None]:
    """The dense mask, and which queries see no key (None: surely none), once for all layers of a stack."""
    if mask is None:
        return None, None
    # Sizes are compared, not hashed: as keys they would make torch.compile compile anew for every length.
    if "dense" not in mask.derived or mask.derived["dense"][:2] != (q_len, kv_len):
        mask.derived["dense"] = q_len, kv_len, *_unblinded(mask, mask.dense(q_len, kv_len, device))
    return mask.derived["dense"][2:]


def _unblinded(mask: AttentionMask, visible: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The dense mask without queries that see no key, and which those were (None: surely none).

    Softmax over no key is 0/0, and a NaN survives masking in the backward pass. Such a query is therefore
    let see every key, and the kernel sets what it read to zero, which also stops its gradient.
    """
    if visible is None or mask.padding is None:  # without padding each query sees itself
        return visible, None
    blind = ~visible.any(dim=-1, keepdim=True)
    return visible | blind, blind
