"""What is kept from earlier calls, such as keys and values, so that generating a token costs one token."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

Keys = Float[Tensor, "batch n_kv_heads kv_len head_dim"]
Project = Callable[[], tuple[Tensor, Tensor]]


class Cache(ABC):
    """What a model keeps of the tokens of some rows that it has read."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens held."""

    @abstractmethod
    def select(
        self, rows: Int[Tensor, " n_rows"], memory_rows: Int[Tensor, " n_memory_rows"] | None, common: int = 0
    ) -> None:
        """Row i is henceforth what row `rows[i]` was.

        Args:
            memory_rows: the same for the rows of the memory; None: they stay.
            common: first tokens that a row surely has in common with the one that takes its place, and with whatever
                they were read beside.
        """


class GrowingCache:
    """For self-attention: the keys and values of every token so far.

    Memory for `max_len` tokens is taken at the first use, when shape, type and device are known, and is written in
    place; what is read are views of the part that is filled. With a window too all are kept.
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
        n_new = k.shape[2]
        start, length = self.length, self.length + n_new
        if length > self.max_len:
            raise ValueError(
                f"KVCache: {length} tokens are more than max_len={self.max_len}; make one for more: new_cache({length})"
            )
        if start == 0:
            # Two pieces of memory: as views of one, which a step writes both, torch.compile cannot take them in.
            shape = (*k.shape[:2], self.max_len, k.shape[3])
            self.k, self.v = k.new_empty(shape), v.new_empty(shape)
        self.k.narrow(2, start, n_new).copy_(k)
        self.v.narrow(2, start, n_new).copy_(v)
        self.length = length
        return self.k.narrow(2, 0, length), self.v.narrow(2, 0, length)

    def select(self, rows: Int[Tensor, " n_rows"], moved: Int[Tensor, " n_moved"], common: int) -> None:
        """See `Cache.select`.

        Args:
            moved: those i that are not `rows[i]`; of others nothing is copied, unless there are more rows than before.
        """
        if self.length:
            self.k, self.v = (self._selected(kept, rows, moved, common) for kept in (self.k, self.v))

    def _selected(self, kept: Keys, rows: Tensor, moved: Tensor, common: int) -> Tensor:
        if len(rows) > len(kept):
            more = kept.new_empty((len(rows), *kept.shape[1:]))
            more.narrow(2, 0, self.length).copy_(kept.narrow(2, 0, self.length).index_select(0, rows))
            return more
        if len(moved):
            differing = kept.narrow(2, common, self.length - common)
            differing.index_copy_(0, moved, differing.index_select(0, rows[moved]))
        return kept[: len(rows)]


class FixedCache:
    """For cross-attention: the keys and values of the memory, projected once."""

    def __init__(self) -> None:
        self.kept: tuple[Tensor, Tensor] | None = None

    def through(self, project: Project) -> tuple[Keys, Keys]:
        if self.kept is None:
            self.kept = project()
        return self.kept

    def select(self, rows: Int[Tensor, " n_rows"]) -> None:
        """Row i is henceforth what row `rows[i]` was."""
        if self.kept is not None:
            k, v = self.kept
            self.kept = k.index_select(0, rows), v.index_select(0, rows)


class KVCache(Cache):
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
        return self.self_attention[0].length

    def select(
        self, rows: Int[Tensor, " n_rows"], memory_rows: Int[Tensor, " n_memory_rows"] | None, common: int = 0
    ) -> None:
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
        for cache in self.self_attention:
            cache.select(rows, moved, common)
        if memory_rows is not None:
            for memory_cache in self.cross_attention:
                memory_cache.select(memory_rows)
