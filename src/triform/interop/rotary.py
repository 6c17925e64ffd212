"""Rotary positions as config.json describes them: `rope_parameters` since transformers 5, before that two keys."""

from collections.abc import Mapping
from typing import Any

from triform.interop.architecture import Settings

_TYPES = ("default", "linear", "llama3", "yarn")
_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor"),
}
_OPTIONAL = {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None}
_OURS = {"original_max_position_embeddings": "original_max_seq_len"}
_SCALINGS = {"linear": "LinearScaling", "llama3": "Llama3Scaling", "yarn": "YarnScaling"}


def rotary(config: Settings) -> dict[str, Any]:
    """The choice of `model/position`, with what is changed in it.

    Raises:
        ValueError: a scaling that triform has not, or one with a key that it has not.
    """
    given: dict[str, Any] = {**config.mapping("rope_scaling"), **config.mapping("rope_parameters")}
    theta = given.pop("rope_theta", None)
    theta = Settings({"rope_theta": config["rope_theta"] if theta is None else theta}, {}, config.where)
    kind = given.pop("rope_type", None) or given.pop("type", None) or "default"
    given.pop("type", None)
    where = f"{config.where}: rope_type={kind!r}"
    if kind not in _TYPES:
        raise ValueError(f"{where} is not supported; supported: {', '.join(_TYPES)}")
    if kind != "default" and "original_max_position_embeddings" in _KEYS[kind]:
        given.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
    if given.get("partial_rotary_factor") == 1:
        del given["partial_rotary_factor"]
    if given.get("truncate") is True:
        del given["truncate"]
    if kind in ("default", "linear"):
        given.pop("original_max_position_embeddings", None)  # which nothing reads there
    for key, value in given.items():
        if key not in _KEYS[kind] and value is not None:
            known = ", ".join(_KEYS[kind]) or "no other key than rope_theta"
            raise ValueError(f"{where} with {key}={value!r} is not supported; supported: {known}")
    overrides: dict[str, Any] = {
        "model/position": "rotary" if kind == "default" else f"rotary_{kind}",
        "model.position.theta": float(theta.number("rope_theta")),
    }
    said = Settings(given, {}, where)
    for key in _KEYS[kind]:
        if key not in given and key not in _OPTIONAL:
            raise ValueError(f"{where} has no {key}; fetch the file again")
        number: float | None
        if key == "original_max_position_embeddings":
            number = said.size(key)
        elif given.get(key) is None and key in _OPTIONAL:
            number = _OPTIONAL[key]
        else:
            number = float(said.number(key))
        overrides[f"model.position.scaling.{_OURS.get(key, key)}"] = number
    return overrides


def rotary_keys(position: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of config.json for a position part: those of now and those of before.

    Raises:
        LookupError: there are none for it.
    """
    scaling = position["scaling"]
    if scaling is None:
        return {
            "rope_parameters": {"rope_type": "default", "rope_theta": position["theta"]},
            "rope_theta": position["theta"],
        }
    name = scaling["_target_"].rpartition(".")[2]
    kind = next((kind for kind, ours in _SCALINGS.items() if ours == name), None)
    if kind is None:
        raise LookupError(name)
    values = {key: scaling[_OURS.get(key, key)] for key in _KEYS[kind]}
    return {
        "rope_parameters": {"rope_type": kind, "rope_theta": position["theta"], **values},
        "rope_theta": position["theta"],
        "rope_scaling": {"rope_type": kind, **values},
    }
