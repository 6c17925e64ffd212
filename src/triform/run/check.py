"""What can be refused before anything is on disk."""

import os
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from triform.run.arguments import check_arguments
from triform.run.build import check_targets, targets
from triform.run.errors import BadInput, nearest, show
from triform.run.folder import read_mapping
from triform.run.help import conf_dir
from triform.run.relations import check_relations
from triform.run.secrets import check_secrets
from triform.run.values import NEEDED, check_name, check_trust, check_values

NOT_OF_A_RUN = ("experiment", "debug", "search", "compare")
"""Groups of `conf/` that are no section of a run's config."""


def check(config: Mapping[str, Any]) -> None:
    """Refuse a config that cannot run: keys, values, relations between groups, and the machine.

    Raises:
        BadInput: in one line: what is wrong, its config key, what to do.
    """
    check_content(config)
    devices(config)
    check_writable(Path(config["paths"]["outputs"]), "paths.outputs")
    check_writable(Path(config["paths"]["cache"]), "paths.cache")


def check_content(config: Mapping[str, Any]) -> None:
    """Refuse what is wrong on any machine.

    Raises:
        BadInput: see `check`.
    """
    check_keys(config)
    check_trust(config["trust"])
    check_targets({key: value for key, value in config.items() if key != "trust"}, config["trust"])
    check_values(config)
    check_secrets(config)
    check_name(config["name"])
    for key, node in targets(config):
        check_arguments(node, key, config["trust"])
    check_relations(config)


@cache
def _schema() -> dict[str, tuple[str, ...]]:
    """Keys of the sections that are no class's arguments, as their own YAML files state them."""
    train = read_mapping(conf_dir() / "train.yaml")
    groups = [key for entry in train["defaults"] if isinstance(entry, dict) for key in entry]
    groups = [key for key in groups if not key.startswith("override ") and key not in NOT_OF_A_RUN]
    return {
        "": (*groups, *(key for key in train if key not in ("defaults", "hydra"))),
        "paths": tuple(train["paths"]),
        "trainer": tuple(read_mapping(conf_dir() / "trainer" / "default.yaml")),
    }


def check_keys(config: Mapping[str, Any]) -> None:
    """Refuse keys that nothing reads, and sections without a key that something reads."""
    for section, known in _schema().items():
        node = config.get(section, {}) if section else config
        if not isinstance(node, Mapping):
            raise BadInput(f"{section}={show(node)} is no group of keys; it has {', '.join(known)}")
        dot = f"{section}." if section else ""
        for key in node:
            if key not in known:
                raise BadInput(f"{dot}{key}: no such key{nearest(str(key), known)}; there are {', '.join(known)}")
        for key in known:
            if key not in node:
                remedy = "start the file with defaults: [default]" if section == "trainer" else f"choose {key}=..."
                raise BadInput(f"{dot}{key} is missing; {remedy}")
    for section in ("model", "task", "data", "tokenizer", "optimizer", "scheduler"):
        if not _names_class(config[section]):
            raise BadInput(f"{section}._target_ is missing, which names its class; choose {section}=...")
    for name, node in config["callbacks"].items():
        if not _names_class(node):
            raise BadInput(f"callbacks.{name}={show(node)} is no callback; write callbacks.{name}._target_=CLASS")
    for key in NEEDED:
        if key not in config["data"]:
            raise BadInput(f"data.{key} is missing; add it to the YAML file of this data set")


def _names_class(node: Any) -> bool:
    return isinstance(node, Mapping) and "_target_" in node


RECORD = (
    *("model._target_", "task._target_", "tokenizer._target_", "data._target_", "seed", "paths.cache"),
    *("trainer.accelerator", *(f"data.{key}" for key in NEEDED)),
)
"""What using a trained model needs of its run's config."""


def check_record(config: Mapping[str, Any], file: Path) -> None:
    """Refuse a run's config that lacks what using its model needs; other keys may be those of another version.

    Raises:
        BadInput: it names the first key that is missing.
    """
    for key in RECORD:
        node: Any = config
        for part in key.split("."):
            if not isinstance(node, Mapping) or part not in node:
                raise BadInput(f"{file}: {key} is missing; put the file back as the run wrote it")
            node = node[part]


def devices(config: Mapping[str, Any]) -> tuple[str, int]:
    """The device's type ("cpu" or "cuda") and how many of its devices this machine gives the run.

    Raises:
        BadInput: more than there are, or none.
    """
    import torch

    from triform.training.hardware import device_type

    trainer = config["trainer"]
    device = device_type(trainer["accelerator"])
    there = torch.cuda.device_count() if device == "cuda" else os.cpu_count() or 1
    wanted = trainer["devices"]
    if wanted == "auto":
        wanted = 1 if device == "cpu" else there
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise BadInput(f"trainer.devices={show(wanted)} is not a whole number above 0; set trainer.devices=1 or auto")
    if wanted > there:
        name = {"cuda": "GPUs", "cpu": "CPU cores"}[device]
        remedy = f"set trainer.devices to at most {there}" if there else "set trainer.accelerator=cpu"
        raise BadInput(f"trainer.devices={wanted} is more than the {there} {name} of this machine; {remedy}")
    return device, wanted


def check_writable(folder: Path, key: str) -> None:
    """Refuse a folder that cannot be made or written to; leaves nothing behind."""
    there = folder
    while not there.exists() and there.parent != there:
        there = there.parent
    try:
        if not there.is_dir():
            raise NotADirectoryError(20, "not a folder")
        with tempfile.TemporaryDirectory(prefix=".triform-", dir=there):
            pass
    except OSError as error:
        raise BadInput(
            f"{key}={folder} cannot be written to ({there}: {error.strerror}); set {key} to a folder of your own"
        ) from error
