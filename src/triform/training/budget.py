"""When training ends."""

from dataclasses import dataclass

from triform.data.order import Order
from triform.data.streaming import StreamOrder


@dataclass(frozen=True)
class Budget:
    """The first limit that is reached ends training.

    Args:
        max_steps: optimizer steps.
        max_hours: hours of training and validation, over all resumes; None: no limit.
    """

    max_steps: int
    max_hours: float | None

    def total(self, step: int, seconds: float) -> float:
        """Optimizer steps in all: known, or estimated from the pace so far under a limit in hours."""
        if self.max_hours is None or not step or not seconds:
            return self.max_steps
        return min(self.max_steps, step * self.max_hours * 3600 / seconds)

    def spent(self, step: int, seconds: float) -> bool:
        return step >= self.max_steps or (self.max_hours is not None and seconds >= self.max_hours * 3600)


ENDLESS = 10**9
"""Optimizer steps that no run reaches: what a limit in hours alone stands for."""


def budget(
    order: Order | StreamOrder,
    max_steps: int | None,
    max_epochs: float | None,
    max_tokens: int | None,
    max_hours: float | None,
) -> Budget:
    """Turn the limits of `trainer` into one in optimizer steps and one in hours.

    Raises:
        ValueError: no limit is set, or one is not positive.
    """
    limits = {"max_steps": max_steps, "max_epochs": max_epochs, "max_tokens": max_tokens, "max_hours": max_hours}
    given = {name: value for name, value in limits.items() if value is not None}
    if not given:
        raise ValueError(f"trainer: none of {', '.join(limits)} is set; set one, such as trainer.max_steps=1000")
    for name, value in given.items():
        if value <= 0:
            raise ValueError(f"trainer: {name}={value} is not positive; set trainer.{name} above 0")
    steps = [ENDLESS]
    if max_steps is not None:
        steps.append(max_steps)
    if max_epochs is not None:
        steps.append(order.steps_for(max_epochs))
    if max_tokens is not None:
        steps.append(order.steps_for_tokens(max_tokens))
    return Budget(max(min(steps), 1), max_hours)
