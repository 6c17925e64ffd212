"""A model as the config that builds it."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

_PLAIN = (int, float, bool, str, type(None))


def described(model: nn.Module) -> dict[str, Any]:
    """The node of a config that builds this model, as `conf/model/*.yaml` would have it, its weights apart.

    Raises:
        ValueError: it was built with a part that no config can name, such as a function of a notebook.
    """
    return {**_named(type(model)), "_partial_": True, **_plain(getattr(model, "arguments", {}), "model")}


def _plain(value: Any, key: str) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(one, f"{key}.{name}") for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, f"{key}[{i}]") for i, one in enumerate(value)]
    if isinstance(value, partial) and not value.args and isinstance(value.func, type):
        return {**_named(value.func), "_partial_": True, **_plain(value.keywords, key)}
    if isinstance(value, type):
        return {**_named(value), "_partial_": True}
    names = list(inspect.signature(type(value)).parameters)
    if callable(value) and not all(hasattr(value, name) for name in names):
        raise ValueError(
            f"{key}={value!r} is no part that a config can name; give a class, or functools.partial of one with "
            "keyword arguments"
        )
    return {**_named(type(value)), **{name: _plain(getattr(value, name), f"{key}.{name}") for name in names}}


def _named(kind: type) -> dict[str, str]:
    # torch.nn.modules.activation.GELU is known as torch.nn.GELU.
    module = "torch.nn" if getattr(nn, kind.__name__, None) is kind else kind.__module__
    return {"_target_": f"{module}.{kind.__qualname__}"}
