"""What Hydra could not compose, said in one line with the nearest right name."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra.errors import OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationKeyError

from triform.run.compose import composed, keys
from triform.run.errors import BadInput, nearest, one_line
from triform.run.help import conf_dir, groups
from triform.run.recipe import with_recipe


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

    if any(isinstance(link, InterpolationKeyError) for link in chain):  # a group is chosen before any key has a value
        given = [override for override in overrides if "${" in override.partition("=")[2]]
        found = one_line(chain[-1])
        return BadInput(f"{' or '.join(given) or 'a defaults list'}: {found} among the groups; name an option instead")
    if "Config group override must be a string" in text or "is not iterable" in text:
        known = groups(*folders)
        for override in overrides:
            key, _, value = override.lstrip("+").partition("=")
            if key.partition("@")[0] in known and not re.fullmatch(r"(?!null$)[A-Za-z_][\w-]*", value):
                return BadInput(f"{override}: name an option; there are {', '.join(known[key.partition('@')[0]])}")
    if "Cannot merge" in text:  # which one it is Hydra does not say
        given = [override for override in overrides if override.partition("=")[2].startswith(("[", "{"))]
        if given:
            return BadInput(
                f"{' or '.join(given)}: a list where {{key: value}} belongs, or the other way round; "
                "python train.py --help shows what each key is"
            )
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
        # Of key={inner: value} it is perhaps the inner one that is not there.
        inside = re.search(rf"is not in struct\s+full_key: ({re.escape(match[1])}\.\S+)", text)
        return unknown_key(inside[1] if inside else match[1], overrides, folders)
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
    if inner == "callbacks":
        return BadInput(
            f"{key}: no such callback; add it: +{key}._target_=CLASS, and its arguments as +{key}.NAME=VALUE"
        )
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
