"""Attention with several heads, and a look at its weights."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from triform.layers import kernels
from triform.layers.cache import FixedCache, GrowingCache
from triform.layers.joined import Joined
from triform.layers.masks import AttentionMask
from triform.layers.position.base import Rotate, unrotated
from triform.layers.tensor_parallel import Ranks


class Attention(nn.Module):
    """Scaled dot-product attention with several heads.

    Vaswani et al. 2017, section 3.2.2; grouped queries: Ainslie et al. 2023
    (https://arxiv.org/abs/2305.13245); window: Beltagy et al. 2020, section 3.1, unlike the paper without
    dilation and global tokens. Unlike the paper (Vaswani et al.) no projection need have a bias.
    Norm of queries and keys: Henry et al. 2020 (https://arxiv.org/abs/2010.04245), Qwen3, Gemma 3.

    Args:
        n_kv_heads: divides `n_heads`; query head i reads head i // (n_heads / n_kv_heads).
            None: `n_heads // group_size`.
        head_dim: width of a head; `n_heads * head_dim` may differ from `d_model`.
        group_size: query heads that share a key/value head where `n_kv_heads` is None; divides `n_heads`.
            None: all share one (multi-query: Shazeer 2019, https://arxiv.org/abs/1911.02150).
        bias: whether the projections have one.
        out_bias: whether the output projection has one (Qwen2 has it on the others only); None: as `bias`.
        qk_norm: builds a norm of width `head_dim` for the queries and one for the keys, each the same for all
            heads, applied before the rotation. None: no norm.
        scale: what scores are multiplied by; None: 1 / sqrt(head_dim).
        softcap: bound that scores approach smoothly (see `kernels`), above 0; not fused. None: no bound.
        sinks: a learned score in each head's softmax that stands for no key (see `kernels`), at first 0.
        window: see `AttentionMask`; at least 1. None: all. No meaning in cross-attention.
        weights_dropout: share of the attention weights set to zero in training.
        kernel: `sdpa` or `eager`.

    Raises:
        ValueError: `n_kv_heads` or `group_size` does not divide `n_heads`, `window` < 1,
            `weights_dropout` outside [0, 1), `scale` or `softcap` <= 0, or an unknown `kernel`.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None,
        head_dim: int,
        *,
        group_size: int | None,
        bias: bool,
        out_bias: bool | None,
        qk_norm: Callable[[int], nn.Module] | None,
        scale: float | None,
        softcap: float | None,
        sinks: bool,
        window: int | None,
        weights_dropout: float,
        kernel: str,
    ) -> None:
        super().__init__()
        if n_kv_heads is None:
            group_size = n_heads if group_size is None else group_size
            if group_size < 1 or n_heads % group_size:
                raise ValueError(
                    f"Attention: n_heads={n_heads} is not a multiple of group_size={group_size}; set "
                    f"model.attention.group_size or model.n_kv_heads to a divisor of model.n_heads"
                )
            n_kv_heads = n_heads // group_size
        if n_kv_heads < 1 or n_heads % n_kv_heads:
            raise ValueError(
                f"Attention: n_heads={n_heads} is not a multiple of n_kv_heads={n_kv_heads}; set "
                f"model.n_kv_heads to a divisor of model.n_heads, such as {_divisors(n_heads)}"
            )
        if window is not None and window < 1:
            raise ValueError(
                f"Attention: window={window} is less than 1 token; set model.attention.window to at least 1, "
                f"or to null for no window"
            )
        if not 0 <= weights_dropout < 1:
            raise ValueError(
                f"Attention: weights_dropout={weights_dropout} is no share; set "
                f"model.attention.weights_dropout to at least 0 and less than 1"
            )
        for name, value in {"scale": scale, "softcap": softcap}.items():
            if value is not None and value <= 0:
                raise ValueError(
                    f"Attention: {name}={value} is not positive; set model.attention.{name} above 0, or to null"
                )
        if kernel not in kernels.KERNELS:
            raise ValueError(
                f"Attention: kernel={kernel!r} is unknown; set model.attention.kernel to {' or '.join(kernels.KERNELS)}"
            )
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, head_dim
        self.window = window
        self.weights_dropout = weights_dropout
        self.scale = head_dim**-0.5 if scale is None else scale
        self.softcap = softcap
        self.kernel = kernels.KERNELS[kernel]
        if softcap is not None and kernel == "sdpa":
            _say_once("model.attention.softcap is not fused: attention takes the memory of the eager kernel")
        self.q_proj = nn.Linear(d_model, n_heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(d_model, n_kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(d_model, n_kv_heads * head_dim, bias=bias)
        self.out_proj = nn.Linear(n_heads * head_dim, d_model, bias=bias if out_bias is None else out_bias)
        self.q_norm = nn.Identity() if qk_norm is None else qk_norm(head_dim)
        self.k_norm = nn.Identity() if qk_norm is None else qk_norm(head_dim)
        self.sinks = nn.Parameter(torch.zeros(n_heads)) if sinks else None
        self.joined: Joined | None = None

    def forward(
        self,
        x: Float[Tensor, "batch q_len d_model"],
        mask: AttentionMask | None = None,
        rotate: Rotate = unrotated,
        bias: Float[Tensor, "#batch n_heads q_len kv_len"] | None = None,
        memory: Float[Tensor, "sources src_len d_model"] | None = None,
        cache: GrowingCache | FixedCache | None = None,
    ) -> Float[Tensor, "batch q_len d_model"]:
        """Self-attention, or attention to `memory` where it is given.

        Several rows, next to each other, may read the same row of the memory, as the beams of a search do.
        """
        if memory is not None and len(memory) < len(x):  # queries of one row: what is read has no distance to them
            queries = x.reshape(len(memory), -1, x.shape[-1])
            return self.forward(queries, mask, rotate, bias, memory, cache).view(x.shape)
        source = x if memory is None else memory

        def project() -> tuple[Tensor, Tensor]:
            return rotate(self.k_norm(self._split(self.k_proj(source)))), self._split(self.v_proj(source))

        if self.joined is None:
            q = rotate(self.q_norm(self._split(self.q_proj(x))))
            k, v = project() if cache is None else cache.through(project)
        else:
            q, k, v = self._project_at_once(x, rotate)
            k, v = (k, v) if cache is None else cache.through(lambda: (k, v))
        mask = mask if mask is None else mask.within(self.window)
        dropout = self.weights_dropout if self.training else 0.0
        out = self.kernel(q, k, v, mask, bias, dropout, self.scale, self.softcap, self.sinks)
        return self.out_proj(out.transpose(1, 2).flatten(2))

    @property
    def projections(self) -> tuple[nn.Module, ...]:
        """Those of the input, which may be joined."""
        return self.q_proj, self.k_proj, self.v_proj

    def _project_at_once(self, x: Tensor, rotate: Rotate) -> tuple[Tensor, Tensor, Tensor]:
        assert self.joined is not None
        heads = self._split(self.joined(x))
        q_k, v = heads.split((self.n_heads + self.n_kv_heads, self.n_kv_heads), dim=1)
        if isinstance(self.q_norm, nn.Identity):
            return (*rotate(q_k).split((self.n_heads, self.n_kv_heads), dim=1), v)
        q, k = q_k.split((self.n_heads, self.n_kv_heads), dim=1)
        return rotate(self.q_norm(q)), rotate(self.k_norm(k)), v

    def share(self, ranks: Ranks) -> None:
        """Each rank has some of the heads.

        Raises:
            ValueError: the ranks do not divide `n_heads` or `n_kv_heads`.
        """
        self.n_heads = ranks.divide(self, "n_heads", self.n_heads, "model.n_heads")
        self.n_kv_heads = ranks.divide(self, "n_kv_heads", self.n_kv_heads, "model.n_kv_heads")
        ranks.columns(self, "q_proj", "k_proj", "v_proj")
        ranks.rows(self, "out_proj")
        ranks.cut(self, "sinks", 0)
        ranks.sums(self.q_norm, self.k_norm)
        ranks.enters(self, ("x", "memory"), heads="bias", noisy=self.weights_dropout > 0)

    def initialise_parameter(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """Sinks begin at 0: as a key whose score is 0."""
        value.zero_()

    def _split(self, x: Float[Tensor, "batch seq_len width"]) -> Float[Tensor, "batch heads seq_len {self.head_dim}"]:
        return x.view(*x.shape[:-1], x.shape[-1] // self.head_dim, self.head_dim).transpose(1, 2)


@contextmanager
def capture_weights(model: nn.Module) -> Iterator[dict[str, Float[Tensor, "batch n_heads q_len kv_len"]]]:
    """The attention weights of the forward passes made inside, by the qualified name of the layer.

    Within it every `Attention` of `model` computes its weights openly, before any dropout; a second forward
    pass replaces those of the first. Memory is quadratic in length.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, Attention)}
    weights: dict[str, Tensor] = {}

    def record(
        name: str,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: AttentionMask | None,
        bias: Tensor | None,
        dropout: float,
        *scoring: Any,
    ) -> Tensor:
        seen = kernels.attention_weights(q, k, mask, bias, *scoring)
        weights[name] = seen.detach()
        return kernels.attend(seen, v, dropout)

    before = {name: layer.kernel for name, layer in layers.items()}
    try:
        for name, layer in layers.items():
            layer.kernel = partial(record, name)
        yield weights
    finally:
        for name, layer in layers.items():
            layer.kernel = before[name]


def head_width(d_model: int, n_heads: int, head_dim: int | None) -> int:
    """`head_dim`, or where it is None `d_model / n_heads`.

    Raises:
        ValueError: `n_heads` < 1, `head_dim` < 1, or `n_heads` does not divide `d_model`.
    """
    if n_heads < 1:
        raise ValueError(f"Attention: n_heads={n_heads} is less than 1; set model.n_heads to at least 1")
    if head_dim is None:
        if d_model % n_heads:
            raise ValueError(
                f"Attention: d_model={d_model} is not a multiple of n_heads={n_heads}; set model.n_heads to a "
                f"divisor of model.d_model, such as {_divisors(d_model, near=n_heads)}, or set model.head_dim"
            )
        return d_model // n_heads
    if head_dim < 1:
        raise ValueError(f"Attention: head_dim={head_dim} is less than 1; set model.head_dim to at least 1")
    return head_dim


def _divisors(number: int, near: int = 1) -> str:
    """The divisors next to `near`, such as "8 or 16"."""
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    below = [n for n in divisors if n <= near][-1:]
    above = [n for n in divisors if n > near][:1]
    return " or ".join(str(n) for n in below + above)


@cache
def _say_once(text: str) -> None:
    logging.getLogger(__name__).warning(text)
