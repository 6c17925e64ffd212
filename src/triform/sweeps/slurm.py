"""Jobs of a sweep on a cluster under SLURM."""

import logging
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from triform.run.errors import BadInput, nearest, one_line
from triform.run.folder import write_whole
from triform.run.help import conf_dir
from triform.sweeps.launcher import Ended, Launcher, Ready
from triform.training.codes import FAILED, FINISHED, PREEMPTED

log = logging.getLogger(__name__)

QUERY_SECONDS = 5.0
"""Between two questions to the controller of the cluster, which many people ask."""

STOPPED = ("CANCELLED", "PREEMPTED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "REVOKED")
"""States of jobs that did nothing wrong: they can go on."""

PLACES = ("name", "array", "nodes", "ranks", "minutes", "sweep", "options", "triform", "trust")
"""What a template may have filled in, written as `{{name}}`."""


class Slurm(Launcher):
    """Submits jobs with `sbatch` and asks `squeue` for them; what a run came to stands in its folder.

    Jobs are known by their name, that of the sweep, and their number in the array, that of the run: a driver finds
    those of an earlier one.

    Args:
        sweep: folder of the sweep.
        array: submit all jobs at once, as tasks of an array. If not, as many as `limit` allows.
        template: the script; its placeholders are `PLACES`.
        limit: jobs at once.
        hours: that a job may take.
        options: further ones of sbatch.
        cancel: end the jobs when the driver is told to end.
    """

    def __init__(
        self,
        sweep: Path,
        array: bool,
        template: Path,
        limit: int,
        hours: float,
        partition: str | None,
        cpus_per_rank: int | None,
        options: Sequence[str],
        cancel: bool,
    ) -> None:
        if shutil.which("sbatch") is None:
            raise BadInput("hydra/launcher=slurm: there is no sbatch here; start the sweep on a machine of the cluster")
        for key, value in (("limit", limit), ("hours", hours), ("cpus_per_rank", cpus_per_rank)):
            if value is not None and value <= 0:
                raise BadInput(f"hydra.launcher.{key}={value} is not above 0; set hydra.launcher.{key} to 1 or more")
        try:
            self._template = template.expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"hydra.launcher.template={template} cannot be read: {one_line(error)}") from error
        for place in re.findall(r"\{\{(.*?)\}\}", self._template):
            if place not in PLACES:
                raise BadInput(
                    f"{template}: {{{{{place}}}}} stands for nothing{nearest(place, PLACES)}; there are "
                    f"{', '.join(PLACES)}"
                )
        self.sweep, self.array, self.limit, self.hours = sweep, array, limit, hours
        self.partition, self.cpus_per_rank, self.options, self.cancels = partition, cpus_per_rank, options, cancel
        self._running: set[str] = set()
        self._asked = 0.0

    @property
    def name(self) -> str:
        """Of the jobs."""
        return f"triform-{self.sweep.name}"

    def as_if_here(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**config, "trainer": {**config["trainer"], "devices": 1, "num_nodes": 1, "accelerator": "cpu"}}

    def shape(self, config: Mapping[str, Any]) -> tuple[str, int, int]:
        trainer = config["trainer"]
        devices, nodes = trainer["devices"], trainer["num_nodes"]
        if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
            raise BadInput(
                f"trainer.devices={devices}: a job on a cluster is given what it asks for; set trainer.devices to the "
                "ranks on each machine"
            )
        return "cpu" if trainer["accelerator"] == "cpu" else "cuda", devices, nodes

    def room(self, devices: int, waiting: int) -> int:
        return waiting if self.array else max(min(self.limit - len(self._running), waiting), 0)

    def submit(self, jobs: Sequence[Ready]) -> list[str]:
        numbers = [job.number for job in jobs]
        script = self.sweep / f"slurm-{numbers[0]}-{numbers[-1]}.sbatch"
        write_whole(script, self.script(jobs))
        done = _run("sbatch", "--parsable", str(script))
        if done.returncode:
            raise BadInput(f"sbatch refused {script}: {one_line(ValueError(done.stderr))}")
        id = done.stdout.strip().partition(";")[0]
        ids = [f"{id}_{number}" for number in numbers]
        self._running |= set(ids)
        return ids

    def script(self, jobs: Sequence[Ready]) -> str:
        """What is given to sbatch for jobs that all want the same."""
        first = jobs[0]
        own = [
            *([f"--gpus-per-node={first.devices}"] if first.device == "cuda" else []),
            *([f"--cpus-per-task={self.cpus_per_rank}"] if self.cpus_per_rank is not None else []),
            *([f"--partition={self.partition}"] if self.partition is not None else []),
            *self.options,
        ]
        program = Path(sys.executable).with_name("triform")
        filled = {
            "name": self.name,
            "array": f"{ranges([job.number for job in jobs])}%{self.limit}",
            "nodes": str(first.nodes),
            "ranks": str(first.devices),
            "minutes": str(max(round(self.hours * 60), 1)),
            "sweep": shlex.quote(str(self.sweep)),
            "options": "\n".join(f"#SBATCH {option}" for option in own),
            "triform": shlex.quote(str(program)),
            "trust": " ".join(f"--trust {shlex.quote(package)}" for package in first.trust),
        }
        return re.sub(r"\{\{(.*?)\}\}", lambda match: filled[match[1]], self._template)

    def attach(self, numbers: Sequence[int]) -> dict[int, str]:
        found = self._queued()
        if found is None:
            raise BadInput("squeue does not answer, so nobody knows whether jobs of this sweep run; try again later")
        alive = {int(id.rpartition("_")[2]): id for id in found}
        attached = {number: alive[number] for number in numbers if number in alive}
        self._running |= set(attached.values())
        return attached

    def poll(self, seconds: float) -> list[Ended]:
        time.sleep(seconds)
        if not self._running or time.monotonic() - self._asked < QUERY_SECONDS:
            return []
        self._asked = time.monotonic()
        queued = self._queued()
        if queued is None:
            return []
        gone = sorted(self._running - queued)
        self._running -= set(gone)
        return [ended(id) for id in gone]

    def _queued(self) -> set[str] | None:
        """Ids of the sweep's jobs that wait or run; None: the controller does not say."""
        done = _run("squeue", "--noheader", "--array", "--me", f"--name={self.name}", "--format=%i %T")
        if done.returncode:
            log.warning("squeue: %s", one_line(ValueError(done.stderr)))
            return None
        lines = [line.split() for line in done.stdout.splitlines()]
        return {id for id, state in lines if "_" in id and state not in ("COMPLETED", "FAILED", *STOPPED)}

    def signal(self, number: int) -> bool:
        if self.cancels:
            for id in self._running:
                self.cancel(id)
        else:
            print(f"the jobs go on without this process; end them with: scancel --name={self.name}", flush=True)
        return self.cancels

    def cancel(self, id: str) -> None:
        _run("scancel", id)


def ended(id: str) -> Ended:
    """How a job that is in the queue no more has ended, as far as the cluster remembers."""
    done = _run("scontrol", "show", "job", "--oneliner", id)
    state = re.search(r"\bJobState=(\w+)", done.stdout)
    code = re.search(r"\bExitCode=(\d+):(\d+)", done.stdout)
    if state is None:  # it forgets soon; accounting does not, where there is some
        done = _run("sacct", "--noheader", "--parsable2", "--allocations", "--format=State,ExitCode", f"--jobs={id}")
        state = re.search(r"^(\w+)", done.stdout)
        code = re.search(r"\|(\d+):(\d+)", done.stdout)
    word = state[1] if state is not None else "UNKNOWN"
    if word == "COMPLETED":
        return Ended(id, FINISHED, None)
    if word in STOPPED or (code is not None and int(code[1]) == PREEMPTED):
        return Ended(id, PREEMPTED, None)
    known = int(code[1]) if code is not None else FAILED
    return Ended(id, known or FAILED, None if word in ("FAILED", "UNKNOWN") else f"SLURM ended it: {word}")


def ranges(numbers: Sequence[int]) -> str:
    """Numbers as sbatch writes them: 0-3,7."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def template_file(name: str | None) -> Path:
    """The user's script, or the one that comes with triform."""
    return conf_dir() / "hydra" / "launcher" / "slurm.sbatch" if name is None else Path(name)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", one_line(error))
