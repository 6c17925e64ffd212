"""What a config gives a class, held against what the class takes."""

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from triform.run.build import locate
from triform.run.errors import BadInput, nearest, show
from triform.run.values import LOADER, expected

_PLAIN = (int, float, bool, str, type(None))


def check_arguments(node: Mapping[str, Any], key: str, trust: Sequence[str] = ()) -> None:
    """Refuse keys that the class of a node does not take, values of another type, and missing keys."""
    target = locate(node["_target_"], trust, key)
    parameters = inspect.signature(target).parameters
    any_key = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    own = {
        "data": LOADER,
        **({key: LOADER} if key.startswith("data.sources.") else {}),
        "model": ("vocab_size", "path"),
        "tokenizer": ("separate",),
    }.get(key, ())  # the runner's own
    given = [name for name in node if name not in ("_target_", "_partial_", "_args_", *own)]
    name = getattr(target, "__name__", node["_target_"])
    for argument in given:
        parameter = parameters.get(argument)
        if parameter is None or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            if any_key:
                continue
            known = [one for one in parameters if one in node or parameters[one].default is not inspect.Parameter.empty]
            raise BadInput(
                f"{key}.{argument}: {name} takes no such key{nearest(argument, parameters)}; "
                f"it has {', '.join(known) or 'none'}"
            )
        if not _fits(node[argument], parameter.annotation):
            wanted = _describe(parameter.annotation)
            raise BadInput(f"{key}.{argument}={show(node[argument])} is not {wanted}; set {key}.{argument} to one")
    if not node.get("_partial_", False) and "_args_" not in node:
        for argument, parameter in parameters.items():
            required = parameter.default is parameter.empty and parameter.kind in (
                parameter.POSITIONAL_OR_KEYWORD,
                parameter.KEYWORD_ONLY,
            )
            if required and argument not in given:
                raise BadInput(f"{key}.{argument} is missing: {name} needs it; set {key}.{argument}=VALUE")


def choices(config: Mapping[str, Any], key: str) -> str | None:
    """What a key may be set to, in words; None: only the class that reads it knows."""
    if (words := expected(key)) is not None:
        return words
    section, _, name = key.rpartition(".")
    node: Any = config
    for part in section.split(".") if section else ():
        node = node[part]
    target = node.get("_target_")
    if not isinstance(target, str) or name.startswith("_"):
        return None
    parameter = inspect.signature(locate(target, config["trust"], section)).parameters.get(name)
    if parameter is None or not _are_plain(parameter.annotation):
        return None
    return _describe(parameter.annotation)


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a plain value may be meant for a parameter; True where the annotation is neither plain nor a part."""
    options = _options(annotation)
    lists = [option for option in options if typing.get_origin(option) in (list, Sequence)]
    parts = [option for option in options if _is_part(option)]
    if not all(option in _PLAIN or option in lists or option in parts for option in options):
        return True
    if isinstance(value, Mapping):
        return "_target_" in value and bool(lists or parts)  # which builds one
    if isinstance(value, list | tuple):
        return any(all(_fits(one, *typing.get_args(option)) for one in value) for option in lists)
    if isinstance(value, bool):
        return bool in options
    if isinstance(value, int) and float in options:
        return True
    return type(value) in options


def _options(annotation: Any) -> list[Any]:
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return list(typing.get_args(annotation)) if union else [annotation]


def _is_part(annotation: Any) -> bool:
    """Whether it is built: a factory, as those parts are that a model has many of."""
    return typing.get_origin(annotation) is Callable


def _are_plain(annotation: Any) -> bool:
    return all(option in _PLAIN for option in _options(annotation))


def _describe(annotation: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}
    return " or ".join(
        words[option]
        if option in words
        else "a part with a _target_"
        if _is_part(option)
        else "a list" + (f", each {_describe(option.__args__[0])}" if _are_plain(option.__args__[0]) else "")
        for option in _options(annotation)
    )
