"""Values of the runner's own keys."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from triform.run.errors import BadInput, nearest, show
from triform.training.codes import POLICIES

NEEDED = ("seq_len", "batch_size", "batch_tokens", "num_workers")

LOADER = (*NEEDED, "packing", "weights", "streaming", "shuffle_mb", "validation_mb")
"""Keys of `data` that are the data loader's, not the source's; all data sets have the first ones."""

_POSITIVE = {
    "data.seq_len": int,
    "data.batch_size": int | None,
    "data.batch_tokens": int | None,
    "model.vocab_size": int | None,
    "trainer.max_steps": int | None,
    "trainer.max_epochs": float | None,
    "trainer.max_tokens": int | None,
    "trainer.max_hours": float | None,
    "trainer.val_interval": int | None,
    "trainer.log_interval": int,
    "trainer.save_interval": int | None,
    "trainer.num_nodes": int,
    "trainer.tensor_parallel": int,
    "trainer.accumulate": int,
    "trainer.gradient_clip": float | None,
    "trainer.max_skipped": int,
    "trainer.timeout": float | None,
}
"""Keys of numbers above 0, and their types; where a fraction is meant a whole number will do, too."""
_FRACTIONAL = [key for key, kind in _POSITIVE.items() if kind == float | None]
_OPTIONAL = [key for key, kind in _POSITIVE.items() if kind is not int]
WHOLE = [key for key in _POSITIVE if key not in _FRACTIONAL]
"""The runner's own keys that are counts."""

_CHOICES = {
    "trainer.accelerator": ("auto", "cpu", "gpu", "cuda"),
    "trainer.precision": ("auto", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true", "float8"),
    "trainer.strategy": ("auto", "ddp", "fsdp", "tensor_parallel"),
    "trainer.cpu_offload": (True, False),
    "trainer.profiler": (None, "simple", "pytorch"),
    "trainer.async_save": (True, False),
    "trainer.save_parts": (True, False),
    "trainer.compile": (True, False),
    "trainer.deterministic": (True, False),
    "trainer.overfit": (True, False),
    "trainer.test": (True, False),
    "trainer.non_finite": POLICIES,
    "traceback": (True, False),
}


def check_values(config: Mapping[str, Any]) -> None:
    """Refuse values of the runner's own keys that mean nothing."""
    from triform.layers.recompute import MODES  # here, as torch takes time

    for key, choices in (_CHOICES | {"trainer.activation_checkpointing": MODES}).items():
        value = _get(config, key)
        if value not in choices or (isinstance(value, int) and not isinstance(value, bool)):
            names = ["null" if choice is None else str(choice).lower() for choice in choices]
            near = nearest(str(value), names)
            raise BadInput(f"{key}={show(value)} is not known{near}; set one of {', '.join(names)}")
    for key in _POSITIVE:
        value = _get(config, key)
        if value is None and key in _OPTIONAL:
            continue
        number = (int, float) if key in _FRACTIONAL else int
        kind = "a number" if key in _FRACTIONAL else "a whole number"
        if isinstance(value, bool) or not isinstance(value, number) or not value > 0:
            null = ", or null" if key in _OPTIONAL else ""
            raise BadInput(f"{key}={show(value)} is not {kind} above 0; set {key} to one{null}")
    for key in ("seed", "data.num_workers"):
        value = _get(config, key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise BadInput(f"{key}={show(value)} is not a whole number of at least 0; set {key} to one, such as 0")
    limits = ("max_steps", "max_epochs", "max_tokens", "max_hours")
    if all(config["trainer"][limit] is None for limit in limits):
        raise BadInput(f"trainer: none of {', '.join(limits)} is set; set one, such as trainer.max_steps=1000")
    if (config["data"]["batch_size"] is None) == (config["data"]["batch_tokens"] is None):
        raise BadInput(
            f"data.batch_size={show(config['data']['batch_size'])} and "
            f"data.batch_tokens={show(config['data']['batch_tokens'])}: set exactly one, and the other to null"
        )
    for key in ("paths.outputs", "paths.cache"):
        if not isinstance(_get(config, key), str) or not _get(config, key):
            raise BadInput(f"{key}={show(_get(config, key))} is no folder; set {key}=FOLDER")
    for key, value in _values(config):
        numbers = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, float)]
        if not all(map(math.isfinite, numbers)):
            raise BadInput(f"{key}={show(value)} is not finite; set {key} to what is")


def expected(key: str) -> str | None:
    """What one of these keys may be, in words; None: it is none of them."""
    if key in _CHOICES:
        return ", ".join(show(choice) for choice in _CHOICES[key])
    if key in _POSITIVE:
        kind = "a number" if key in _FRACTIONAL else "a whole number"
        return f"{kind} above 0{', or null' if key in _OPTIONAL else ''}"
    return None


def check_trust(trust: Any) -> None:
    """Refuse what is no list of packages."""
    if not isinstance(trust, Sequence) or isinstance(trust, str) or not all(isinstance(name, str) for name in trust):
        raise BadInput(f"trust={show(trust)} is no list of packages; write trust=[PACKAGE]")


def check_name(name: Any) -> None:
    """Refuse a name that would leave `paths.outputs` or trouble a shell."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.,+@-]*", name) or len(name) > 100:
        raise BadInput(
            f"name={show(name)} cannot name a folder; set name to at most 100 letters, digits, '_', '-', '.', "
            "not beginning with '.' or '-'"
        )


def _values(node: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """All values below a node, with their keys."""
    for name, value in node.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _values(value, f"{key}.")
        else:
            yield key, value


def _get(config: Mapping[str, Any], key: str) -> Any:
    section, _, name = key.rpartition(".")
    return (config[section] if section else config).get(name)
