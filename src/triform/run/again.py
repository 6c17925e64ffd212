"""A run that goes on elsewhere: on more or fewer devices, cut in another way."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from triform.run.errors import BadInput, nearest
from triform.run.folder import RunFolder, write_config

CHANGEABLE = (
    *("accelerator", "devices", "num_nodes", "strategy", "tensor_parallel", "cpu_offload", "activation_checkpointing"),
    *("accumulate", "async_save", "save_parts", "save_interval", "compile", "timeout"),
)
"""Keys of `trainer` that change how fast a run learns and what it keeps, but not what it learns."""


def continued(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The config of a run that goes on, as `overrides` change it.

    Raises:
        BadInput: one that would change what is learned, or cannot be read.
    """
    trainer = dict(config.get("trainer") or {})
    there = [f"trainer.{name}" for name in CHANGEABLE if name in trainer]
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise BadInput(f"{override}: write key=value, such as trainer.devices=2")
        if key not in there:
            near = "" if key.removeprefix("trainer.") in trainer else nearest(key, there)
            raise BadInput(
                f"{key}: a run that goes on learns what it began to{near}; change one of {', '.join(there)}, or start "
                f"anew: triform rerun RUN {override}"
            )
        try:
            trainer[key.removeprefix("trainer.")] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise BadInput(f"{override}: {value} is no value; write key=value, such as trainer.devices=2") from error
    return {**config, "trainer": trainer}


def keep(folder: RunFolder, config: Mapping[str, Any]) -> None:
    """Have a run's folder say how it goes on: its ranks read that. Says what has changed."""
    before = folder.read_config()
    old, new = before["trainer"], config["trainer"]
    changes = [f"trainer.{name}={new[name]}, before {old.get(name)}" for name in new if new[name] != old.get(name)]
    if changes:
        write_config(folder, {**before, "trainer": dict(new)})
        print(f"going on with {'; '.join(changes)}", file=sys.stderr)
