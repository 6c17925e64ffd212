"""From the overrides of a job to its config and its run folder."""

import copy
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from triform.run.check import check_keys
from triform.run.cli import config_folders, parsed
from triform.run.compose import composed, plain
from triform.run.errors import BadInput, nearest, one_line
from triform.run.folder import RunFolder
from triform.run.help import conf_dir
from triform.run.job import checked, created, settled
from triform.run.match import matched
from triform.run.recipe import CONFIG_NAME, with_recipe
from triform.run.relations import check_reach
from triform.sweeps.launcher import Launcher
from triform.sweeps.manifest import Job

if TYPE_CHECKING:
    from triform.data.prepare import Prepared


@dataclass(frozen=True)
class Composed:
    """A job that has passed every check.

    Args:
        figures: names of the validation figures that it will log.
        monitor: the one that picks its best checkpoint, and whether its "min" or "max" is best.
    """

    config: dict[str, Any]
    prepared: "Prepared"
    figures: tuple[str, ...]
    monitor: tuple[str, str]


def compose_job(job: Job, launcher: Launcher, trust: Sequence[str]) -> Composed:
    """Compose a job and check all of it; its data is prepared, where that has not been done.

    Args:
        trust: packages besides triform's own that its config may name.

    Raises:
        BadInput: in one line, with what of the job varies.
    """
    try:
        config = matched(config_of(job.overrides) | {"trust": list(trust)}, job.overrides)
        prepared = checked(launcher.as_if_here(config))
        launcher.shape(config)
        return Composed(config, prepared, *figures_of(config, prepared))
    except ValueError as error:
        varied = " ".join(job.varied)
        raise BadInput(f"{one_line(error)} (in the run with {varied})" if varied else one_line(error)) from error


def config_of(overrides: Sequence[str]) -> dict[str, Any]:
    """The resolved config of a command line.

    Raises:
        BadInput: a key, group, option or value is wrong.
    """
    found, folders = parsed(overrides), config_folders(overrides)
    config = plain(_composed(with_recipe(found.overrides, folders), folders, found.config_name or CONFIG_NAME))
    check_keys(config)
    config = settled(config)
    check_reach(config, overrides)
    return config


_VALUE = re.compile(r"[A-Za-z_]\w*(\.\w+)*=")
"""How an override begins that sets a value: an option of a group has no dot, or a slash."""


def _composed(words: Sequence[str], folders: Sequence[Path], name: str) -> DictConfig:
    """What `composed` gives. Jobs that choose the same options share one composition, which takes 0.2 s."""
    places = [folder for folder in (conf_dir(), *folders) if folder.is_dir()]
    groups = {file.stem for folder in places for file in folder.iterdir() if file.is_dir()}
    values = [word for word in words if _VALUE.match(word) and word.partition("=")[0] not in groups]
    options = tuple(word for word in words if word not in values)
    if any(word.startswith(("+", "~")) for word in options):  # of two that set a key the later one counts
        return composed(words, folders, name)
    try:
        config = copy.deepcopy(_with_options(options, tuple(folders), name))
        for override in OverridesParser.create().parse_overrides(values):  # as Hydra does, once options are chosen
            OmegaConf.update(config, override.get_key_element(), override.value(), merge=True)
        return config
    except (HydraException, OmegaConfBaseException, BadInput):
        return composed(words, folders, name)  # which says what is wrong


@cache
def _with_options(options: Sequence[str], folders: Sequence[Path], name: str) -> DictConfig:
    return composed(options, folders, name)


def figures_of(config: Mapping[str, Any], prepared: "Prepared") -> tuple[tuple[str, ...], tuple[str, str]]:
    """Names of the validation figures that a run logs; the one that picks its best checkpoint, with its best end."""
    from triform.run.parts import objective_of

    objective = objective_of(config, prepared.tokenizer, prepared.labels)
    written = objective.written if objective.writes(False) else ()
    names = ("loss", *objective.measures, *objective.derived, *written)
    return tuple(f"validation/{name}" for name in names), (f"validation/{objective.monitor[0]}", objective.monitor[1])


def monitor_of(settings: Mapping[str, Any], jobs: Sequence[Composed]) -> dict[str, str]:
    """The figure that the jobs are judged by.

    Raises:
        BadInput: one of them does not log it, or nothing says which way it improves.
    """
    first = jobs[0].monitor
    name, mode = settings.get("metric"), settings.get("mode")
    if name is None:
        common = next((one.monitor for one in jobs if all(one.monitor[0] in other.figures for other in jobs)), first)
        return {"name": common[0], "mode": common[1]}
    full = name if "/" in name else f"validation/{name}"
    for job in jobs:
        if full not in job.figures:
            raise BadInput(
                f"hydra.sweeper.metric={name} is not logged{nearest(full, job.figures)}; there are "
                f"{', '.join(job.figures)}"
            )
    mode = mode or next((job.monitor[1] for job in jobs if job.monitor[0] == full), None)
    mode = mode or ("min" if full == "validation/loss" else None)
    if mode not in ("min", "max"):
        raise BadInput(f"hydra.sweeper.mode={mode or 'null'}: say which end of {full} is best; set it to min or max")
    return {"name": full, "mode": mode}


COSTS = {
    **dict.fromkeys(("parameters", "flops_per_token", "seconds", "peak_memory_bytes"), "min"),
    "tokens_per_second": "max",
}
"""Figures of a run's summary that a search may weigh up against a validation figure, and which end of them is best."""


def objectives_of(settings: Mapping[str, Any], jobs: Sequence[Composed]) -> list[dict[str, str]]:
    """The figure that the jobs are judged by, and others that a search weighs up against it.

    Raises:
        BadInput: one of them is not logged, or nothing says which way it improves.
    """
    names, modes = settings.get("metric"), settings.get("mode")
    if not isinstance(names, list):
        return [monitor_of(settings, jobs)]
    modes = [modes] * len(names) if modes is None else modes
    if not isinstance(modes, list) or len(modes) != len(names) or not names:
        raise BadInput(
            f"hydra.sweeper.mode={modes} does not fit hydra.sweeper.metric={names}; give each figure min or max, or "
            "leave mode out"
        )
    found = []
    for place, (name, mode) in enumerate(zip(names, modes, strict=True)):
        if name in COSTS and place:
            if mode not in (None, "min", "max"):
                raise BadInput(f"hydra.sweeper.mode: {mode} for {name}; set it to min or max")
            found.append({"name": name, "mode": mode or COSTS[name]})
        elif name in COSTS:
            raise BadInput(f"hydra.sweeper.metric={names}: name a validation figure first, such as loss, then {name}")
        elif (
            place
            and f"validation/{name}".removeprefix("validation/validation/") not in jobs[0].figures
            and (near := nearest(name, COSTS))
        ):
            raise BadInput(f"hydra.sweeper.metric: {name} is not logged{near}; there are {', '.join(COSTS)}")
        else:
            found.append(monitor_of({"metric": name, "mode": mode}, jobs))
    return found


def make_folder(folder: RunFolder, job: Job, made: Composed) -> None:
    """Write the run folder of a job that has not begun; what a driver left there that was killed meanwhile goes.

    Raises:
        BadInput: it cannot be written.
    """
    if folder.path.is_dir() and not folder.metrics.exists():
        shutil.rmtree(folder.path, ignore_errors=True)
    created(made.config, job.overrides, made.prepared, Path(folder.path))
