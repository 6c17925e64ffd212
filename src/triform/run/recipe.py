"""What a chosen option brings along, and what it takes back, as further overrides."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from triform.run.folder import read_mapping
from triform.run.help import conf_dir

CONFIG_NAME = "train"
FROM_PRETRAINED = "from_pretrained"
"""The option of `model` that stands for what is in a folder."""


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
    data, recipe = _choice(arguments, "data"), _choice(arguments, "experiment")
    content = _recipe_content(recipe or data, folders)
    if _choice(arguments, "model") is None and _options(content).get("model") == FROM_PRETRAINED:
        arguments = [f"model={FROM_PRETRAINED}", *arguments]
    if _choice(arguments, "model") == FROM_PRETRAINED:
        from triform.run.initial import expanded

        arguments = expanded(arguments)
    brought = []
    if recipe is None and data is not None and not _is_sweep(data):
        recipe = data if _file(f"experiment/{data}", folders) is not None else "none"
        brought = [f"experiment={recipe}"]
    if _choice(arguments, "search") not in (None, "none") and _choice(arguments, "hydra/sweeper") is None:
        brought.append("hydra/sweeper=optuna")
    taken_back = [*_dropped(arguments, recipe, folders), *_misfits(arguments, recipe, folders)]
    taken_back = [word for word in taken_back if word not in arguments]  # a sweep calls twice
    return [*taken_back, *arguments, *brought]


def _recipe_content(name: str | None, folders: Sequence[Path]) -> dict[str, Any]:
    """What the file of a recipe sets; nothing where there is none of this name."""
    file = _file(f"experiment/{name}", folders)
    return {} if file is None else read_mapping(file)


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
    content = _recipe_content(recipe or default["experiment"], folders)
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
    chosen = default | _options(_recipe_content(recipe or default["experiment"], folders))
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
