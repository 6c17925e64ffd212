"""From what the user typed to one plain, resolved config."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue, OmegaConfBaseException

from triform.run.errors import BadInput, nearest, one_line
from triform.run.help import conf_dir, groups

VERSION_BASE = "1.3"
CONFIG_NAME = "train"


def _choice(arguments: Sequence[str], group: str) -> str | None:
    """The option that the last `group=option` of `arguments` chooses."""
    chosen = None
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key == group:
            chosen = value
    return chosen


def with_recipe(arguments: Sequence[str], folders: Sequence[Path] = ()) -> list[str]:
    """The arguments, with the recipe that a chosen data set brings along.

    `data=X` without an `experiment=` means `experiment=X` where there is a recipe of that name, else none.

    Args:
        folders: config folders of the user's own, searched beside triform's.
    """
    data = _choice(arguments, "data")
    if data is None or "," in data or "(" in data or _choice(arguments, "experiment") is not None:
        return list(arguments)
    known = any((folder / "experiment" / f"{data}.yaml").is_file() for folder in (*folders, conf_dir()))
    return [*arguments, f"experiment={data if known else 'null'}"]


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
        raise explain(error, overrides, folders) from error
    finally:
        GlobalHydra.instance().hydra = before


def plain(config: DictConfig, hydra: DictConfig | None = None) -> dict[str, Any]:
    """The config as plain dicts and lists, every interpolation resolved, without Hydra's own node.

    Args:
        hydra: Hydra's own node where `config` does not hold it.

    Raises:
        BadInput: an interpolation leads nowhere or a mandatory value is missing.
    """
    hydra = config.hydra if hydra is None else hydra
    choices = {str(group): option for group, option in hydra.runtime.choices.items()}
    own = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
    try:
        resolved = OmegaConf.to_container(own, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise BadInput(f"{error.full_key} has no value; set it: {error.full_key}=VALUE") from error
    except InterpolationKeyError as error:
        raise BadInput(f"{error.full_key}: {one_line(error)}") from error
    except OmegaConfBaseException as error:
        raise BadInput(f"{error.full_key}: {one_line(error)}") from error
    assert isinstance(resolved, dict)
    values = {str(key): value for key, value in resolved.items()}
    if values.get("name") is None:
        values["name"] = str(choices.get("data", "run")).replace("/", "_")
    return values


def keys(config: Any, prefix: str = "") -> Iterator[str]:
    """Every dotted key of a nested mapping."""
    if isinstance(config, Mapping):
        for name, value in config.items():
            yield f"{prefix}{name}"
            yield from keys(value, f"{prefix}{name}.")


def explain(error: BaseException, overrides: Sequence[str], folders: Sequence[Path] = ()) -> BadInput:
    """One line for an exception of Hydra, with the nearest right name."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    if any(isinstance(link, BadInput) for link in chain):
        return next(link for link in chain if isinstance(link, BadInput))
    text = "\n".join(str(link) for link in chain)

    if match := re.search(r"Could not find '([^']+)'", text):
        group, _, option = match[1].rpartition("/")
        options = sorted(set(groups(*folders).get(group, [])))
        if options:
            return BadInput(f"{group}={option}: no such option{nearest(option, options)}; there are {', '.join(options)}")
        return BadInput(f"{match[1]}: no such config file")
    match = re.search(r"Could not (?:override|append to config\. .*?)? ?'([^']+)'", text) or re.search(
        r"Could not delete from config\. '([^']+)'", text
    )
    if match and "No match in the defaults list" not in text and "already at" not in text:
        return unknown_key(match[1], overrides, folders)
    if match := re.search(r"Could not override '([^']+)'\. No match in the defaults list", text):
        return unknown_key(match[1].partition("@")[0], overrides, folders, group=match[1])
    if match := re.search(r"Could not append to config\. An item is already at '([^']+)'", text):
        return BadInput(f"+{match[1]}: the key is there already; write {match[1]}=VALUE without the plus")
    if match := re.search(r"Multiple values for ([^\s.]+)", text):
        return BadInput(f"{match[1]} is given more than once; give it once")
    if match := re.search(r"Ambiguous value for argument '([^']+)'", text):
        key, _, value = match[1].partition("=")
        return BadInput(f"{match[1]}: several values; write {key}=[{value}] for a list, or add -m to run each of them")
    if match := re.search(r"Error parsing override '(.*?)'\s+(.*)", text, re.DOTALL):
        cause = match[2].split("See https")[0].strip().splitlines()
        key, equals, value = match[1].partition("=")
        remedy = f"""; quote the value: '{key}="{value}"'""" if equals else "; write key=value"
        return BadInput(f"{match[1]}: {one_line(ValueError(cause[0] if cause else ''))}{remedy}")
    first = next((str(link) for link in reversed(chain) if str(link)), type(error).__name__)
    return BadInput(one_line(ValueError(first.split("See https")[0])))


def unknown_key(key: str, overrides: Sequence[str], folders: Sequence[Path] = (), group: str = "") -> BadInput:
    """The refusal of a key that nothing reads, with the nearest right one."""
    known = set(groups(*folders))
    for kept in ([o for o in overrides if o.partition("=")[0].partition("@")[0] in known], []):
        if kept == list(overrides):
            continue
        try:
            config = composed(kept, folders)
            break
        except BadInput:
            continue
    else:
        config = composed([], ())
    names = [*keys(OmegaConf.to_container(OmegaConf.masked_copy(config, [k for k in config if k != "hydra"])))]
    inner, _, last = key.rpartition(".")
    candidates = [name for name in names if name.rpartition(".")[0] == inner]
    siblings = [name.rpartition(".")[2] for name in candidates]
    hint = nearest(last, siblings)
    if hint and inner:
        hint = hint.replace("mean '", f"mean '{inner}.")
    hint = hint or nearest(key, [*names, *known]) or nearest(last, [name for name in names if "." not in name])
    if not hint:
        ends = [name for name in names if name.rpartition(".")[2] == last]
        hint = f" (did you mean '{ends[0]}'?)" if ends else ""
    if group in known:
        return BadInput(f"{group}: this model has no such part to choose")
    listing = "" if hint or not siblings else f"; {inner or 'the config'} has {', '.join(sorted(siblings))}"
    return BadInput(f"{key}: no such key{hint}{listing}; python train.py --help lists them")
