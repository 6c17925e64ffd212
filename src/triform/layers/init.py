"""What a model's parameters are before training."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from triform.layers.attention import Attention

# The projections that write to the residual stream.
_OUTPUTS = ("out_proj", "down_proj")

# Those that read the input or write the logits: one side of them does not widen with the model.
_ENDS = ("patch_proj", "projection", "classifier")


@dataclass(frozen=True)
class Projection:
    """Which projection a matrix is.

    Args:
        name: such as "q_proj".
        n_outputs: sublayers that write to the same residual stream, if this one does; otherwise None.
        head_dim: width of a head of the attention that it belongs to; otherwise None.
    """

    name: str
    n_outputs: int | None = None
    head_dim: int | None = None


class Scheme(ABC):
    """How matrices are filled; biases are 0 and norms multiply by 1 in every scheme."""

    @abstractmethod
    def linear(self, weight: Tensor, generator: torch.Generator, projection: Projection) -> None:
        """Fills a projection, out x in."""

    @abstractmethod
    def embedding(self, weight: Tensor, generator: torch.Generator) -> None:
        """Fills a table of vectors."""

    def parametrise(self, model: Any) -> None:
        """Sets what a model multiplies by in its forward pass; called once when it is built. By default nothing."""
        return

    def multipliers(self, model: Any) -> dict[str, float]:
        """Of the learning rates of those parameters that have another than the optimizer's."""
        return {}


class Xavier(Scheme):
    """Projections uniform in +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010), tables N(0, 1 / d_model).

    A table scaled by sqrt(d_model) then has unit variance, and as an output projection gives logits of unit
    variance.
    """

    def linear(self, weight: Tensor, generator: torch.Generator, projection: Projection) -> None:
        nn.init.xavier_uniform_(weight, generator=generator)

    def embedding(self, weight: Tensor, generator: torch.Generator) -> None:
        nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)


class Normal(Scheme):
    """Everything N(0, std^2), as BERT and GPT-2.

    Args:
        std: standard deviation, before the cut.
        depth_scaled: divide `std` of the projections that write to the residual stream by the square root of
            their number (Radford et al. 2019, section 2.3), so that the stream does not grow with depth.
        cut: standard deviations beyond which values are drawn again (BERT in TensorFlow, ModernBERT: 2). None:
            nowhere.

    Raises:
        ValueError: `std` or `cut` <= 0.
    """

    def __init__(self, *, std: float, depth_scaled: bool, cut: float | None) -> None:
        _check_positive(self, std=std, cut=cut)
        self.std = std
        self.depth_scaled = depth_scaled
        self.cut = cut

    def linear(self, weight: Tensor, generator: torch.Generator, projection: Projection) -> None:
        depth = (projection.n_outputs or 1) if self.depth_scaled else 1
        self._fill(weight, self.std / depth**0.5, generator)

    def embedding(self, weight: Tensor, generator: torch.Generator) -> None:
        self._fill(weight, self.std, generator)

    def _fill(self, weight: Tensor, std: float, generator: torch.Generator) -> None:
        if self.cut is None:
            nn.init.normal_(weight, std=std, generator=generator)
        else:
            nn.init.trunc_normal_(weight, std=std, a=-self.cut * std, b=self.cut * std, generator=generator)


class T5(Scheme):
    """As in T5 (Raffel et al. 2020, and its code): tables and an untied head N(0, 1), projections N(0, 1 / fan_in).

    Queries have 1 / (fan_in * head_dim) instead: T5 does not divide scores by sqrt(head_dim), which is
    `model.attention.scale=1.0`.

    Args:
        factor: multiplies every standard deviation, above 0.

    Raises:
        ValueError: `factor` <= 0.
    """

    def __init__(self, *, factor: float) -> None:
        _check_positive(self, factor=factor)
        self.factor = factor

    def linear(self, weight: Tensor, generator: torch.Generator, projection: Projection) -> None:
        variance = 1.0 if projection.name == "projection" else 1 / weight.shape[1]
        if projection.name == "q_proj" and projection.head_dim is not None:
            variance /= projection.head_dim
        nn.init.normal_(weight, std=self.factor * variance**0.5, generator=generator)

    def embedding(self, weight: Tensor, generator: torch.Generator) -> None:
        nn.init.normal_(weight, std=self.factor, generator=generator)


class MuP(Scheme):
    """Maximal update parametrisation: what is good at one width stays so at any (Yang et al. 2022).

    https://arxiv.org/abs/2203.03466, table 8, for Adam and its kin, with m = d_model / base_width: projections
    between hidden states N(0, std^2 / m) with a learning rate 1 / m times as large; tables and an untied head
    N(0, std^2); logits divided by m; scores divided by head_dim, equal to sqrt(head_dim) at `base_head_dim`. At
    the base sizes this is `Normal`. Widen all together: `d_ff` and `n_heads * head_dim` in proportion to `d_model`.

    Args:
        std: standard deviation at `base_width`.
        depth_scaled: see `Normal`.
        base_width: the `d_model` at which learning rates were chosen.
        base_head_dim: the `head_dim` there.

    Raises:
        ValueError: an argument <= 0.
    """

    def __init__(self, *, std: float, depth_scaled: bool, base_width: int, base_head_dim: int) -> None:
        _check_positive(self, std=std, base_width=base_width, base_head_dim=base_head_dim)
        self.std, self.depth_scaled = std, depth_scaled
        self.base_width, self.base_head_dim = base_width, base_head_dim

    def linear(self, weight: Tensor, generator: torch.Generator, projection: Projection) -> None:
        if projection.name in _ENDS:  # the model divides the logits
            nn.init.normal_(weight, std=self.std, generator=generator)
            return
        d_model = weight.shape[0 if projection.n_outputs else 1]
        depth = (projection.n_outputs or 1) if self.depth_scaled else 1
        nn.init.normal_(weight, std=self.std * (self.base_width / d_model / depth) ** 0.5, generator=generator)

    def embedding(self, weight: Tensor, generator: torch.Generator) -> None:
        nn.init.normal_(weight, std=self.std, generator=generator)

    def parametrise(self, model: Any) -> None:
        for module in model.modules():
            if isinstance(module, Attention):
                module.scale *= (self.base_head_dim / module.head_dim) ** 0.5
        for module in model.head.modules():
            if hasattr(module, "multiplier"):
                module.multiplier = self.base_width / model.d_model

    def multipliers(self, model: Any) -> dict[str, float]:
        return {
            f"{name}.weight": self.base_width / model.d_model
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and name.rpartition(".")[2] not in _ENDS
        }


def multipliers(model: nn.Module) -> dict[str, float]:
    """What the learning rate of each parameter, by its qualified name, is multiplied by: 1 unless by muP."""
    scheme = getattr(model, "scheme", None)
    own = scheme.multipliers(model) if isinstance(scheme, Scheme) else {}
    return {name: own.get(name, 1.0) for name, _ in model.named_parameters()}


@torch.no_grad()
def initialise(model: nn.Module, scheme: Scheme, seed: int) -> None:
    """Fills every parameter; see `initial_values`."""
    parameters = dict(model.named_parameters())
    for name, value in initial_values(model, scheme, seed):
        parameters[name].copy_(value)


@torch.no_grad()
def initial_values(model: nn.Module, scheme: Scheme, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Each parameter's name and first value, drawn from its own stream seeded by (seed, qualified name).

    So the values do not depend on the order of construction, on the device or on what else the model holds,
    and parts that two models share start equal. A tied parameter comes once. Values are drawn in float32 on the CPU,
    one after another; the model's own are not touched and may be on the meta device.

    A module with parameters of another kind says how they begin by a method
    `initialise_parameter(name, value, generator)` that fills `value`.

    Raises:
        TypeError: a parameter that is no projection, table, gain or bias, without that method.
    """
    outputs = {_sublayer(name) for name, _ in model.named_modules() if name.endswith(_OUTPUTS)}
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
                owner, _, own_name = module_name.rpartition(".")
                head_dim = getattr(model.get_submodule(owner), "head_dim", None)
                stream = _sublayer(module_name)[0]
                n_outputs = sum(of == stream for of, _ in outputs) if own_name in _OUTPUTS else None
                scheme.linear(value, generator, Projection(own_name, n_outputs, head_dim))
                value *= getattr(module, "initial_gain", 1.0)
            elif isinstance(module, nn.Embedding):
                scheme.embedding(value, generator)
            else:
                raise TypeError(
                    f"initialise: nothing says how {qualified} of {type(module).__name__} begins; give the class "
                    f"a method initialise_parameter(name, value, generator)"
                )
            yield qualified, value


def stable_hash(*parts: object) -> int:
    """The same 63 bits for the same parts in every process."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def _sublayer(module_name: str) -> tuple[str, str]:
    """The stack that a module belongs to, and its sublayer: experts of a mixture write to the stream as one."""
    stream, _, rest = module_name.rpartition("layers.")
    return stream, ".".join(rest.split(".")[:2])


def _check_positive(scheme: Scheme, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and value <= 0:
            raise ValueError(f"{type(scheme).__name__}: {name}={value} is not positive; set model.init.{name} above 0")
