"""Weights that are to fill a model."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def check_weights(
    model: nn.Module, weights: Mapping[str, Any], where: str, shapes: Mapping[str, torch.Size] | None = None
) -> None:
    """Refuse weights that are not the model's, before a shape is met that does not fit.

    Args:
        weights: by the names that the model has for them.
        where: they are from.
        shapes: of the model's parameters, where it holds parts of them; None: as it has them.

    Raises:
        ValueError: it names the first parameter that is missing, of another shape, or of no model's.
    """
    if shapes is None:
        shapes = {name: value.shape for name, value in model.state_dict().items()}
    for name, shape in shapes.items():
        given: Any = weights.get(name)
        if not hasattr(given, "shape"):  # a tensor, or what is read as one
            raise ValueError(f"{where} has no {name}, which the model of this config has; put either back as it was")
        if given.shape != shape:
            raise ValueError(
                f"{where} has {name} of shape {list(given.shape)}, the model of this config of {list(shape)}; "
                "put either back as it was"
            )
    if unknown := sorted(weights.keys() - shapes.keys()):
        raise ValueError(f"{where} has {unknown[0]}, which the model of this config has not; put either back as it was")
