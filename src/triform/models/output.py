"""What a model returns."""

from functools import cached_property

from jaxtyping import Float
from torch import Tensor, nn


class ModelOutput:
    """Hidden states, and the logits that the head makes of them when they are asked for.

    A loss needs no logits: `head(output.hidden, labels, loss)` takes less memory.
    """

    def __init__(self, hidden: Float[Tensor, "batch seq_len d_model"], head: nn.Module) -> None:
        self.hidden = hidden
        self._head = head

    @cached_property
    def logits(self) -> Float[Tensor, "batch seq_len *n_classes"]:
        return self._head(self.hidden)
