"""What layers keep whose past is of a fixed size, however long it is."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from triform.layers.cache import Cache


class StateCache(Cache):
    """The states of recurrent layers, or what causal convolutions reach back to.

    Args:
        max_len: tokens of a row at most; they take no memory.
    """

    def __init__(self, n_layers: int, max_len: int) -> None:
        self.states: list[Any] = [None] * n_layers
        """Of each layer a tuple of tensors, rows first; None: nothing has been read."""
        self._keys: Tensor | None = None
        self.max_len = max_len
        self._length = 0

    @property
    def length(self) -> int:
        return self._length

    def advance(self, n_new: int) -> None:
        """So many more tokens have been read.

        Raises:
            ValueError: more tokens than `max_len`.
        """
        if (length := self._length + n_new) > self.max_len:
            raise ValueError(
                f"StateCache: {length} tokens are more than max_len={self.max_len}; make one for more: "
                f"new_cache({length})"
            )
        self._length = length

    def keys(self, project: Callable[[], Float[Tensor, "batch src_len width"]]) -> Float[Tensor, "batch src_len width"]:
        """What attention looks for in the memory, projected once."""
        if self._keys is None:
            self._keys = project()
        return self._keys

    def select(
        self, rows: Int[Tensor, " n_rows"], memory_rows: Int[Tensor, " n_memory_rows"] | None, common: int = 0
    ) -> None:
        self.states = [
            None if state is None else tuple(part.index_select(0, rows) for part in state) for state in self.states
        ]
        if self._keys is not None and memory_rows is not None:
            self._keys = self._keys.index_select(0, memory_rows)
