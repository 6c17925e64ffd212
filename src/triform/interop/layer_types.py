"""Layers with and without a window, as config.json lists them."""

from collections.abc import Mapping, Sequence
from typing import Any

from triform.interop.architecture import Settings

LOCAL, FULL = "sliding_attention", "full_attention"


def windows(config: Settings, window: int | None, usual: Sequence[str]) -> list[int | None]:
    """The window of each layer, in tokens; None: it attends to all.

    Args:
        window: of layers that have one.
        usual: the kind of each layer where config.json does not say.

    Raises:
        ValueError: other kinds, another number of them than layers, or a window that is none.
    """
    kinds = config.get("layer_types") or list(usual)
    n_layers = config.size("num_hidden_layers")
    if len(kinds) != n_layers:
        raise ValueError(
            f"{config.where}: layer_types={kinds!r} are {len(kinds)}, but num_hidden_layers={n_layers}; fetch it again"
        )
    for kind in kinds:
        if kind not in (LOCAL, FULL):
            raise ValueError(
                f"{config.where}: layer_types with {kind!r} is not supported; supported: {FULL!r}, {LOCAL!r}"
            )
    if LOCAL in kinds and window is None:
        raise ValueError(
            f"{config.where}: layer_types={kinds!r} but there is no sliding_window; set it there, and "
            "use_sliding_window to true"
        )
    return [window if kind == LOCAL else None for kind in kinds]


def attention(
    config: Settings, windows: Sequence[int | None], values: Mapping[str, Any], qk_norm: str | None = None
) -> dict[str, Any]:
    """The choice of `model/attention`, with what is changed in it.

    Args:
        windows: of each layer.
        values: by key of `Attention`.
        qk_norm: a part of `model/norm` for queries and keys; its keys are among `values`, as "qk_norm.eps".

    Raises:
        ValueError: an order of layers that no part has.
    """
    if len(set(windows)) == 1:
        chosen: dict[str, Any] = {"model/attention": "multi_head" if qk_norm is None else "qk_norm"}
        if qk_norm is not None:
            chosen["model/norm@model.attention.qk_norm"] = qk_norm
        return chosen | {f"model.attention.{key}": value for key, value in {"window": windows[0], **values}.items()}
    every, first = period(config, windows)
    chosen = {"model/attention": "alternate", "model.attention.every": every, "model.attention.first": first}
    for kind, window in (("local", next(w for w in windows if w is not None)), ("full", None)):
        if qk_norm is not None:
            chosen[f"+model/norm@model.attention.{kind}.qk_norm"] = qk_norm
        chosen |= {f"model.attention.{kind}.{key}": value for key, value in {"window": window, **values}.items()}
    return chosen


def period(config: Settings, windows: Sequence[int | None]) -> tuple[int, int]:
    """From one layer without a window to the next, and the first; beyond the last layer where there is none.

    Raises:
        ValueError: an order of layers that no part has.
    """
    full = [i for i, window in enumerate(windows) if window is None]
    if not full:
        return len(windows) + 1, len(windows)
    every = full[1] - full[0] if len(full) > 1 else len(windows)
    if full != list(range(full[0], len(windows), every)) or full[0] >= every:
        raise ValueError(
            f"{config.where}: layer_types with full attention in layers {full} of {len(windows)} is not supported; "
            "supported: in all, in none, in one, or in every n-th"
        )
    return every, full[0]


def kinds(node: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[int | None]]:
    """A layer's attention, and the window of each layer of a model.

    Raises:
        LookupError: attention of another kind.
    """
    part, n_layers = node["attention"], node["n_layers"]
    if "every" not in part:
        return part, [part["window"]] * n_layers
    local, full = part["local"]["window"], part["full"]["window"]
    return part["local"], [full if i % part["every"] == part["first"] else local for i in range(n_layers)]
