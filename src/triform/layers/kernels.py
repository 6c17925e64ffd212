"""Attention itself: from queries, keys and values to what each query read. The kernels agree to rounding."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from triform.layers.masks import AttentionMask


def sdpa(
    q: Float[Tensor, "batch n_heads q_len head_dim"],
    k: Float[Tensor, "batch n_kv_heads kv_len head_dim"],
    v: Float[Tensor, "batch n_kv_heads kv_len head_dim"],
    mask: AttentionMask | None,
    bias: Float[Tensor, "#batch n_heads q_len kv_len"] | None,
    dropout: float,
) -> Float[Tensor, "batch n_heads q_len head_dim"]:
    """PyTorch's fused attention. Memory linear in length unless `dropout` > 0 or a bias is given."""
    q_len, kv_len = q.shape[2], k.shape[2]
    is_causal = mask is not None and bias is None and mask.is_causal_only(q_len, kv_len)
    visible, blind = (None, None) if is_causal else _dense(mask, q_len, kv_len, q.device)
    if bias is not None:
        visible = bias.to(q.dtype) if visible is None else bias.to(q.dtype).where(visible, float("-inf"))
    out = F.scaled_dot_product_attention(q, k, v, visible, dropout, is_causal, enable_gqa=q.shape[1] != k.shape[1])
    return out if blind is None else out.masked_fill(blind, 0)


def eager(
    q: Float[Tensor, "batch n_heads q_len head_dim"],
    k: Float[Tensor, "batch n_kv_heads kv_len head_dim"],
    v: Float[Tensor, "batch n_kv_heads kv_len head_dim"],
    mask: AttentionMask | None,
    bias: Float[Tensor, "#batch n_heads q_len kv_len"] | None,
    dropout: float,
) -> Float[Tensor, "batch n_heads q_len head_dim"]:
    """The formula, softmax(q k^T / sqrt(head_dim)) v, step by step. Memory quadratic in length."""
    return attend(attention_weights(q, k, mask, bias), v, dropout)


def attention_weights(
    q: Float[Tensor, "batch n_heads q_len head_dim"],
    k: Float[Tensor, "batch n_kv_heads kv_len head_dim"],
    mask: AttentionMask | None,
    bias: Float[Tensor, "#batch n_heads q_len kv_len"] | None,
) -> Float[Tensor, "batch n_heads q_len kv_len"]:
    """How much each query reads from each key: rows sum to 1, or are 0 for a query that sees no key."""
    visible, blind = _dense(mask, q.shape[2], k.shape[2], q.device)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)  # query head i reads head i // group size
    scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).float()
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    weights = scores.softmax(dim=-1).to(q.dtype)
    return weights if blind is None else weights.masked_fill(blind, 0)


def attend(
    weights: Float[Tensor, "batch n_heads q_len kv_len"],
    v: Float[Tensor, "batch n_kv_heads kv_len head_dim"],
    dropout: float,
) -> Float[Tensor, "batch n_heads q_len head_dim"]:
    """The weighted mean of the values."""
    v = v.repeat_interleave(weights.shape[1] // v.shape[1], dim=1)
    return F.dropout(weights, dropout) @ v


KERNELS = {"sdpa": sdpa, "eager": eager}


def _dense(
    mask: AttentionMask | None, q_len: int, kv_len: int, device: torch.device
) -> tuple[Bool[Tensor, "#batch 1 #q_len #kv_len"] | None, Bool[Tensor, "#batch 1 #q_len 1"] | None]:
    """The dense mask, and which queries see no key (None: surely none).

    Softmax over no key is 0/0, and a NaN survives masking in the backward pass. Such a query is therefore
    let see every key, and the kernel sets what it read to zero, which also stops its gradient.
    """
    if mask is None:
        return None, None
    # Sizes are compared, not hashed: as keys they would make torch.compile compile anew for every length.
    if "dense" not in mask.derived or mask.derived["dense"][:2] != (q_len, kv_len):
        visible, blind = mask.dense(q_len, kv_len, device), None
        if visible is not None and mask.padding is not None:  # otherwise each query sees itself
            blind = ~visible.any(dim=-1, keepdim=True)
            visible = visible | blind
        mask.derived["dense"] = q_len, kv_len, visible, blind
    return mask.derived["dense"][2:]
