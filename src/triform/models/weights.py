"""Weights that are to fill a model."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def check_weights(model: nn.Module, weights: Mapping[str, Any], where: str) -> None:
    """Refuse weights that are not the model's, before a shape is met that does not fit.

    Args:
        weights: by the names that the model has for them.
        where: they are from.

    Raises:
        ValueError: it names the first parameter that is missing, of another shape, or of no model's.
    """
    for name, value in model.state_dict().items():
        given = weights.get(name)
        if not isinstance(given, Tensor):
            raise ValueError(f"{where} has no {name}, which the model of this config has; put either back as it was")
        if given.shape != value.shape:
            raise ValueError(
                f"{where} has {name} of shape {list(given.shape)}, the model of this config of {list(value.shape)}; "
                "put either back as it was"
            )
    if unknown := sorted(weights.keys() - model.state_dict().keys()):
        raise ValueError(f"{where} has {unknown[0]}, which the model of this config has not; put either back as it was")
