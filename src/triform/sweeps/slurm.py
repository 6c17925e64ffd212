"""Jobs of a sweep on a cluster under SLURM."""

import hashlib
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from triform.run.errors import BadInput, one_line
from triform.run.folder import RunFolder
from triform.sweeps.launcher import Ended, Launcher, Ready
from triform.sweeps.sbatch import LOG, Batch, call, last_words, outcome, queued, submit
from triform.training.codes import FINISHED, PREEMPTED
from triform.training.spans import spans

log = logging.getLogger(__name__)

QUERY_SECONDS = 5.0
"""Between two questions to the controller of the cluster, which many people ask."""


class Slurm(Launcher):
    """Submits jobs with `sbatch` and asks `squeue` for them; what a run came to stands in its folder.

    Jobs are known by their name, that of the sweep, and their number in the array, that of the run: a driver finds
    those of an earlier one.

    Args:
        sweep: folder of the sweep.
        array: submit all jobs at once, as tasks of an array. If not, as many as `limit` allows.
        batch: how jobs are asked for.
        limit: jobs at once.
        cancel: end the jobs when the driver is told to end.
    """

    def __init__(self, sweep: Path, array: bool, batch: Batch, limit: int, cancel: bool) -> None:
        check_slurm("hydra/launcher=slurm")
        if limit < 1:
            raise BadInput(f"hydra.launcher.limit={limit} is below 1; set hydra.launcher.limit to 1 or more")
        self.sweep, self.array, self.batch, self.limit, self.cancels = sweep, array, batch, limit, cancel
        self._running: set[str] = set()
        self._asked = 0.0

    @property
    def name(self) -> str:
        """Of the jobs; the same sweep in another folder has another one."""
        place = hashlib.blake2b(str(self.sweep).encode(), digest_size=3).hexdigest()
        return f"triform-{self.sweep.name}-{place}"

    def as_if_here(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return as_if_here(config)

    def shape(self, config: Mapping[str, Any]) -> tuple[str, int, int]:
        return shape(config)

    def room(self, devices: int, waiting: int) -> int:
        return waiting if self.array else max(min(self.limit - len(self._running), waiting), 0)

    def submit(self, jobs: Sequence[Ready]) -> list[str]:
        first, numbers = jobs[0], [job.number for job in jobs]
        array = f"{spans(numbers, ',')}%{self.limit}"
        script = self.batch.script(
            self.name, str(self.sweep), first.device, first.devices, first.nodes, first.trust, array
        )
        id = submit(self.sweep / f"slurm-{numbers[0]}-{numbers[-1]}.sbatch", script)
        ids = [f"{id}_{number}" for number in numbers]
        self._running |= set(ids)
        return ids

    def attach(self, numbers: Sequence[int]) -> dict[int, str]:
        found = queued(f"--name={self.name}")
        if isinstance(found, str):
            raise BadInput(f"squeue: {found}: nobody knows whether jobs of this sweep run; try again later")
        alive = {int(id.rpartition("_")[2]): id for id in found if "_" in id}
        attached = {number: alive[number] for number in numbers if number in alive}
        self._running |= set(attached.values())
        return attached

    def poll(self, seconds: float) -> list[Ended]:
        time.sleep(seconds)
        if not self._running or time.monotonic() - self._asked < QUERY_SECONDS:
            return []
        self._asked = time.monotonic()
        found = queued(f"--name={self.name}")
        if isinstance(found, str):
            log.warning("squeue: %s", found)
            return []
        gone = sorted(self._running - found)
        self._running -= set(gone)
        return [self._ended(id) for id in gone]

    def _ended(self, id: str) -> Ended:
        code, cause = outcome(id)
        run = RunFolder(self.sweep / id.rpartition("_")[2])
        if code not in (FINISHED, PREEMPTED) and run.read_summary().get("status") != "failed":  # it could not say why
            words = last_words(run.path / LOG)
            cause = "; ".join([*([cause] if cause else []), *([words] if words else []), f"see {run.path / LOG}"])
        return Ended(id, code, cause)

    def signal(self, number: int) -> bool:
        if self.cancels:
            for id in self._running:
                self.cancel(id)
        else:
            print(f"the jobs go on without this process; end them with: scancel --name={self.name}", flush=True)
        return self.cancels

    def cancel(self, id: str) -> None:
        call("scancel", id)


def check_slurm(what: str) -> None:
    """Refuse to submit anything from a machine that is none of a cluster's.

    Raises:
        BadInput: there is no `sbatch`.
    """
    if shutil.which("sbatch") is None:
        raise BadInput(f"{what}: there is no sbatch here; start it on a machine of the cluster")


def as_if_here(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of a job of a cluster as it can be checked on the machine that submits it."""
    alone = {"devices": 1, "num_nodes": 1, "accelerator": "cpu"}
    whole = {"strategy": "auto", "tensor_parallel": 1, "cpu_offload": False}
    return {**config, "trainer": {**config["trainer"], **alone, **whole}}


def shape(config: Mapping[str, Any]) -> tuple[str, int, int]:
    """The device ("cpu" or "cuda") of a job, its ranks on each machine, and machines.

    Raises:
        BadInput: how many devices it wants would be known only where it runs, or they do not fit its strategy.
    """
    from triform.training.strategies import check_sizes

    trainer = config["trainer"]
    devices, nodes = trainer["devices"], trainer["num_nodes"]
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise BadInput(
            f"trainer.devices={devices}: a job on a cluster is given what it asks for; set trainer.devices to the "
            "ranks on each machine"
        )
    try:
        check_sizes(trainer["strategy"], devices * nodes, trainer["tensor_parallel"])
    except ValueError as error:
        raise BadInput(one_line(error)) from error
    return "cpu" if trainer["accelerator"] == "cpu" else "cuda", devices, nodes
