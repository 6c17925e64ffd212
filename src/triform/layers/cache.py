"""Keys and values kept from earlier calls, so that generating a token costs one token."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

Keys = Float[Tensor, "batch n_kv_heads kv_len head_dim"]
Project = Callable[[], tuple[Tensor, Tensor]]


class GrowingCache:
    """For self-attention: the keys and values of every token so far.

    Memory for `max_len` tokens is taken at the first use, when shape, type and device are known.
    """

    def __init__(self, max_len: int) -> None:
        self.max_len = max_len
        self.length = 0

    def through(self, project: Project) -> tuple[Keys, Keys]:
        """Appends the keys and values of the new tokens; returns those of all tokens.

        Raises:
            ValueError: more tokens than `max_len`.
        """
        k, v = project()
        start, self.length = self.length, self.length + k.shape[2]
        if self.length > self.max_len:
            raise ValueError(f"KVCache: {self.length} tokens are more than its max_len={self.max_len}")
        if start == 0:
            shape = (*k.shape[:2], self.max_len, k.shape[3])
            self.k, self.v = k.new_empty(shape), v.new_empty(shape)
        self.k[:, :, start : self.length], self.v[:, :, start : self.length] = k, v
        return self.k[:, :, : self.length], self.v[:, :, : self.length]


class FixedCache:
    """For cross-attention: the keys and values of the memory, projected once."""

    def __init__(self) -> None:
        self.kept: tuple[Tensor, Tensor] | None = None

    def through(self, project: Project) -> tuple[Keys, Keys]:
        if self.kept is None:
            self.kept = project()
        return self.kept


class KVCache:
    """The caches of a stack, one pair a layer.

    Args:
        max_len: tokens it can hold.
    """

    def __init__(self, n_layers: int, max_len: int) -> None:
        self.self_attention = [GrowingCache(max_len) for _ in range(n_layers)]
        self.cross_attention = [FixedCache() for _ in range(n_layers)]

    def of_layer(self, i: int) -> tuple[GrowingCache, FixedCache]:
        return self.self_attention[i], self.cross_attention[i]

    @property
    def length(self) -> int:
        """Tokens held."""
        return self.self_attention[0].length
