"""Jobs of a sweep on this machine, several at once where there is room."""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from triform.run.check import devices
from triform.run.errors import BadInput, report
from triform.run.folder import RunFolder, write_whole
from triform.run.job import rank_main, training
from triform.run.ranks import SAVE_SECONDS, Processes, rank_environments
from triform.sweeps.launcher import Ended, Launcher, Ready

MEMORY = 2 * 2**30
"""Bytes that `jobs=auto` reckons with for each process on a CPU: importing takes a quarter of it."""

PRELOAD = (
    *("triform.analysis.finish", "triform.sweeps.local", "matplotlib.backends.backend_agg", "sacrebleu"),
    "triform.sweeps.freeze",
)
"""What the report at the end of each job imports; then what says that none of it is garbage."""


class Local(Launcher):
    """Starts each rank of a job as a fresh process from a warm server, as many jobs as there is room for.

    Each job has GPUs of its own, or cores: the threads of all jobs at once are as many as there are cores. The
    environment variable OMP_NUM_THREADS wins over that.

    Args:
        jobs: at once; None: as many as there are GPUs for, on a CPU cores, each with 2 GiB of free memory.
        per_gpu: jobs that share a GPU.
        gpus: of this machine, as CUDA_VISIBLE_DEVICES would name them.
    """

    def __init__(self, jobs: int | None, per_gpu: int, gpus: Sequence[str]) -> None:
        for name, value in (("jobs", jobs), ("per_gpu", per_gpu)):
            if value is not None and value < 1:
                raise BadInput(f"hydra.launcher.{name}={value} is no number of jobs; set it to 1 or more")
        self.jobs = jobs
        self.cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._free = [gpu for _ in range(per_gpu) for gpu in gpus]
        self._n_gpus, self._per_gpu = len(gpus), per_gpu
        self._at_once = 1
        self._running: dict[str, tuple[Processes, list[str], dict[int, str]]] = {}
        self._ports: dict[str, str] = {}

    def as_if_here(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return config

    def shape(self, config: Mapping[str, Any]) -> tuple[str, int, int]:
        nodes = config["trainer"]["num_nodes"]
        if nodes != 1:
            raise BadInput(
                f"trainer.num_nodes={nodes}: hydra/launcher=local has one machine; set trainer.num_nodes=1 or "
                "hydra/launcher=slurm"
            )
        return (*devices(config), nodes)

    def room(self, devices: int, waiting: int) -> int:
        running = len(self._running)
        if self._n_gpus:
            most = self._n_gpus * self._per_gpu // devices
            fits = len(set(self._free)) >= devices and (self.jobs is None or running < self.jobs)
        else:
            most = min(self.cores // devices, _free_memory() // MEMORY // devices + running)
            most = max(most, 1) if self.jobs is None else self.jobs
            fits = running < most
        self._at_once = max(min(most, waiting + running), 1)
        return int(fits and waiting > 0)  # one at a time: what is left is asked about again

    def submit(self, jobs: Sequence[Ready]) -> list[str]:
        return [self._start(job) for job in jobs]

    def _start(self, job: Ready) -> str:
        threads = os.environ.get("OMP_NUM_THREADS") or str(max(self.cores // (self._at_once * job.devices), 1))
        environments = rank_environments(job.devices) if job.devices > 1 else [{}]
        while environments[0].get("MASTER_PORT", "") in self._ports.values():  # of another job that has yet to bind it
            environments = rank_environments(job.devices)
        gpus: list[str] = []
        if job.device == "cuda":
            gpus = list(dict.fromkeys(self._free))[: job.devices]
            for gpu in gpus:
                self._free.remove(gpu)
        own = {"OMP_NUM_THREADS": threads} | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})
        id = str(job.number)
        killed: dict[int, str] = {}
        processes = Processes(
            [{**own, **environment} for environment in environments],
            run_rank,
            (job.path, job.trust),
            killed.setdefault,
            orphans_save=True,
            label=f"run {job.number}, rank",
            preload=PRELOAD,
        )
        processes.start()
        self._running[id] = (processes, gpus, killed)
        if "MASTER_PORT" in environments[0]:
            self._ports[id] = environments[0]["MASTER_PORT"]
        return id

    def attach(self, numbers: Sequence[int]) -> dict[int, str]:
        return {}  # they have been told to save and end

    def poll(self, seconds: float) -> list[Ended]:
        sentinels = [one for processes, _, _ in self._running.values() for one in processes.sentinels()]
        if sentinels:
            wait(sentinels, timeout=seconds)
        else:
            time.sleep(seconds)
        ended = []
        for id, (processes, gpus, killed) in list(self._running.items()):
            code = processes.poll()
            if code is not None:
                del self._running[id]
                self._ports.pop(id, None)
                self._free += gpus
                cause = next((f"rank {n} was ended by {name}" for n, name in killed.items()), None)
                ended.append(Ended(id, code, cause))
        return ended

    def signal(self, number: int) -> bool:
        for processes, _, _ in self._running.values():
            processes.signal(number)
        return True

    def cancel(self, id: str) -> None:
        if id in self._running:
            self._running[id][0].signal(signal.SIGTERM)


def run_rank(path: Path, trust: tuple[str, ...]) -> int:
    """One rank of a job, whose output goes to the log in its folder."""
    from triform.analysis.finish import finish
    from triform.training.hardware import rank

    folder = RunFolder(path)
    said_by(folder)
    try:
        if rank() != 0:
            return rank_main(folder, True, None, None, trust)
        with training(folder, wait=SAVE_SECONDS):  # ranks of a driver that was killed may still be saving
            threads_known(folder)
            return rank_main(folder, True, None, finish, trust)
    except KeyboardInterrupt:
        return 75
    except Exception as error:
        return report(error)


def said_by(folder: RunFolder) -> None:
    """Let what this process writes to the terminal go to its log, also what no Python code writes."""
    from triform.training.hardware import rank

    sys.stdout.flush()
    sys.stderr.flush()
    with folder.log(rank()).open("a", encoding="utf-8") as log, open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # standard output is in the log already
        os.dup2(log.fileno(), 2)


def threads_known(folder: RunFolder) -> None:
    """Correct what the driver wrote down, whose threads are not this process's."""
    import torch

    with suppress(OSError, ValueError):
        known = json.loads(folder.environment.read_text(encoding="utf-8"))
        threads = {"torch": torch.get_num_threads(), "interop": torch.get_num_interop_threads()}
        write_whole(folder.environment, json.dumps(known | {"threads": threads}, indent=2) + "\n")


def visible_gpus() -> list[str]:
    """GPUs of this machine that this process may use, without touching one."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    names = [name.strip() for name in named.split(",")] if named else [str(number) for number in range(count)]
    return names[:count]


def _free_memory() -> int:
    """Bytes that this machine has free; where it does not tell, plenty."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return 2**60
