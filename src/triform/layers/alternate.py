"""Layers of two kinds of attention in one stack."""

from collections.abc import Callable
from typing import Any

NO_POSITION = "none"


class Alternate:
    """Every `every`-th layer attends to all, the others to their neighbourhood.

    ModernBERT: every 3, first 0; Gemma 3: every 6, first 5; Gemma 2 and gpt-oss: every 2, first 1. A stack asks
    for the factory of each of its layers, and for how positions rotate its queries and keys.

    Args:
        local: builds the attention of most layers, as `full` that of the others.
        every: layers from one with full attention to the next, at least 1.
        first: the first with full attention, counted from 0, less than `every`.
        local_theta: base of the rotary wavelengths in local layers, without the scaling of `model.position`;
            None: positions as everywhere; "none": no positions (NoPE; Kazemnejad et al. 2023,
            https://arxiv.org/abs/2305.19466).
        full_theta: the same for the other layers.

    Raises:
        ValueError: `every` < 1, `first` outside [0, every), or a theta that is neither above 1 nor "none".
    """

    def __init__(
        self,
        *,
        local: Callable[..., Any],
        full: Callable[..., Any],
        every: int,
        first: int,
        local_theta: float | str | None,
        full_theta: float | str | None,
    ) -> None:
        if every < 1:
            raise ValueError(f"Alternate: every={every} is less than 1 layer; set model.attention.every to at least 1")
        if not 0 <= first < every:
            raise ValueError(
                f"Alternate: first={first} is not among the first every={every} layers; set model.attention.first "
                f"to at least 0 and at most {every - 1}"
            )
        for name, theta in {"local_theta": local_theta, "full_theta": full_theta}.items():
            wrong = theta != NO_POSITION if isinstance(theta, str) else theta is not None and theta <= 1
            if wrong:
                raise ValueError(
                    f"Alternate: {name}={theta} is no base of wavelengths; set model.attention.{name} above 1, to "
                    f"null (as model.position) or to {NO_POSITION} (no positions)"
                )
        self.local, self.full = local, full
        self.every, self.first = every, first
        self.local_theta, self.full_theta = local_theta, full_theta

    def is_full(self, layer: int) -> bool:
        return layer % self.every == self.first

    def at_layer(self, layer: int) -> Callable[..., Any]:
        """What builds the attention of a layer, counted from 0."""
        return self.full if self.is_full(layer) else self.local

    def theta_at(self, layer: int) -> float | str | None:
        """Base of the rotary wavelengths of a layer; see `local_theta`."""
        return self.full_theta if self.is_full(layer) else self.local_theta
