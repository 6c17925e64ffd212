"""From what the user typed to one plain, resolved config."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue, OmegaConfBaseException

from triform.run.errors import BadInput, nearest, one_line
from triform.run.folder import read_mapping
from triform.run.help import conf_dir, groups

VERSION_BASE = "1.3"
FROM_PRETRAINED = "from_pretrained"
"""The option of `model` that stands for what is in a folder."""
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
    """The overrides, with the recipe that a chosen data set brings along, as far as it still fits.

    `data=X` without an `experiment=` means `experiment=X` where there is a recipe of that name, else none. What a
    recipe sets for a class is dropped where another class is chosen: `optimizer=muon` has Muon's own learning rate,
    not the recipe's for AdamW. Optimizer and scheduler are tuned together; choosing either drops both. What a model
    sets for a part is dropped where another part is chosen that has no such key. A space to search, `search=X`, means
    `hydra/sweeper=optuna`.

    Args:
        folders: config folders of the user's own, searched before triform's.

    Raises:
        BadInput: `model=from_pretrained` of a folder that holds no model.
    """
    arguments = [quoted(argument) for argument in arguments]
    if _choice(arguments, "model") == FROM_PRETRAINED:
        from triform.run.initial import expanded

        arguments = expanded(arguments)
    data, recipe = _choice(arguments, "data"), _choice(arguments, "experiment")
    brought = []
    if recipe is None and data is not None and not _is_sweep(data):
        recipe = data if _file(f"experiment/{data}", folders) is not None else "none"
        brought = [f"experiment={recipe}"]
    if _choice(arguments, "search") not in (None, "none") and _choice(arguments, "hydra/sweeper") is None:
        brought.append("hydra/sweeper=optuna")
    taken_back = [*_dropped(arguments, recipe, folders), *_misfits(arguments, recipe, folders)]
    taken_back = [word for word in taken_back if word not in arguments]  # a sweep calls twice
    return [*taken_back, *arguments, *brought]


def quoted(argument: str) -> str:
    """An override whose value is overrides itself, quoted for Hydra as a shell takes the quotes away."""
    key, _, value = argument.partition("=")
    if key.lstrip("+") != "match.to" or "=" not in value or value[:1] in ("'", '"'):
        return argument
    escaped = value.replace("'", "\\'")
    return f"{key}='{escaped}'"


TUNED_TOGETHER = (("optimizer", "scheduler"), ("tokenizer",), ("task",))
"""Groups whose values in a recipe belong to the classes that it chooses."""


def _dropped(arguments: Sequence[str], recipe: str | None, folders: Sequence[Path]) -> Iterator[str]:
    """Overrides that take back what the recipe sets for classes that `arguments` replaces."""
    default = _options(read_mapping(conf_dir() / f"{CONFIG_NAME}.yaml"))
    file = _file(f"experiment/{recipe or default['experiment']}", folders)
    if file is None:
        return
    content = read_mapping(file)
    chosen = default | _options(content)
    for groups_together in TUNED_TOGETHER:
        options = {group: _choice(arguments, group) or chosen[group] for group in groups_together}
        if options == {group: chosen[group] for group in groups_together} or any(map(_is_sweep, options.values())):
            continue
        for group, option in options.items():
            values = _stated(group, option, folders)
            for key in content.get(group) or {}:
                yield f"{group}.{key}={json.dumps(values[key])}" if key in values else f"~{group}.{key}"


def _misfits(arguments: Sequence[str], recipe: str | None, folders: Sequence[Path]) -> Iterator[str]:
    """Overrides that take back what the model's file sets for a part of it that `arguments` replaces by another.

    Of GPT-2's `attention.bias` nothing is left with `model/attention=alternate`; with grouped queries it holds.
    """
    default = _options(read_mapping(conf_dir() / f"{CONFIG_NAME}.yaml"))
    file = _file(f"experiment/{recipe or default['experiment']}", folders)
    chosen = default | (_options(read_mapping(file)) if file is not None else {})
    model = _choice(arguments, "model") or chosen["model"]
    values = {} if _is_sweep(model) else _stated("model", model, folders)
    for argument in arguments:
        place, _, option = argument.removeprefix("+").partition("=")
        group, _, package = place.partition("@")
        if not group.startswith("model/") or _is_sweep(option) or _file(f"{group}/{option}", folders) is None:
            continue
        node = package or group.replace("/", ".")
        ours: Any = values
        for key in node.split(".")[1:]:
            ours = ours.get(key) if isinstance(ours, Mapping) else None
        if isinstance(ours, Mapping):
            yield from _taken_back(node, ours, _stated(group, option, folders))


def _taken_back(node: str, values: Mapping[str, Any], stated: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if key not in stated:
            yield f"~{node}.{key}"
        elif isinstance(value, Mapping) and isinstance(stated[key], Mapping):
            yield from _taken_back(f"{node}.{key}", value, stated[key])
        elif isinstance(value, Mapping):
            yield f"{node}.{key}={json.dumps(stated[key])}"


def _stated(group: str, option: str, folders: Sequence[Path]) -> dict[str, Any]:
    """What the file of an option sets, and those of its group that it builds on; a part in it is an empty mapping."""
    file = _file(f"{group}/{option}", folders)
    content = read_mapping(file) if file is not None else {}
    stated: dict[str, Any] = {}
    for entry in content.get("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            stated = _merged(stated, _stated(group, entry, folders))
        elif isinstance(entry, Mapping):
            stated |= {place.partition("@")[2]: {} for place in entry if "@" in place and "." not in place}
    return _merged(stated, content)


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for key, value in second.items():
        before = merged.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(before, value)
        else:
            merged[key] = value
    return merged


def _options(content: Mapping[str, Any]) -> dict[str, str]:
    """Group -> option, of a config's defaults list."""
    entries = [entry for entry in content.get("defaults", []) if isinstance(entry, Mapping)]
    return {
        str(group).removeprefix("override ").lstrip("/"): str(option)
        for entry in entries
        for group, option in entry.items()
    }


def _is_sweep(value: str) -> bool:
    """Whether a value stands for several."""
    return "," in value or "(" in value


def _file(name: str, folders: Sequence[Path]) -> Path | None:
    """The first config file of a name, in the user's own folders and triform's."""
    for folder in (*folders, conf_dir()):
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    return None


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


def plain(config: DictConfig, hydra: Any = None) -> dict[str, Any]:
    """The config as plain dicts and lists, every interpolation resolved, without Hydra's own node.

    Args:
        hydra: Hydra's own node where `config` does not hold it.

    Raises:
        BadInput: an interpolation leads nowhere or a mandatory value is missing.
    """
    hydra = config.hydra if hydra is None else hydra
    choices = {str(group): option for group, option in hydra.runtime.choices.items()}
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
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
    if isinstance(error, OverrideParseException):
        key, equals, value = (error.override or "").partition("=")
        bare = value.strip("\"' ")
        remedy = f"quote the value: '{key}=\"{bare}\"'" if equals else "write key=value or group=option"
        return BadInput(f"{error.override}: cannot be read as key=value; {remedy}")
    text = "\n".join(str(link) for link in chain)

    if "Config group override must be a string" in text:
        known = groups(*folders)
        for override in overrides:
            key, _, value = override.partition("=")
            if key.partition("@")[0] in known and not re.fullmatch(r"(?!null$)[A-Za-z_][\w-]*", value):
                return BadInput(f"{override}: name an option; there are {', '.join(known[key.partition('@')[0]])}")
    if match := re.search(r"Could not find '([^']+)'", text):
        group, _, option = match[1].rpartition("/")
        options = sorted(set(groups(*folders).get(group, [])))
        if options:
            near = nearest(option, options)
            return BadInput(f"{group}={option}: no such option{near}; there are {', '.join(options)}")
        hint = "; is its Hydra plugin installed?" if group.startswith("hydra/") else ""
        return BadInput(f"{group}={option}: no such option{hint}" if group else f"{option}: no such config file")
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
    first = next((str(link) for link in reversed(chain) if str(link)), type(error).__name__)
    return BadInput(one_line(ValueError(first.split("See https")[0])))


def unknown_key(key: str, overrides: Sequence[str], folders: Sequence[Path] = (), group: str = "") -> BadInput:
    """The refusal of a key that nothing reads, with the nearest right one.

    Args:
        overrides: what was typed; the groups in it decide which keys there are.
        group: the config group, where `key` was taken for one.
    """
    known = groups(*folders)
    if group.partition("@")[0] in known:
        return BadInput(f"{group}: there is no such choice in this model; python train.py --help {key} shows the group")
    names = list(keys(_composable(overrides, folders, set(known))))
    inner, _, last = key.rpartition(".")
    siblings = [name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == inner]
    siblings = [name for name in siblings if not name.startswith("_")]
    same_end = sorted((name for name in names if name.rpartition(".")[2] == last), key=lambda name: name.count("."))
    remedy = "; python train.py --help lists them"
    if having := [option for option in known.get(inner, []) if _states(inner, option, last)]:
        remedy = f" with the {inner} chosen; it belongs to {', '.join(f'{inner}={option}' for option in having)}"
    elif inner and (hint := nearest(last, siblings)):
        remedy = hint.replace("mean '", f"mean '{inner}.") + remedy
    elif same_end:
        remedy = f" (did you mean '{same_end[0]}'?)" + remedy
    elif inner and siblings:
        remedy = f"; {inner} has {', '.join(siblings)}"
    elif inner:
        remedy = nearest(key, names) + remedy
    else:
        ends = {name.rpartition(".")[2]: name for name in sorted(names, key=lambda name: -name.count("."))}
        ends |= {name: name for name in known}
        close = get_close_matches(key, ends, n=1)
        remedy = (f" (did you mean '{ends[close[0]]}'?)" if close else "") + remedy
    return BadInput(f"{key}: no such key{remedy}")


def _composable(overrides: Sequence[str], folders: Sequence[Path], known: set[str]) -> dict[Any, Any]:
    """The config with as much of `overrides` as chooses options and composes."""
    choosing = [override for override in overrides if override.partition("=")[0].partition("@")[0] in known]
    for kept in ([choosing] if choosing != list(overrides) else []) + [[]]:
        try:
            config = composed(with_recipe(kept, folders), folders)
        except BadInput:
            continue
        own = OmegaConf.masked_copy(config, [str(name) for name in config if name != "hydra"])
        found = OmegaConf.to_container(own)
        assert isinstance(found, dict)
        return found
    return {}


def _states(group: str, option: str, key: str) -> bool:
    """Whether the file of a group's option has a key."""
    file = conf_dir() / group / f"{option}.yaml"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return re.search(rf"^{re.escape(key)}:", text, re.MULTILINE) is not None
