"""What an architecture of Hugging Face must say of itself to be read and written here."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

Weights = Mapping[str, Tensor]
"""Tensors by name; each is read from disk when it is asked for."""


MAX_SIZE = 2**31
"""Beyond every size of a model; above it torch's own arithmetic of shapes overflows."""


class Settings(Mapping[str, Any]):
    """A config.json, and the defaults of its class for what it leaves out.

    Args:
        where: the file, for messages.
    """

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> None:
        self.given = {**defaults, **values}
        self.where = where

    def __getitem__(self, key: str) -> Any:
        if key not in self.given:
            raise ValueError(f"{self.where} has no {key}; give the folder that save_pretrained wrote")
        return self.given[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.given.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self.given

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)

    def size(self, key: str) -> int:
        """A whole number, at least 1 and below `MAX_SIZE`.

        Raises:
            ValueError: it is none.
        """
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{self.where}: {key}={value!r} is no whole number from 1 on; fetch the file again")
        if value >= MAX_SIZE:
            raise ValueError(f"{self.where}: {key}={value!r} is more than any model has; fetch the file again")
        return value

    def size_or_none(self, key: str) -> int | None:
        """The same, or null."""
        return None if self.get(key) is None else self.size(key)

    def number(self, key: str) -> float:
        """A finite number, at least 0.

        Raises:
            ValueError: it is none.
        """
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{self.where}: {key}={value!r} is no number from 0 on; fetch the file again")
        return value

    def number_or_none(self, key: str) -> float | None:
        """The same, or null."""
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        """True or false.

        Raises:
            ValueError: neither.
        """
        value = self[key]
        if not isinstance(value, bool):
            raise ValueError(f"{self.where}: {key}={value!r} is neither true nor false; fetch the file again")
        return value

    def mapping(self, key: str) -> "Settings":
        """What stands under a key, in which null is nothing.

        Raises:
            ValueError: it is no mapping.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise ValueError(f"{self.where}: {key}={value!r} is no mapping; fetch the file again")
        return Settings(value or {}, {}, f"{self.where}: {key}")

    def only(self, **supported: Any) -> None:
        """Refuse other values than these of keys that change what a model computes; a key may be absent.

        Raises:
            ValueError: it names the key, its value and the one that is supported.
        """
        for key, value in supported.items():
            if self.get(key, value) != value:
                raise self.unsupported(key, [value])

    def choice(self, key: str, options: Mapping[Any, Any]) -> Any:
        """What stands here for the value of a key.

        Raises:
            ValueError: the value is none of `options`.
        """
        if not isinstance(self[key], Hashable) or self[key] not in options:
            raise self.unsupported(key, list(options))
        return options[self[key]]

    def unsupported(self, key: str, supported: Sequence[Any]) -> ValueError:
        """That a key has a value which triform has no part for."""
        known = ", ".join(map(repr, supported))
        return ValueError(f"{self.where}: {key}={self[key]!r} is not supported; supported: {known}")


class Join:
    """How one tensor of theirs comes from those of ours, and back. This one: the same tensor."""

    def theirs(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0]

    def ours(self, theirs: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [theirs]


class Stacked(Join):
    """Ours after each other along the outputs, as fused projections are."""

    def theirs(self, ours: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(ours))

    def ours(self, theirs: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
        return list(theirs.split([shape[0] for shape in shapes]))


class Transposed(Stacked):
    """The same with inputs before outputs (GPT-2); biases stay."""

    def theirs(self, ours: Sequence[Tensor]) -> Tensor:
        return _transposed(super().theirs(ours))

    def ours(self, theirs: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
        return super().ours(_transposed(theirs), shapes)


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.T if tensor.ndim == 2 else tensor


class Reshaped(Join):
    """The same numbers in another shape.

    Args:
        shape: theirs, with -1 for one axis.
    """

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def theirs(self, ours: Sequence[Tensor]) -> Tensor:
        return ours[0].reshape(self.shape)

    def ours(self, theirs: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
        return [theirs.reshape(shapes[0])]


@dataclass(frozen=True)
class Pair:
    """A module (or a parameter) of theirs and those of ours that hold the same numbers.

    Args:
        ours: names, with "{}" for the number of a layer; several are one of theirs.
        theirs: a name, with "{}" for the same number; weight and bias of a module carry over.
    """

    ours: tuple[str, ...]
    theirs: str
    join: Join


def pair(theirs: str, *ours: str, join: Join | None = None) -> Pair:
    """A `Pair`; several of ours are `Stacked` unless `join` says otherwise."""
    return Pair(ours, theirs, join or (Stacked() if len(ours) > 1 else Join()))


@dataclass(frozen=True)
class Choice:
    """A model in terms of `conf/model/`: an option and what is changed in it.

    Args:
        preset: such as "llama3_8b".
        overrides: group or key -> option or value, such as "model/position": "rotary" or "model.d_model": 64.
    """

    preset: str
    overrides: Mapping[str, Any]


class Architecture(ABC):
    """One family of checkpoints. Each module here that has one names it in `triform.interop.ARCHITECTURES`."""

    name: ClassVar[str]
    """As people write it: "LLaMA"."""
    classes: ClassVar[tuple[str, ...]]
    """Of `transformers`, as config.json names them in "architectures"."""
    model_type: ClassVar[str]
    """As config.json names it."""
    defaults: ClassVar[Mapping[str, Any]]
    """Of the config class of `transformers`, for keys that a config.json may leave out."""
    not_weights: ClassVar[str] = r"(?!)"
    """Names of tensors that older versions saved though nothing is learned in them."""

    @abstractmethod
    def read(self, config: Settings, weights: Weights) -> Choice:
        """The model that a config.json (and what is in the file of weights) describes.

        Raises:
            ValueError: it asks for something that triform has no part for.
        """

    @abstractmethod
    def write(self, model: Any, node: Mapping[str, Any]) -> dict[str, Any] | None:
        """The config.json of a model; None if it is surely not of this architecture.

        It need not look at everything: whoever calls it reads the result back and compares.

        Args:
            node: what `described(model)` gives.
        """

    @abstractmethod
    def pairs(self, model: nn.Module, config: Settings) -> Sequence[Pair]:
        """Where each parameter is. The first pair that fits a parameter, by its own name or its module's, counts."""

    def spelling(self, name: str, config: Settings) -> str:
        """The name of a tensor as newer versions spell it."""
        return name

    def copies(self, model: nn.Module, config: Settings) -> Mapping[str, str]:
        """Tensors of theirs that may be stored though they repeat another one: name -> name of that."""
        return {}

    def constants(self, model: nn.Module, config: Settings) -> Mapping[str, Tensor]:
        """Tensors that `transformers` wants in the file, though they are not of the model."""
        return {}


def partners(model: nn.Module, pairs: Sequence[Pair]) -> list[tuple[str, list[str], Join]]:
    """Each tensor of theirs, with the parameters of ours that it holds and how.

    Raises:
        LookupError: a parameter has no place.
    """
    by_name = {name: (one, i) for one in pairs for i, name in enumerate(one.ours)}
    found: dict[str, tuple[list[str], Join]] = {}
    for name, _ in model.named_parameters():
        module, _, kind = name.rpartition(".")
        for place, ending in ((name, ""), (module, f".{kind}")):
            pattern, numbers = _pattern(place)
            if pattern in by_name:
                one, i = by_name[pattern]
                theirs = one.theirs.format(*numbers) + ending
                ours = found.setdefault(theirs, ([""] * len(one.ours), one.join))[0]
                ours[i] = name
                break
        else:
            raise LookupError(name)
    for theirs, (ours, _) in found.items():
        if not all(ours):
            raise LookupError(f"a part of {theirs}")
    return [(theirs, ours, join) for theirs, (ours, join) in found.items()]


def _pattern(name: str) -> tuple[str, list[str]]:
    """A name with "{}" for its numbers, and those."""
    parts = name.split(".")
    return ".".join("{}" if part.isdigit() else part for part in parts), [part for part in parts if part.isdigit()]


def canonical(architecture: Architecture, names: Sequence[str], config: Settings) -> dict[str, str]:
    """Name as newer versions spell it -> name in the file, without what holds no weights."""
    kept = [name for name in names if not re.fullmatch(architecture.not_weights, name)]
    return {architecture.spelling(name, config): name for name in kept}
