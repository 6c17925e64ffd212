"""The script that a job on a cluster under SLURM is submitted by, and the questions that SLURM answers."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triform.run.errors import BadInput, nearest, one_line
from triform.run.folder import write_whole
from triform.run.help import conf_dir
from triform.training.codes import FAILED, FINISHED, PREEMPTED

LOG = "slurm.txt"
"""File in a run's folder for what its job says, also what is said before the run has begun."""

SAVE_MINUTES = 2
"""Before the limit of a job, when its run is told to save: as the template says."""

STOPPED = ("CANCELLED", "PREEMPTED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "REVOKED")
"""States of jobs that did nothing wrong: they can go on."""

ASKED = (PREEMPTED, 128 + signal.SIGUSR1, 128 + signal.SIGTERM)
"""Exit codes of a script whose run was asked to stop, by a signal that it could listen to or not yet."""

PLACES = ("name", "nodes", "ranks", "minutes", "log", "options", "triform", "run", "trust")
"""What a template may have filled in, written as `{{name}}`."""


@dataclass(frozen=True)
class Batch:
    """How jobs are asked for.

    Args:
        template: text of the script; its placeholders are `PLACES`.
        hours: that a job may take.
        partition: None: the cluster's default.
        cpus_per_rank: None: what the cluster gives.
        options: further ones of sbatch.
    """

    template: str
    hours: float
    partition: str | None
    cpus_per_rank: int | None
    options: Sequence[str]

    def __post_init__(self) -> None:
        for place in re.findall(r"\{\{(.*?)\}\}", self.template):
            if place not in PLACES:
                raise BadInput(
                    f"hydra.launcher.template: {{{{{place}}}}} stands for nothing{nearest(place, PLACES)}; there are "
                    f"{', '.join(PLACES)}"
                )
        if self.cpus_per_rank is not None and self.cpus_per_rank < 1:
            raise BadInput(
                f"hydra.launcher.cpus_per_rank={self.cpus_per_rank} is below 1; set hydra.launcher.cpus_per_rank to 1 "
                "or more, or null"
            )
        if not 60 * self.hours > 2 * SAVE_MINUTES:  # else it is told to save before it has learned anything
            raise BadInput(
                f"hydra.launcher.hours={self.hours:g}: the last {SAVE_MINUTES} minutes of a job are for saving; set "
                "hydra.launcher.hours to 0.1 or more"
            )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "Batch":
        """As `conf/hydra/launcher/slurm.yaml` says.

        Raises:
            BadInput: a setting is wrong, or the template cannot be read.
        """
        return cls(
            template=read_template(settings["template"]),
            hours=_number(settings, "hours"),
            partition=settings["partition"],
            cpus_per_rank=None if settings["cpus_per_rank"] is None else int(_number(settings, "cpus_per_rank")),
            options=list(settings["options"]),
        )

    def script(
        self, name: str, folder: str, device: str, ranks: int, nodes: int, trust: Sequence[str], array: str | None
    ) -> str:
        """What is given to sbatch.

        Args:
            name: of the job.
            folder: of its run; of an array the folder that has those of all its tasks, by number.
            device: "cpu" or "cuda".
            ranks: on each machine.
            nodes: machines.
            array: numbers of tasks, as sbatch writes them; None: it is one job.
        """
        asked = [
            *([f"--array={array}"] if array is not None else []),
            *([f"--gpus-per-node={ranks}"] if device == "cuda" else []),
            *([f"--cpus-per-task={self.cpus_per_rank}"] if self.cpus_per_rank is not None else []),
            *([f"--partition={self.partition}"] if self.partition is not None else []),
            *self.options,
        ]
        own = "" if array is None else "/%a"
        filled = {
            "name": name,
            "nodes": str(nodes),
            "ranks": str(ranks),
            "minutes": str(round(self.hours * 60)),
            "log": shlex.quote(folder.replace("%", "%%") + f"{own}/{LOG}"),
            "options": "\n".join(f"#SBATCH {option}" for option in asked),
            "triform": shlex.quote(str(Path(sys.executable).with_name("triform"))),
            "run": shlex.quote(folder) + ("" if array is None else "/$SLURM_ARRAY_TASK_ID"),
            "trust": " ".join(f"--trust {shlex.quote(package)}" for package in trust),
        }
        return re.sub(r"\{\{(.*?)\}\}", lambda match: filled[match[1]], self.template)


def read_template(name: str | None) -> str:
    """The user's script, or the one that comes with triform.

    Raises:
        BadInput: it cannot be read.
    """
    path = conf_dir() / "hydra" / "launcher" / "slurm.sbatch" if name is None else Path(name).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"hydra.launcher.template={path} cannot be read: {one_line(error)}") from error


def submit(path: Path, script: str) -> str:
    """Write a script and submit it; returns the job's id.

    Raises:
        BadInput: SLURM refuses it.
    """
    write_whole(path, script)
    done = call("sbatch", "--parsable", str(path))
    if done.returncode:
        raise BadInput(f"sbatch refused {path}: {one_line(ValueError(done.stderr))}")
    return done.stdout.strip().partition(";")[0]


def queued(*which: str) -> set[str] | str:
    """Ids of one's own jobs that wait or run, each task of an array by itself; else why nobody knows.

    Args:
        which: options of squeue that choose among them.
    """
    done = call("squeue", "--noheader", "--array", "--me", "--format=%i %T", *which)
    if done.returncode:
        return one_line(ValueError(done.stderr))
    lines = [line.split() for line in done.stdout.splitlines()]
    return {id for id, state in lines if state not in ("COMPLETED", "FAILED", *STOPPED)}


def outcome(id: str) -> tuple[int, str | None]:
    """How a job that is in the queue no more has ended, as far as the cluster remembers: its exit code; the state in
    which SLURM itself has ended it, if it has."""
    done = call("scontrol", "show", "job", "--oneliner", id)
    state = re.search(r"\bJobState=(\w+)", done.stdout)
    code = re.search(r"\bExitCode=(\d+):(\d+)", done.stdout)
    if state is None:  # it forgets soon; accounting does not, where there is some
        done = call("sacct", "--noheader", "--parsable2", "--allocations", "--format=State,ExitCode", f"--jobs={id}")
        state = re.search(r"^(\w+)", done.stdout)
        code = re.search(r"\|(\d+):(\d+)", done.stdout)
    word = state[1] if state is not None else "UNKNOWN"
    if word == "COMPLETED":
        return FINISHED, None
    if word in STOPPED or (code is not None and int(code[1]) in ASKED):
        return PREEMPTED, None
    known = int(code[1]) if code is not None else FAILED
    return known or FAILED, None if word in ("FAILED", "UNKNOWN") else f"SLURM ended it: {word}"


def last_words(log: Path) -> str:
    """The last error that a job's log tells of; of SLURM's own complaints only where there is no other."""
    try:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ""
    lines = [line for line in lines if line]
    own = [line for line in lines if not line.startswith(("srun:", "slurmstepd"))]
    errors = [line for line in own if line.startswith("error: ")]
    return next(iter(reversed(errors or own or lines)), "").removeprefix("error: ")


def call(*command: str) -> subprocess.CompletedProcess[str]:
    """Run one of SLURM's programs."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", one_line(error))


def _number(settings: Mapping[str, Any], key: str) -> float:
    value = settings[key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInput(f"hydra.launcher.{key}={value} is no number; set hydra.launcher.{key} to one")
    return value
