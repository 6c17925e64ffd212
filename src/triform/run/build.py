"""From a plain config to objects, through an allow-list.

The meaning of `_target_`, `_args_` and `_partial_` is Hydra's. It is done here because a config that is read from
a run's folder must not name whatever it likes: every target is checked before the first one is imported, and
what it turns out to be is checked again, so that no attribute path leads out of the allowed packages.
"""

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from triform.run.errors import BadInput, nearest
from triform.run.help import conf_dir

OURS = (
    "triform.layers",
    "triform.models",
    "triform.tasks",
    "triform.data.sources",
    "triform.data.tokenizers",
    "triform.training.optimizers",
    "triform.training.schedules",
    "triform.training.loggers",
    "triform.training.averages",
)
"""Modules, with those in them, whose public classes a config may name, and such functions as `conf/` itself names."""

LIBRARIES = {
    "torch.nn": ("torch.nn", "Module"),
    "torch.optim": ("torch.optim", "Optimizer"),
    "lightning.pytorch.callbacks": ("lightning.pytorch.callbacks", "Callback"),
    "lightning.pytorch.loggers": ("lightning.pytorch.loggers", "Logger"),
    "lightning.pytorch.profilers": ("lightning.pytorch.profilers", "Profiler"),
}
"""Packages of which a config may name what derives from one class, by the module and the name of that."""

_WORDS = ("_target_", "_partial_", "_args_")

MOST_NODES = 100_000
"""Values that a config may have. A file of a few lines can stand for more than any memory holds, by YAML's aliases."""


@cache
def factories() -> frozenset[str]:
    """The functions of ours that a config may name: those that a file in `conf/` does."""
    named = re.compile(r"_target_: *(triform[\w.]*\.[a-z]\w*)\b")
    return frozenset(name for file in conf_dir().rglob("*.yaml") for name in named.findall(file.read_text("utf-8")))


def targets(config: Any, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node with a `_target_`, with its config key, outermost first."""
    if isinstance(config, Mapping):
        if "_target_" in config:
            yield key, dict(config)
        for name, value in config.items():
            yield from targets(value, f"{key}.{name}" if key else str(name))
    elif isinstance(config, list | tuple):
        for index, value in enumerate(config):
            yield from targets(value, f"{key}[{index}]")


def _inside(name: str, packages: Sequence[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def check_targets(config: Any, trust: Sequence[str] = (), key: str = "") -> None:
    """Refuse a config that names a class outside the allowed packages; nothing is imported.

    Raises:
        BadInput: a `_target_` that is no dotted name, is private, or is outside `OURS`, `LIBRARIES` and `trust`.
    """
    check_size(config, key)
    for place, node in targets(config, key):
        target = node["_target_"]
        if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")):
            raise BadInput(f"{place}._target_={target!r} is not the dotted name of a class")
        own = any(part.startswith("_") for part in target.split("."))
        if not _inside(target, trust) and (own or not _inside(target, (*OURS, *LIBRARIES))):
            package = target.split(".")[0]
            raise BadInput(
                f"{place}._target_={target} is outside what a config may name; "
                f"if you trust the package, add trust=[{package}]"
            )


def check_size(config: Any, key: str = "") -> None:
    """Refuse a config that has more values than anybody writes.

    Raises:
        BadInput: it has, or holds itself.
    """
    left, seen = [config], 0
    while left:
        node = left.pop()
        seen += 1
        if seen > MOST_NODES:
            raise BadInput(f"{key or 'the config'} has more than {MOST_NODES} values; leave out what is repeated in it")
        if isinstance(node, Mapping):
            left.extend(node.values())
        elif isinstance(node, list | tuple):
            left.extend(node)


def locate(target: str, trust: Sequence[str] = (), key: str = "") -> Any:
    """The class or function that `target` names.

    Raises:
        BadInput: it is outside the allowed packages or not there.
    """
    check_targets({"_target_": target}, trust, key)
    parts = target.split(".")
    place = f"{key}._target_={target}"
    found: Any = None
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
                raise BadInput(f"{place} needs the package {error.name}, which is not installed") from error
            continue
        for part in parts[end:]:
            names = list(vars(found))
            found = getattr(found, part, None)
            if found is None:
                raise BadInput(f"{place}: {name} has no {part}{nearest(part, names)}")
        break
    if not _allowed(found, target, trust):
        raise BadInput(f"{place} is not a class that a config may name, nor a function that conf/ names")
    return found


def _allowed(found: Any, target: str, trust: Sequence[str]) -> bool:
    """Whether what `target` has turned out to be is what a config may name, wherever the name led."""
    module = getattr(found, "__module__", None) or ""
    if inspect.ismodule(found) or not callable(found):
        return False
    if _inside(target, trust):
        return _inside(module, trust)
    if target in factories():
        return module == target.rpartition(".")[0]
    if not isinstance(found, type):
        return False
    if _inside(target, OURS):
        return f"{module}.{found.__qualname__}" == target
    package, base = next(kind for name, kind in LIBRARIES.items() if _inside(target, (name,)))
    return issubclass(found, getattr(importlib.import_module(package), base))


def build(config: Any, trust: Sequence[str] = (), key: str = "") -> Any:
    """Build what `config` describes; mappings and lists without a `_target_` stay plain containers.

    A node with `_partial_: true` becomes a `functools.partial` that its owner calls.

    Raises:
        BadInput: a target outside the allowed packages.
        ValueError: a constructor refused its arguments.
    """
    check_targets(config, trust, key)
    return _build(config, trust, key)


def _build(config: Any, trust: Sequence[str], key: str) -> Any:
    if isinstance(config, list | tuple):
        return [_build(value, trust, f"{key}[{index}]") for index, value in enumerate(config)]
    if not isinstance(config, Mapping):
        return config
    arguments = {
        name: _build(value, trust, f"{key}.{name}" if key else str(name))
        for name, value in config.items()
        if name not in _WORDS
    }
    if "_target_" not in config:
        return arguments
    function = locate(config["_target_"], trust, key)
    positional = _build(config.get("_args_", []), trust, f"{key}._args_")
    if config.get("_partial_", False):
        factory = Factory(function, *positional, **arguments)
        factory.key = key
        return factory
    with _told_where(key):
        return function(*positional, **arguments)


class Factory(partial):
    """A partial that knows where in the config it is from, and says so of a value that it refuses."""

    key = ""

    def __call__(self, /, *args: Any, **keywords: Any) -> Any:
        with _told_where(self.key):
            return super().__call__(*args, **keywords)


_USUAL = {
    "cross_attention": "attention",
    "local": "attention",
    "full": "attention",
    "qk_norm": "norm",
    "embedding_norm": "norm",
    "expert": "feed_forward",
}
"""Places of a part within a model -> the group that its class believes to be in."""


@contextmanager
def _told_where(key: str) -> Iterator[None]:
    """A part names keys where it usually stands (model.attention.window); where it is, they may be others."""
    try:
        yield
    except ValueError as error:
        section, _, place = key.rpartition(".")
        usual = f"model.{_USUAL.get(place, place)}"
        if not section or key == usual or usual not in str(error):
            raise
        raise ValueError(re.sub(rf"{re.escape(usual)}(?=[.\s;,:]|$)", key, str(error))) from error
