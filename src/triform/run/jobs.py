"""The jobs that a command line with several values stands for, before any sweeper has to do with it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.errors import HydraException

from triform.run.errors import BadInput
from triform.run.folder import read_mapping
from triform.run.help import conf_dir
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


def staged(overrides: Sequence[str]) -> list[Words]:
    """The jobs of a sweep as `jobs` has them; with `compare.tune` the trials of each variant, then its runs at the best
    value, which is taken to be the variant's own or the first that is typed.

    Raises:
        BadInput: an override cannot be read, or has no value.
    """
    typed = {word.partition("=")[0]: word.partition("=")[2] for word in overrides}
    key = typed.get("compare.tune", "null")
    runs = jobs(overrides, True)
    if key == "null":
        return runs
    found: list[Words] = []
    by_variant: dict[str, list[Words]] = {}
    for run in runs:
        by_variant.setdefault(_without(run.varied, ("seed", key)), []).append(run)
    count = typed.get("compare.trials") or str(read_mapping(conf_dir() / "compare" / "default.yaml")["trials"])
    if not count.isdigit() or int(count) < 2:
        raise BadInput(f"compare.trials={count} is no whole number of at least 2; set compare.trials to one")
    for name, mine in by_variant.items():
        values = list(dict.fromkeys(word for run in mine for word in run.varied.split() if word.startswith(f"{key}=")))
        is_range = "interval(" in typed.get(key, "")
        trials = [""] * int(count) if is_range or not values else values
        for number, value in enumerate(trials, start=1):
            job = next((run for run in mine if value in run.varied.split()), mine[0])
            shown = f"{value} trial" if value else f"trial {number} of {count}"
            found.append(Words(job.overrides, f"{name} {shown}".strip()))
    for mine in by_variant.values():
        first = next((word for word in mine[0].varied.split() if word.startswith(f"{key}=")), None)
        kept = [run for run in mine if first is None or first in run.varied.split()]
        found += [Words(run.overrides, f"{_without(run.varied, (key,))} at its best {key}".strip()) for run in kept]
    return found


def _without(varied: str, keys: Sequence[str]) -> str:
    return " ".join(word for word in varied.split() if word.partition("=")[0] not in keys)


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
