"""Which keys a query may attend to, described rather than spelled out.

Every mask of triform begins here. It is made dense only inside an attention kernel, so that a kernel
that needs no dense mask (plain causal attention) never builds one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Span = tuple[int, int]
"""First and behind the last of some tokens, by their place in the row."""


@dataclass(frozen=True, eq=False)
class AttentionMask:
    """The conditions under which a query sees a key; a key is seen if all of them hold.

    The queries are the last `q_len` of the `kv_len` tokens that the keys stand for: all of them in
    training, the newest ones under a cache. (In cross-attention only `padding` has a meaning.)

    Args:
        causal: a query sees no later key.
        window: with `causal`, a query sees this many keys, itself included (Mistral, Gemma); without,
            itself and `window // 2` keys on each side (ModernBERT). None: all.
        prefix_length: with `causal`, every query also sees this many first tokens of its row, so that a
            prefix is read both ways (Raffel et al. 2020, section 3.2.1). Padding on the left counts. Of packed
            documents, (batch, kv_len): for each key, where in the row the prefix of its document ends.
        padding: True for real tokens; a query sees no padding.
        documents: a query sees keys with its own number only (several documents packed in a row).
    """

    causal: bool = False
    window: int | None = None
    prefix_length: Int[Tensor, " batch"] | Int[Tensor, "batch kv_len"] | None = None
    padding: Bool[Tensor, "batch kv_len"] | None = None
    documents: Int[Tensor, "batch kv_len"] | None = None
    # What was derived from this mask once for all layers of a stack: windows of it, dense forms.
    derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __and__(self, other: "AttentionMask") -> "AttentionMask":
        """The mask that lets through what both let through.

        Raises:
            ValueError: both number documents.
        """
        if self.documents is not None and other.documents is not None:
            raise ValueError("AttentionMask: both masks number documents; number them in one")
        if self.causal and other.causal and (self.prefix_length is None or other.prefix_length is None):
            prefix_length = None  # causal without a prefix is the stricter one
        else:
            prefix_length = _both(torch.minimum, self.prefix_length, other.prefix_length)
        return AttentionMask(
            causal=self.causal or other.causal,
            window=_both(min, self.window, other.window),
            prefix_length=prefix_length,
            padding=_both(torch.logical_and, self.padding, other.padding),
            documents=self.documents if self.documents is not None else other.documents,
        )

    def within(self, window: int | None) -> "AttentionMask":
        """This mask and a window, the same object for every layer that asks for the same window."""
        if window is None:
            return self
        if window not in self.derived:
            self.derived[window] = self & AttentionMask(window=window)
        return self.derived[window]

    @property
    def reach(self) -> int | None:
        """The distance of the furthest key in the window, in tokens; None: no window."""
        if self.window is None:
            return None
        return self.window - 1 if self.causal else self.window // 2

    def is_causal_only(self, q_len: int, kv_len: int) -> bool:
        """Whether this is the lower triangle of a square and nothing else."""
        # Sizes are compared in a condition, not returned: they are symbols while torch.compile traces.
        if q_len != kv_len or q_len == 1 or (self.reach is not None and self.reach < kv_len - 1):
            return False
        return self.causal and self.prefix_length is self.padding is self.documents is None

    def is_flat(self, q_len: int, kv_len: int) -> bool:
        """Whether every query sees the same keys, so that the dense form is linear in length."""
        if self.documents is not None or (self.reach is not None and self.reach < kv_len - 1):
            return False
        return not self.causal or q_len == 1

    def dense(self, q_len: int, kv_len: int, device: torch.device) -> Bool[Tensor, "#batch 1 #q_len #kv_len"] | None:
        """True where a query may attend to a key; None if every query may attend to every key."""
        return self.block((kv_len - q_len, kv_len), (0, kv_len), kv_len, device)

    def keys_of(self, queries: Span, kv_len: int) -> Span:
        """The keys beyond which these queries surely see none, as far as the lengths alone tell."""
        first = 0 if self.reach is None else max(0, queries[0] - self.reach)
        last = kv_len if self.reach is None else min(kv_len, queries[1] + self.reach)
        return first, queries[1] if self.causal and self.prefix_length is None else last

    def block(
        self, queries: Span, keys: Span, kv_len: int, device: torch.device
    ) -> Bool[Tensor, "#batch 1 #q_len #kv_len"] | None:
        """The part of the dense form where some queries meet some keys, both given by their place in the row."""
        columns = torch.arange(*keys, device=device)
        rows = torch.arange(*queries, device=device)[:, None]
        conditions = []
        if self.causal and queries[1] - queries[0] > 1:
            visible = (columns <= rows)[None, None]
            if self.prefix_length is not None:
                ends = self.prefix_length
                ends = ends[:, None] if ends.dim() == 1 else ends[:, keys[0] : keys[1]]
                visible = visible | (columns < ends)[:, None, None]
            conditions.append(visible)
        if self.reach is not None and self.reach < kv_len - 1:
            conditions.append(((rows - columns).abs() <= self.reach)[None, None])
        if self.padding is not None:
            conditions.append(self.padding[:, None, None, keys[0] : keys[1]])
        if self.documents is not None:
            own, others = self.documents[:, queries[0] : queries[1]], self.documents[:, keys[0] : keys[1]]
            conditions.append((own[:, :, None] == others[:, None, :])[:, None])
        return reduce(torch.logical_and, conditions) if conditions else None


def _both(combine: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """`combine(a, b)`, or the one that is not None."""
    return b if a is None else a if b is None else combine(a, b)
