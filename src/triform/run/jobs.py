"""The jobs that a command line with several values stands for, before any sweeper has to do with it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException

from triform.run.errors import BadInput
from triform.run.recipe import quoted
from triform.run.refusal import explain


@dataclass(frozen=True)
class Words:
    """One job of several.

    Args:
        overrides: all that is typed for it.
        varied: what of that differs between jobs, in one line; empty: it is the only one.
    """

    overrides: list[str]
    varied: str


def jobs(overrides: Sequence[str], multirun: bool) -> list[Words]:
    """Every combination of the values, the first key's slowest; of a range of a search its two ends.

    Args:
        multirun: as `-m` says; else a value is what it is, whatever is in it.

    Raises:
        BadInput: an override cannot be read, or has no value.
    """
    if not multirun:
        return [Words(list(overrides), "")]
    words = [word for word in map(quoted, overrides) if not word.lstrip("+~").startswith(("hydra/", "hydra."))]
    try:
        parsed = OverridesParser.create().parse_overrides(words)
    except HydraException as error:
        raise explain(error, overrides) from error
    by_key: dict[str, Override] = {}
    for override in parsed:  # the last one of a key holds
        by_key.pop(override.get_key_element(), None)
        by_key[override.get_key_element()] = override
    axes = [_values(override) for override in by_key.values()]
    swept = {key for key, values in zip(by_key, axes, strict=True) if len(values) > 1}
    return [
        Words(list(chosen), " ".join(word for key, word in zip(by_key, chosen, strict=True) if key in swept))
        for chosen in itertools.product(*axes)
    ]


def _values(override: Override) -> list[str]:
    """An override for each of its values."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key, found = override.get_key_element(), override.value()
    if isinstance(found, IntervalSweep):
        return [f"{key}={end:g}" if isinstance(end, float) else f"{key}={end}" for end in (found.start, found.end)]
    values = [f"{key}={value}" for value in override.sweep_string_iterator()]
    if not values:
        raise BadInput(f"{override.input_line}: no value; give {key} at least one")
    return values
