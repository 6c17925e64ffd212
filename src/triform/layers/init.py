"""What a model's parameters are before training."""

import hashlib
from collections import Counter
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

# The projections that write to the residual stream.
_OUTPUTS = ("out_proj", "down_proj")


@runtime_checkable
class Scheme(Protocol):
    """How matrices are filled; biases are 0 and the gains of norms 1 in every scheme."""

    def linear(self, weight: Tensor, generator: torch.Generator, n_outputs: int | None) -> None:
        """Fills a projection; `n_outputs`: how many write to the same residual stream, None: not this one."""

    def embedding(self, weight: Tensor, generator: torch.Generator) -> None:
        """Fills a table of vectors."""


class Xavier:
    """Projections uniform in +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010), tables N(0, 1 / d_model).

    A table scaled by sqrt(d_model) then has unit variance, and as an output projection gives logits of unit
    variance.
    """

    def linear(self, weight: Tensor, generator: torch.Generator, n_outputs: int | None) -> None:
        nn.init.xavier_uniform_(weight, generator=generator)

    def embedding(self, weight: Tensor, generator: torch.Generator) -> None:
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)


class Normal:
    """Everything N(0, std^2), as BERT and GPT-2.

    Args:
        std: standard deviation.
        depth_scaled: divide `std` of the projections that write to the residual stream by the square root of
            their number (Radford et al. 2019, section 2.3), so that the stream does not grow with depth.

    Raises:
        ValueError: `std` <= 0.
    """

    def __init__(self, *, std: float, depth_scaled: bool) -> None:
        if std <= 0:
            raise ValueError(f"Normal: std={std} is not positive; set model.init.std above 0, such as 0.02")
        self.std = std
        self.depth_scaled = depth_scaled

    def linear(self, weight: Tensor, generator: torch.Generator, n_outputs: int | None) -> None:
        depth = n_outputs if self.depth_scaled and n_outputs else 1
        nn.init.normal_(weight, std=self.std / depth**0.5, generator=generator)

    def embedding(self, weight: Tensor, generator: torch.Generator) -> None:
        nn.init.normal_(weight, std=self.std, generator=generator)


@torch.no_grad()
def initialise(model: nn.Module, scheme: Scheme, seed: int) -> None:
    """Fills every parameter, each from its own stream seeded by (seed, qualified name).

    So the values do not depend on the order of construction, on the device or on what else the model holds,
    and parts that two models share start equal. A tied parameter is filled once. Values are drawn in float32
    on the CPU.

    A module with parameters of another kind says how they begin by a method
    `initialise_parameter(name, value, generator)` that fills `value`.

    Raises:
        TypeError: a parameter that is no projection, table, gain or bias, without that method.
    """
    streams = Counter(_stream(name) for name, _ in model.named_modules() if name.endswith(_OUTPUTS))
    filled: set[int] = set()
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in filled:
                continue
            filled.add(id(parameter))
            qualified = f"{module_name}.{name}" if module_name else name
            generator = torch.Generator().manual_seed(stable_hash(seed, qualified))
            value = torch.empty(parameter.shape)
            if hasattr(module, "initialise_parameter"):
                module.initialise_parameter(name, value, generator)
            elif name == "bias":
                value.zero_()
            elif name == "weight" and parameter.ndim == 1:
                value.fill_(1.0)
            elif isinstance(module, nn.Linear):
                is_output = module_name.endswith(_OUTPUTS)
                scheme.linear(value, generator, streams[_stream(module_name)] if is_output else None)
            elif isinstance(module, nn.Embedding):
                scheme.embedding(value, generator)
            else:
                raise TypeError(
                    f"initialise: nothing says how {qualified} of {type(module).__name__} begins; give the class "
                    f"a method initialise_parameter(name, value, generator)"
                )
            parameter.copy_(value)


def stable_hash(*parts: object) -> int:
    """The same 63 bits for the same parts in every process."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def _stream(module_name: str) -> str:
    """The stack that a module's residual stream runs through."""
    return module_name.rpartition("layers.")[0]
