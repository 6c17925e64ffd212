"""A sweep as Weights & Biases defines one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from triform.run.cli import parsed
from triform.run.errors import BadInput
from triform.sweeps.manifest import find
from triform.sweeps.samplers import Interval, kind_of, split, values_of


def definition(first: str, further: Sequence[str]) -> str:
    """The YAML file that `wandb sweep` reads: an agent runs `train.py` with the values that it is given, as Hydra
    wants them, `key=value` without dashes.

    Args:
        first: a sweep's folder, or the first word of what would be typed after `train.py -m`.
        further: the other words of it.

    Raises:
        BadInput: nothing varies.
    """
    from triform.sweeps.compose import config_of
    from triform.sweeps.run import monitor_of_config

    sampler, trials, monitor = "grid", None, None
    if "=" in first and not Path(first).exists():
        words = [first, *further]
        sampler = next((word.partition("=")[2] for word in words if word.startswith("hydra/sweeper=")), "grid")
        counts = ("hydra.sweeper.n_jobs=", "hydra.sweeper.n_trials=")
        trials = next((int(word.partition("=")[2]) for word in words if word.startswith(counts)), None)
    else:
        manifest = find(first).read()
        words, monitor = [*manifest.typed, *further], manifest.monitor
        sampler = kind_of(manifest.sweeper)
        trials = manifest.sweeper.get("n_trials", manifest.sweeper.get("n_jobs"))
        words += [word for word in manifest.fixed if word.startswith("--")]
    if sampler == "list":
        raise BadInput("a list of jobs is no sweep that Weights & Biases knows; write a grid or a search")
    if any(word.startswith("search=") for word in words):
        raise BadInput("search=...: Weights & Biases asks no key on conditions; type the ranges of the keys instead")
    if tune := next((word for word in words if word.startswith("compare.tune=") and word != "compare.tune=null"), None):
        raise BadInput(f"{tune}: Weights & Biases has no runs that follow from others; leave compare.tune out")
    found = parsed([word for word in words if not word.startswith(("hydra.", "hydra/"))])
    fixed, swept = split(found.overrides)
    if not swept:
        raise BadInput("nothing varies; give a key several values, as seed=0,1")
    flags = [word for word in words if word.startswith("--")]
    space = {override.get_key_element(): values_of(override) for override in swept}
    if monitor is None:
        monitor = monitor_of_config(config_of([*fixed, *(_example(key, of) for key, of in space.items()), *flags]))
    ranges = any(isinstance(of, Interval) for of in space.values())
    made: dict[str, Any] = {
        "program": "train.py",
        "method": "bayes" if sampler == "optuna" else "random" if ranges or sampler == "random" else "grid",
        "metric": {"name": monitor["name"], "goal": "minimize" if monitor["mode"] == "min" else "maximize"},
        "parameters": {key: _parameter(of) for key, of in space.items()},
        "command": ["${env}", "${interpreter}", "${program}", *flags, *fixed, "${args_no_hyphens}"],
    }
    if trials is not None and sampler != "grid":
        made["run_cap"] = trials
    return yaml.safe_dump(made, sort_keys=False, allow_unicode=True, width=1000)


def _example(key: str, values: "Interval | Sequence[str]") -> str:
    return f"{key}={values.start if isinstance(values, Interval) else values[0]}"


def _parameter(values: "Interval | Sequence[str]") -> Mapping[str, Any]:
    if isinstance(values, Interval):
        kind = ("q_log_uniform_values" if values.log else "int_uniform") if values.whole else None
        kind = kind or ("log_uniform_values" if values.log else "uniform")
        number = int if values.whole else float
        return {"distribution": kind, "min": number(values.start), "max": number(values.end)}
    return {"values": [yaml.safe_load(value) if _is_plain(value) else value for value in values]}


def _is_plain(value: str) -> bool:
    """Whether YAML reads a value back as the same text would be read from the command line."""
    read = yaml.safe_load(value)
    return isinstance(read, bool | int | float) and not isinstance(read, str)
