"""A run's config with a change."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triform.run.cli import config_folders, parsed
from triform.run.compose import compose
from triform.run.errors import BadInput
from triform.run.folder import RunFolder, read_overrides
from triform.run.job import settled
from triform.run.recipe import CONFIG_NAME

_ABSENT = object()


def changed(folder: RunFolder, overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The config of a run as `overrides` change it, and all that was typed for it.

    What the overrides change is found by composing the run's own command line with and without them; everything
    else stays as the run recorded it, even where the files in `conf/` have changed since.

    Raises:
        BadInput: the run's command line cannot be read, or it or the change no longer composes.
    """
    config = folder.read_config()
    typed = read_overrides(folder)
    if not overrides:
        return config, typed
    for word in _without(typed, overrides):
        if "${oc." in word:  # the file may be somebody else's, and what it reads would be written
            raise BadInput(f"{folder.overrides} has {word}, which reads your machine; if you want that, type it again")
    folders: list[Path] = config_folders(typed)
    words = parsed(typed).overrides
    name = parsed(typed).config_name or CONFIG_NAME
    for override in overrides:
        if "=" not in override and not override.startswith("~"):
            raise BadInput(f"{override}: write key=value or group=option")
    before = settled(compose(words, folders, name))
    after = settled(compose([*_without(words, overrides), *overrides], folders, name))
    return _patched(config, before, after), [*_without(typed, overrides), *overrides]


def _without(typed: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """What was typed, less the keys that are typed anew."""
    anew = {override.partition("=")[0].lstrip("+") for override in overrides}
    return [word for word in typed if word.partition("=")[0].lstrip("+") not in anew]


def _patched(config: Any, before: Any, after: Any) -> Any:
    """`config` with the difference between `before` and `after` applied, key by key."""
    if before == after:
        return config
    if not (isinstance(config, dict) and isinstance(before, dict) and isinstance(after, dict)):
        return copy.deepcopy(after)
    result = {}
    for key in [*after, *(key for key in config if key not in after)]:
        old, new, kept = (node.get(key, _ABSENT) for node in (before, after, config))
        value = _patched(kept, old, new) if kept is not _ABSENT else (new if old != new else _ABSENT)
        if value is not _ABSENT and not (new is _ABSENT and old is not _ABSENT):
            result[key] = value
    return result
