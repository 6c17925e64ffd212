"""`-m key=a,b`: every combination, one run after the other, each in a process of its own."""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from triform.data.prepare import Prepared
from triform.run.check import check_keys, check_reach
from triform.run.compose import CONFIG_NAME, composed, plain, with_recipe
from triform.run.errors import BadInput, one_line, report
from triform.run.folder import RunFolder
from triform.run.job import check_machines, checked, created, fail, preempt, settled, start
from triform.run.ranks import handling, start_all
from triform.training.codes import BAD_INPUT, FAILED, FINISHED, PREEMPTED


@dataclass
class Job:
    """One combination: what was typed for it, what of that varies, its config, data and folder, and how it ended."""

    overrides: list[str]
    varied: str
    config: dict[str, Any]
    prepared: Prepared
    folder: RunFolder
    code: int | None = None
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """How it ended, in a word."""
        words = {None: "not run", FINISHED: "finished", PREEMPTED: "preempted"}
        return words.get(self.code, "failed")

    def summary(self) -> dict[str, Any]:
        """What the run wrote about itself."""
        return self.folder.read_summary()

    def figure(self) -> str:
        """Its best validation figures, as far as it has any."""
        best = self.summary().get("best", {})
        return "  ".join(f"{k} {v:.4g}" for k, v in best.items() if k != "step" and isinstance(v, int | float))


def sweep(config: DictConfig, arguments: Sequence[str]) -> None:
    """Run every combination of the values in `arguments`; one that fails does not end the others, a signal does.

    All are composed and checked before the first one starts. What a job prints goes to the log in its folder.

    Args:
        config: Hydra's config of the sweep, which knows where configs are looked for.

    Raises:
        ValueError: bad input in any of them; nothing has run.
        SystemExit: always, with the sweep's exit code, because Hydra drops what a sweeper returns.
    """
    jobs = plan(config, arguments)
    parent = jobs[0].folder.path.parent
    asked: list[int] = []
    with handling(lambda number, frame: asked.append(number)):
        claim(jobs, parent)
        try:
            run_all(jobs, parent, asked)
        finally:
            for job in jobs:
                with suppress(OSError):  # it has begun, or its folder was never made
                    job.folder.path.rmdir()
        conclude(jobs)
    raise SystemExit(exit_code(jobs))


def exit_code(jobs: Sequence[Job]) -> int:
    """Of a sweep: preempted if any job has not come to its end, else failed if any has."""
    codes = [job.code for job in jobs]
    return PREEMPTED if None in codes or PREEMPTED in codes else FAILED if any(codes) else FINISHED


def run_all(jobs: Sequence[Job], parent: Path, asked: list[int]) -> None:
    """One after the other, with a line before and after each, until a signal asks to stop.

    Args:
        asked: signals so far; those that arrive while a job runs are added.
    """
    say(f"sweep: {len(jobs)} runs in {parent}")
    for number, job in enumerate(jobs, start=1):
        if asked:
            break
        say(f"[{number}/{len(jobs)}] {job.varied or 'as it is'}")
        start = time.monotonic()
        killed: dict[int, str] = {}
        arguments = (job.config, job.overrides, job.prepared, job.folder.path)
        code = start_all([{}], _job, arguments, killed.setdefault, asked.append)
        for name in killed.values():
            fail(job.folder, 0, f"the run was ended by {name}", first=True)
        job.code = settle(job, code, bool(asked))
        job.seconds = time.monotonic() - start
        error = job.summary().get("error")
        cause = f": {error}" if job.code not in (FINISHED, PREEMPTED) and error else ""
        say(f"[{number}/{len(jobs)}] {job.status} after {job.seconds:.0f} s  {job.figure()}{cause}  {job.folder.path}")
        if job.code == PREEMPTED:
            break


def settle(job: Job, code: int, asked: bool) -> int:
    """How a job ended: as its summary says, whatever code its process left with.

    Args:
        asked: a signal has asked to stop.
    """
    status = job.summary().get("status")
    if status == "finished":
        return FINISHED
    if code == PREEMPTED or (asked and status != "failed"):
        preempt(job.folder)
        return PREEMPTED
    if code == FINISHED:
        fail(job.folder, 0, "its process ended before the run had finished", first=True)
    return code or FAILED


def claim(jobs: Sequence[Job], parent: Path) -> None:
    """Give each job an empty folder of its own in `parent`, numbered on; no other sweep gets the same one.

    Raises:
        BadInput: `parent` cannot be written to.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        number = _next_number(parent)
        for job in jobs:
            while True:
                job.folder = RunFolder(parent / str(number))
                number += 1
                with suppress(FileExistsError):
                    job.folder.path.mkdir()
                    break
    except OSError as error:
        raise BadInput(f"paths.outputs: cannot make folders in {parent}: {error.strerror or error}") from error


def plan(config: DictConfig, arguments: Sequence[str]) -> list[Job]:
    """Every combination, composed and checked, each with the folder that it will have if no other sweep takes it.

    Raises:
        ValueError: bad input in any of them.
    """
    hydra = config.hydra
    launcher = hydra.runtime.choices.get("hydra/launcher")
    if launcher != "basic":
        raise BadInput(
            f"hydra/launcher={launcher}: the grid runs its jobs itself, one after the other; "
            "leave hydra/launcher out, or choose hydra/sweeper=basic as well"
        )
    folders = [
        Path(source.path)
        for source in hydra.runtime.config_sources
        if source.schema == "file" and source.provider not in ("main", "hydra")
    ]
    flags = [f"--config-dir={folder}" for folder in folders[:1]]
    if hydra.job.config_name != CONFIG_NAME:
        flags.append(f"--config-name={hydra.job.config_name}")
    overrides = OverridesParser.create().parse_overrides(list(arguments))
    combinations = BasicSweeper.split_arguments(overrides, None)[0]
    swept = {override.get_key_element() for override in overrides if override.is_sweep_override()}
    configs = []
    for words in combinations:
        combination = [word.removesuffix("=null") if word[0] == "~" else word for word in words]  # which Hydra adds
        varied = " ".join(word for word in combination if word.partition("=")[0] in swept)
        try:
            words = with_recipe(combination, folders)
            job = plain(composed(words, folders, str(hydra.job.config_name)))
            check_keys(job)
            job = settled(job)
            check_reach(job, combination)
            check_machines(job)
            prepared = checked(job)
        except ValueError as error:
            raise BadInput(f"{one_line(error)} (in the run with {varied})" if varied else one_line(error)) from error
        configs.append(([*combination, *flags], varied, job, prepared))
    names = list(dict.fromkeys(job["name"] for _, _, job, _ in configs))
    parent = Path(configs[0][2]["paths"]["outputs"]) / "sweeps" / "-".join(names)[:100]
    first = _next_number(parent)
    return [
        Job(typed, varied, job, prepared, RunFolder(parent / str(number)))
        for number, (typed, varied, job, prepared) in enumerate(configs, start=first)
    ]


def _next_number(parent: Path) -> int:
    numbers = [int(entry.name) for entry in parent.iterdir() if entry.name.isdigit()] if parent.is_dir() else []
    return max(numbers, default=-1) + 1


def _job(config: dict[str, Any], overrides: Sequence[str], prepared: Prepared, path: Path) -> int:
    from triform.analysis.finish import finish

    try:
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            return start(created(config, overrides, prepared, path), config, prepared, False, finish)
    except KeyboardInterrupt:  # before training, which knows what to do
        return PREEMPTED
    except Exception as error:
        return report(error, config["traceback"])


def conclude(jobs: Sequence[Job]) -> None:
    """Print how every job ended, in a table, then what failed."""
    table = Table(show_edge=False, pad_edge=False, box=None)
    for heading in ("run", "with", "status", "seconds", "best"):
        table.add_column(heading, justify="right" if heading == "seconds" else "left", overflow="fold")
    for job in jobs:
        seconds = f"{job.seconds:.0f}" if job.code is not None else ""
        table.add_row(job.folder.path.name, escape(job.varied), job.status, seconds, escape(job.figure()))
    Console().print(table)
    for job in jobs:
        if job.code in (FAILED, BAD_INPUT):
            error = job.summary().get("error", "see its log")
            print(f"error: run {job.folder.path.name} with {job.varied}: {error}", file=sys.stderr, flush=True)
    say(f"sweep: {jobs[0].folder.path.parent}")


def say(line: str) -> None:
    """A line on standard output, at once."""
    print(line, flush=True)
