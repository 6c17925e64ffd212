"""From what the user typed to one plain, resolved config."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from triform.run.errors import BadInput, nearest
from triform.run.help import conf_dir
from triform.run.recipe import CONFIG_NAME, with_recipe

VERSION_BASE = "1.3"


def compose(overrides: Sequence[str], folders: Sequence[Path] = (), config_name: str = CONFIG_NAME) -> dict[str, Any]:
    """The resolved config that `python train.py OVERRIDES` runs.

    Args:
        folders: config folders of the user's own, which win over triform's (`--config-dir`).

    Raises:
        BadInput: a key, group, option or value is wrong.
    """
    return plain(composed(with_recipe(overrides, folders), folders, config_name))


def composed(overrides: Sequence[str], folders: Sequence[Path], config_name: str = CONFIG_NAME) -> DictConfig:
    """Hydra's config, its own node included, with interpolations.

    Raises:
        BadInput: a key, group, option or value is wrong.
    """
    search = [f"hydra.searchpath=[{','.join(f'file://{folder.resolve()}' for folder in folders)}]"] if folders else []
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
            return hydra_compose(config_name, [*search, *overrides], return_hydra_config=True)
    except Exception as error:
        from triform.run.refusal import explain  # which composes itself, to find the right name

        raise explain(error, overrides, folders) from error
    finally:
        GlobalHydra.instance().hydra = before


def plain(config: DictConfig, hydra: Any = None) -> dict[str, Any]:
    """The config of a run as plain dicts and lists, every interpolation resolved, without what is Hydra's or a sweep's.

    Args:
        hydra: Hydra's own node where `config` does not hold it.

    Raises:
        BadInput: an interpolation leads nowhere or a mandatory value is missing.
    """
    hydra = config.hydra if hydra is None else hydra
    choices = {str(group): option for group, option in hydra.runtime.choices.items()}
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key not in ("hydra", "compare")])
    try:
        resolved = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise BadInput(f"{error.full_key} has no value; set it: {error.full_key}=VALUE") from error
    except OmegaConfBaseException as error:
        raise unresolved(error, keys(OmegaConf.to_container(own))) from error
    assert isinstance(resolved, dict)
    values = {str(key): value for key, value in resolved.items()}
    if values.get("name") is None:
        values["name"] = str(choices.get("data", "run")).replace("/", "_")
    return values


def unresolved(error: OmegaConfBaseException, names: Iterable[str]) -> BadInput:
    """The refusal of a `${...}` that stands for nothing.

    Args:
        names: of the keys that there are.
    """
    reason = str(error).splitlines()[0].rpartition("raised while resolving interpolation: ")[2].strip('"')
    if match := re.search(r"Interpolation key '([^']+)' not found", reason):
        reason = f"${{{match[1]}}} names no key{nearest(match[1], names)}"
    elif "Recursive interpolation" in reason:
        reason = "${...} leads back to this key"
    return BadInput(f"{error.full_key}: {reason}; set {error.full_key}=VALUE, or mend what stands in its ${{...}}")


def keys(config: Any, prefix: str = "") -> Iterator[str]:
    """Every dotted key of a nested mapping."""
    if isinstance(config, Mapping):
        for name, value in config.items():
            yield f"{prefix}{name}"
            yield from keys(value, f"{prefix}{name}.")
