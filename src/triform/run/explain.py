"""Where a key's value is from: the files and overrides that state it, the last of which holds."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from triform.run.arguments import choices
from triform.run.compose import VERSION_BASE, composed, keys, plain
from triform.run.errors import BadInput
from triform.run.help import conf_dir, groups
from triform.run.recipe import CONFIG_NAME, with_recipe
from triform.run.refusal import unknown_key

TYPED, BROUGHT = "command line", "the option itself: the recipe is for another"


@dataclass(frozen=True)
class Source:
    """One place that states a value.

    Args:
        place: file and line, or "command line".
        text: the value as it stands there.
        comment: beside it.
    """

    place: str
    text: str
    comment: str


@dataclass(frozen=True)
class Explanation:
    """A key's value and where it is from.

    Args:
        value: resolved, as YAML.
        sources: in the order in which they are merged: the last one holds.
        choices: what it may be; None: not known.
    """

    key: str
    value: str
    sources: Sequence[Source]
    choices: str | None


def explain_key(key: str, overrides: Sequence[str], folders: Sequence[Path]) -> Explanation:
    """Explain a key (`optimizer.lr`) or a choice (`model/attention`) under the overrides of a command line.

    Args:
        folders: config folders of the user's own.

    Raises:
        BadInput: an override is wrong, or there is no such key.
    """
    words = with_recipe(overrides, folders)
    config = composed(words, folders)
    place = key.partition("@")[2] or key.replace("/", ".")
    chosen = _choices(config)
    for package, (group, option) in chosen.items():
        if place in (package, group.replace("/", ".")) and (package == place or "@" not in key):
            package = place if place in chosen else package
            group, option = chosen[package]
            return _choice(package, group, option, overrides, words, folders)
    known = plain(config) | {"compare": OmegaConf.to_container(config.compare) if "compare" in config else {}}
    if place not in keys(known):
        raise unknown_key(place, overrides, folders)
    found: Any = known
    for name in place.split("."):
        found = found[name]
    if isinstance(found, Mapping):
        raise BadInput(f"{place} is a group of keys: {', '.join(f'{place}.{name}' for name in found)}; name one")
    stated = [source for file, package in files(words, folders) for source in _stated(file, package, place)]
    for word in words:
        name, _, value = word.lstrip("+~").partition("=")
        if name.replace("/", ".") == place:
            stated.append(Source(TYPED if word in overrides else BROUGHT, value, ""))
    return Explanation(place, _yaml(found), stated, choices(known, place))


def _choice(
    package: str,
    group: str,
    option: str | None,
    overrides: Sequence[str],
    words: Sequence[str],
    folders: Sequence[Path],
) -> Explanation:
    """Of a config group at a place: who chose the option."""
    sources = []
    for file, within in files(words, folders):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            match = re.match(r"\s*- (?:override )?(/?)([\w/]+)(?:@([\w.]+))?: *(\S+)\s*(?:# *(.*))?$", line)
            if match:
                root = within if not match[1] and "override" not in line else ""
                named = match[2] if not root else f"{root.replace('.', '/')}/{match[2]}"
                at = f"{root}.{match[3]}".strip(".") if match[3] else named.replace("/", ".")
                if at == package:
                    sources.append(Source(f"{shown(file)}:{number}", match[4], match[5] or ""))
    for word in words:
        name, _, value = word.lstrip("+").partition("=")
        at = name.partition("@")[2] or name.replace("/", ".")
        if at == package:
            sources.append(Source(TYPED if word in overrides else "the data set, which has this recipe", value, ""))
    options = groups(*folders).get(group, [])
    name = group if package == group.replace("/", ".") else f"{group}@{package}"
    return Explanation(name, str(option or "null"), sources, ", ".join(options) or None)


def _choices(config: DictConfig) -> dict[str, tuple[str, str | None]]:
    """Place in the config -> config group and option there, null where none is chosen."""
    found = {}
    for name, option in config.hydra.runtime.choices.items():
        group, _, package = str(name).partition("@")
        if not group.startswith("hydra"):
            found[package or group.replace("/", ".")] = (group, option)
    return found


def files(words: Sequence[str], folders: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """The files of a composition in the order in which they are merged, with their place in the config."""
    search = [f"hydra.searchpath=[{','.join(f'file://{folder.resolve()}' for folder in folders)}]"] if folders else []
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE):
            loader = GlobalHydra.instance().config_loader()
            merged = loader.compute_defaults_list(CONFIG_NAME, [*search, *words], RunMode.RUN).defaults
    finally:
        GlobalHydra.instance().hydra = before
    for entry in merged:
        for folder in (*folders, conf_dir()):
            file = folder / f"{entry.config_path}.yaml"
            if file.is_file():
                yield file, entry.package or ""
                break


def _stated(file: Path, package: str, key: str) -> Iterator[Source]:
    """What a file says of a key."""
    if package and not key.startswith(f"{package}."):
        return
    text = file.read_text(encoding="utf-8")
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = 0
    for name in (key.removeprefix(f"{package}.") if package else key).split("."):
        if not isinstance(node, yaml.MappingNode):
            return
        pairs = {k.value: (k, v) for k, v in node.value}
        if name not in pairs:
            return
        at, node = pairs[name]
        line = at.start_mark.line
    value = text[node.start_mark.index : node.end_mark.index].strip() or "null"
    comment = re.search(r"\s# *(.*)$", text.splitlines()[line].partition(":")[2])
    yield Source(f"{shown(file)}:{line + 1}", " ".join(value.split()), comment[1] if comment else "")


def shown(file: Path) -> str:
    """A file as the user would name it."""
    conf = conf_dir()
    return f"conf/{file.relative_to(conf).as_posix()}" if file.is_relative_to(conf) else str(file)


def _yaml(value: Any) -> str:
    text = OmegaConf.to_yaml(OmegaConf.create({"value": value})).partition(":")[2]
    return text.strip() if "\n" not in text.strip() else str(value)
