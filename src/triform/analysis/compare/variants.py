"""Runs that differ in their seed alone are one variant; a variant is called by what sets it apart."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triform.analysis.compare.gather import Entry
from triform.analysis.runs import Run
from triform.run.errors import BadInput, nearest

ASIDE = (
    *("seed", "name", "paths", "trust", "traceback", "logger", "match", "hydra", "sweep"),
    *("trainer.log_interval", "trainer.save_interval", "trainer.profiler", "trainer.test"),
)
"""Keys, and what is below them, that make no variant: where a run is kept and how it is watched. What `match` solves is
a size of the model, which does."""

UNSET = "not set"
N_TOLD = 3
"""Keys that tell variants apart which were typed alike."""

LONGEST = 32
"""Characters of a value in a label."""


@dataclass
class Variant:
    """Runs of one configuration.

    Attributes:
        config: by dotted key, without what makes no variant.
        typed: what was typed for the first of them, by key, without what makes no variant and what was found for it.
    """

    config: dict[str, Any]
    typed: dict[str, str]
    entries: list[Entry]
    label: str = ""

    @property
    def finished(self) -> list[Run]:
        """Its finished runs, the last of those of one seed: the same run again gives the same figures."""
        by_seed = {
            str(entry.seed): entry.run for entry in self.entries if entry.status == "finished" and entry.run is not None
        }
        return list(by_seed.values())


def variants(entries: Sequence[Entry]) -> list[Variant]:
    """Group runs that have begun, in their order, and name the groups. Runs that only tried values are in none."""
    begun = [(entry, flat(entry.run.config)) for entry in entries if entry.run is not None and entry.counts]
    seeds = {key for key in _keys(config for _, config in begun) if key.rpartition(".")[2] == "seed"}
    follow = {key for key in seeds if all(config.get(key) == entry.seed for entry, config in begun)}
    if len({entry.seed for entry, _ in begun}) < 2:  # `data.seed: 0` beside `seed: 0` need not be `${seed}`
        follow = set()
    groups: dict[str, Variant] = {}
    for entry, config in begun:
        kept = {key: value for key, value in config.items() if not aside(key) and key not in follow}
        name = json.dumps({key: value for key, value in kept.items() if value is not None}, sort_keys=True, default=str)
        if name not in groups:
            not_chosen = {entry.tuned, *solved(entry)}
            words = {key: value for key, value in typed(entry.overrides).items() if key not in not_chosen}
            groups[name] = Variant(kept, words, [])
        groups[name].entries.append(entry)
    found = list(groups.values())
    for variant, label in zip(found, labels(found), strict=True):
        variant.label = label
    return found


def solved(entry: Entry) -> tuple[str, ...]:
    """Keys whose values `match` has found for a run: what was typed for them was where it began."""
    result = (entry.run.config.get("match") or {}).get("result") if entry.run is not None else None
    return tuple(result["set"]) if isinstance(result, dict) and isinstance(result.get("set"), dict) else ()


def flat(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Leaves of a config by dotted key; a list is a leaf, an empty mapping is none."""
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            leaves |= flat(value, f"{above}{key}.")
        else:
            leaves[f"{above}{key}"] = value
    return leaves


def aside(key: str) -> bool:
    """Whether a key, dotted or with slashes, makes no variant."""
    dotted = key.replace("/", ".")
    return any(dotted == name or dotted.startswith(f"{name}.") for name in ASIDE)


def typed(overrides: Sequence[str]) -> dict[str, str]:
    """Overrides by key; a key that was removed is `removed`."""
    found = {}
    for word in overrides:
        key, equals, value = word.partition("=")
        if word.startswith("-") or aside(key.lstrip("+~").partition("@")[0]):
            continue
        found[key.lstrip("+~")] = "removed" if word.startswith("~") or not equals else value
    return found


def differing(group: Sequence[Variant]) -> list[str]:
    """Dotted keys of the config whose values differ; absent and null are the same."""
    return [
        key
        for key in _keys(variant.config for variant in group)
        if len({_comparable(variant.config.get(key)) for variant in group}) > 1
    ]


def varied(group: Sequence[Variant]) -> dict[str, list[Any]]:
    """What was varied: key to a value for each variant, in the order in which it was typed.

    A number, truth value or text where the config has the key; of a group of `conf/` its option, None where nobody
    typed one.
    """
    found: dict[str, list[Any]] = {}
    for key in _keys(variant.typed for variant in group):
        values = [variant.config.get(key, variant.typed.get(key)) for variant in group]
        if len({_comparable(value) for value in values}) > 1:
            found[key] = values
    return found


def labels(group: Sequence[Variant]) -> list[str]:
    """A short name for each variant, no two alike: what was typed for it that others have otherwise."""
    if len(group) == 1:
        run = group[0].entries[0].run
        return [str(run.config.get("name") or "run") if run is not None else "run"]
    found = varied(group)
    names = short(found)
    made = []
    for i, variant in enumerate(group):
        told = [key for key in found if key in variant.typed] or [key for key in found if found[key][i] is not None]
        made.append(" ".join(f"{names[key]}={shown(_without_folder(found[key][i]))}" for key in told) or "default")
    for label in [label for label, count in Counter(made).items() if count > 1]:
        alike = [i for i, other in enumerate(made) if other == label]
        for i, more in zip(alike, _told_apart([group[i] for i in alike]), strict=True):
            made[i] = more if label == "default" else f"{label} {more}"
    repeated = {label for label, count in Counter(made).items() if count > 1}
    return [
        f"{label} ({variant.entries[0].name})" if label in repeated else label
        for variant, label in zip(group, made, strict=True)
    ]


def find(group: Sequence[Variant], wanted: str) -> Variant:
    """The variant of this label, of the folder of one of its runs, or the first with this KEY=VALUE.

    Raises:
        BadInput: there is none.
    """
    for variant in group:
        if variant.label == wanted or any(
            wanted in (entry.folder.name, entry.name, str(entry.folder)) for entry in variant.entries
        ):
            return variant
    key, equals, value = wanted.partition("=")
    names = short(varied(group))
    for variant in group if equals else ():
        known = {names.get(name, name): held for name, held in variant.typed.items()}
        known |= variant.typed | {name: shown(held) for name, held in variant.config.items()}
        if key in known and _same(known[key], value):
            return variant
    choices = [variant.label for variant in group]
    few = ", ".join(f"'{label}'" for label in choices[:5])
    raise BadInput(
        f"--baseline {wanted}: no variant is called so or has this value{nearest(wanted, choices)}; there are {few}"
        f"{' and others' if len(choices) > 5 else ''}"
    )


def short(keys: Iterable[str]) -> dict[str, str]:
    """Each key by as few of its last parts as tell it from the others; `model/norm@model.encoder.norm` by its place."""
    parts = {key: _parts(key) for key in keys}
    names = {}
    for key, mine in parts.items():
        fewest = len(mine) if "@" in key else 1
        for n in range(fewest, len(mine) + 1):
            if all(other[-n:] != mine[-n:] for name, other in parts.items() if name != key):
                break
        names[key] = ".".join(mine[-n:])
    return names


def shown(value: Any) -> str:
    """A value as it is typed; a number to four digits, of a class its name, of a long path its last names, of a
    long list its first value and how many more."""
    if isinstance(value, list) and len(json.dumps(value)) > LONGEST:
        return f"[{shown(value[0])}{f', +{len(value) - 1}' if len(value) > 1 else ''}]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e6 else f"{value:.4g}"
    text = json.dumps(value) if isinstance(value, list | dict) else str(value)
    if re.fullmatch(r"[A-Za-z_][\w]*(\.[A-Za-z_]\w*)+", text):
        text = text.rpartition(".")[2]
    if len(text) <= LONGEST:
        return text
    start = len(text) - LONGEST + 1
    whole = text.find("/", start)
    return "…" + text[start if whole < 0 else whole :]


def _without_folder(value: Any) -> Any:
    """A path by its last name: where it lies on one machine tells nobody what it is."""
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _parts(key: str) -> list[str]:
    parts = re.split(r"[./]", key.rpartition("@")[2].removesuffix("._target_"))
    return parts[1:] if "@" in key and parts[0] == "model" and len(parts) > 1 else parts


def _told_apart(group: Sequence[Variant]) -> list[str]:
    keys = sorted(differing(group), key=lambda key: (key.rpartition(".")[2] != "_target_", key.count(".")))
    names = short(keys)
    texts = []
    for variant in group:
        words = [f"{names[key]}={shown(variant.config.get(key))}" for key in keys[:N_TOLD]]
        texts.append(" ".join(words) + (" …" if len(keys) > N_TOLD else ""))
    return texts


def _keys(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for mapping in mappings for key in mapping))


def _comparable(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _same(one: str, other: str) -> bool:
    """Whether two texts are equal, or the same number."""
    try:
        return one == other or float(one) == float(other)
    except ValueError:
        return False
