"""Weights from the names and shapes of `transformers` to triform's, and back."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from triform.interop.architecture import Architecture, Settings, Weights, canonical, partners

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Types of weights; what is narrower is quantised, and has scales besides."""


def to_ours(
    architecture: Architecture, model: nn.Module, config: Settings, weights: Weights, where: str
) -> dict[str, Tensor]:
    """The parameters of `model` by name, as they are stored.

    Args:
        model: on any device, also "meta"; only its shapes are read.
        where: the weights are from, for messages.

    Raises:
        ValueError: a tensor is missing, has another shape, has no place here, or is not finite, or two that must
            be equal are not.
    """
    names = canonical(architecture, list(weights), config)
    copies = architecture.copies(model, config)
    taken: dict[str, str] = {}  # from which name of the file each of theirs is
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    found: dict[str, Tensor] = {}
    for theirs, ours, join in partners(model, architecture.pairs(model, config)):
        spellings = [theirs, *(copy for copy, of in copies.items() if of == theirs)]
        stored = next((names.pop(name) for name in spellings if name in names), None)
        if stored is None:
            raise ValueError(
                f"{where} has no {theirs}, which {architecture.name} has; fetch it again, or take "
                f"a file of {architecture.classes[0]}"
            )
        taken[theirs] = stored
        tensor = weights[stored]
        parts = [torch.empty(shapes[name], device="meta") for name in ours]
        expected = join.theirs(parts).shape
        if tensor.shape != expected:
            raise ValueError(
                f"{where} has {stored} of shape {list(tensor.shape)}, by {config.where} it is {list(expected)}; "
                "fetch both again"
            )
        if tensor.dtype not in FLOATING:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ValueError(
                f"{where} has {stored} as {kind}, which is not supported; supported: float64, float32, bfloat16 and "
                "float16"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{where} has numbers in {stored} that are not finite; fetch it again, or train it anew")
        found |= dict(zip(ours, join.ours(tensor, [shapes[name] for name in ours]), strict=True))
    for copy, of in copies.items():
        stored = names.pop(copy, None)
        if stored is not None and not torch.equal(weights[stored], weights[taken[of]]):
            raise ValueError(
                f"{where}: {stored} differs from {taken[of]}, which {config.where} says it repeats; set "
                "tie_word_embeddings to false there if both were trained"
            )
    for constant in architecture.constants(model, config):
        names.pop(constant, None)
    if names:
        unknown = next(iter(names.values()))
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise ValueError(
            f"{where} has {unknown}{more}, for which {architecture.name} as {config.where} describes it has no place"
        )
    return found


def to_theirs(architecture: Architecture, model: nn.Module, config: Settings) -> dict[str, Tensor]:
    """The tensors of a file that `transformers` reads.

    Raises:
        LookupError: the architecture has no place for a parameter.
    """
    parameters: Mapping[str, Tensor] = dict(model.named_parameters())
    tensors = {
        theirs: join.theirs([parameters[name].detach() for name in ours]).contiguous()
        for theirs, ours, join in partners(model, architecture.pairs(model, config))
    }
    constants = {name: value for name, value in architecture.constants(model, config).items() if name not in tensors}
    return tensors | constants
