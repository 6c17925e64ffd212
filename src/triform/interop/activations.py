"""Non-linearities by the names that config.json has for them."""

from collections.abc import Mapping
from typing import Any

from triform.interop.architecture import Settings

_APPROXIMATIONS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh"}
_NAMES = {"none": "gelu", "tanh": "gelu_pytorch_tanh"}


def gated(config: Settings, key: str) -> dict[str, Any]:
    """The choice of `model/feed_forward` with a gate.

    Raises:
        ValueError: an activation that no such part has.
    """
    parts = {"silu": "swiglu", "swish": "swiglu"} | dict.fromkeys(_APPROXIMATIONS, "geglu")
    return _chosen(config.choice(key, parts), config[key])


def plain(config: Settings, key: str) -> dict[str, Any]:
    """The same without a gate."""
    parts = {"relu": "relu", "silu": "silu", "swish": "silu"} | dict.fromkeys(_APPROXIMATIONS, "gelu")
    return _chosen(config.choice(key, parts), config[key])


def _chosen(part: str, name: str) -> dict[str, Any]:
    chosen: dict[str, Any] = {"model/feed_forward": part}
    if name in _APPROXIMATIONS:
        chosen["model.feed_forward.activation.approximate"] = _APPROXIMATIONS[name]
    return chosen


def activation_name(feed_forward: Mapping[str, Any]) -> str:
    """What config.json calls the activation of a part.

    Raises:
        LookupError: it has no name there.
    """
    activation = feed_forward["activation"]
    kind = activation["_target_"].rpartition(".")[2]
    if kind == "GELU":
        return _NAMES[activation.get("approximate", "none")]
    return {"SiLU": "silu", "ReLU": "relu"}[kind]
