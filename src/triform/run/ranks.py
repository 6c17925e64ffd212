"""The processes of a run on several devices."""

import multiprocessing
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from triform.run.errors import BadInput
from triform.run.garbage import look_again
from triform.training.codes import FAILED, FINISHED, PREEMPTED, SIGNALS
from triform.training.stop import Preempted, stop

GRACE_AFTER_FAILURE = 5.0
"""Seconds that the other ranks get to end after one has failed: they may wait for a partner that will not come. After
any other end they get what they need, the first one for the report and its upload."""

SAVE_SECONDS = 60.0
"""Time to save a checkpoint in, for processes that are told to when who started them is gone."""

PREPARATION = timedelta(days=7)
"""Time that the first rank may take to tokenise a corpus. A store waits half an hour by itself."""

PRELOAD = ("triform.run.still", "torch", "lightning.pytorch", "triform.training.fit", "triform.run.parts")
"""Imported once by the server that ranks are forked from; importing starts no thread and touches no GPU."""


Killed = Callable[[int, str], object]
"""Told the number of a process that a signal has ended, and the signal's name; not of a signal that was passed on."""


def launch(
    count: int, target: Callable[..., int], arguments: tuple[Any, ...], killed: Killed = lambda rank, name: None
) -> int:
    """Call `target(*arguments)` on `count` ranks of this machine and return the run's exit code."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(max((os.cpu_count() or 1) // count, 1))
    ranks = [{**own, "OMP_NUM_THREADS": threads} for own in rank_environments(count)]
    return start_all(ranks, target, arguments, killed)


def rank_environments(count: int) -> list[dict[str, str]]:
    """What tells each of `count` ranks of this machine who it is and where they meet."""
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(count),
        "NODE_RANK": "0",
    }
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def start_all(
    environments: Sequence[Mapping[str, str]],
    target: Callable[..., int],
    arguments: tuple[Any, ...],
    killed: Killed = lambda rank, name: None,
    asked: Callable[[int], object] = lambda number: None,
) -> int:
    """Call `target(*arguments)` in a process for each environment, which is added to this one's.

    Returns the exit code of the first process that did not end with 0. When one ends, the others must follow or are
    ended. A signal to this process goes to all of them; one that it ends, too early to save anything, counts as
    preempted. So does one that was asked to stop by itself: the others are then asked, too.

    Args:
        asked: told each signal to this process.
    """
    processes = Processes(environments, target, arguments, killed)

    def forward(number: int, frame: Any) -> None:
        asked(number)
        processes.signal(number)

    with handling(forward):
        processes.start()
        return processes.wait()


def warm(preload: Sequence[str] = ()) -> None:
    """Start the server that processes are forked from, which then imports beside what this process does.

    Args:
        preload: further modules that it imports.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOAD, *preload])
    forkserver.ensure_running()


class Processes:
    """A function in several processes, forked from a server that has imported what takes long; they end together.

    Args:
        environments: of each process, added to this one's.
        killed: told of one that a signal ended which was not passed on.
        orphans_save: when this process is killed they get a signal that asks for a checkpoint, not killed as well.
        label: what to call them in messages, before their number.
        preload: further modules that the server imports, if it has not started yet.
    """

    def __init__(
        self,
        environments: Sequence[Mapping[str, str]],
        target: Callable[..., int],
        arguments: tuple[Any, ...],
        killed: Killed = lambda rank, name: None,
        orphans_save: bool = False,
        label: str = "rank",
        preload: Sequence[str] = (),
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOAD, *preload])
        self.ranks: list[BaseProcess] = [
            context.Process(
                target=_process, args=({**os.environ, **own}, target, arguments, orphans_save), name=f"{label} {rank}"
            )
            for rank, own in enumerate(environments)
        ]
        self._killed = killed
        self._begun = False
        self._sent: list[int] = []
        self._running: dict[int, BaseProcess] = {}
        self._code, self._deadline = FINISHED, float("inf")

    def start(self) -> None:
        """Start them; signals that were to be passed on meanwhile follow."""
        for process in self.ranks:
            process.start()
        self._running = {process.sentinel: process for process in self.ranks}
        self._begun = True
        for number in tuple(self._sent):
            self._pass_on(number)

    def signal(self, number: int) -> None:
        """Pass a signal on to all of them."""
        self._sent.append(number)
        if self._begun:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        for process in self._running.values():
            if process.pid is not None and process.exitcode is None:
                os.kill(process.pid, number)

    def sentinels(self) -> list[int]:
        """What `multiprocessing.connection.wait` waits for, of those that run."""
        return list(self._running)

    def wait(self) -> int:
        """Wait until all have ended and return the exit code of the first one that did not end with 0."""
        while (code := self.poll(3600.0)) is None:
            pass
        return code

    def poll(self, seconds: float = 0.0) -> int | None:
        """The same exit code as far as it is known after so many seconds; None: some are running."""
        ready = wait(list(self._running), timeout=min(max(self._deadline - time.monotonic(), 0.0), seconds))
        for sentinel in ready:
            self._ended(self._running.pop(sentinel))  # type: ignore[arg-type]
        if not ready and time.monotonic() >= self._deadline:
            for process in self._running.values():
                process.kill()
            self._code, self._deadline = self._code or FAILED, float("inf")
        return None if self._running else self._code

    def _ended(self, process: BaseProcess) -> None:
        process.join()
        by_us = process.exitcode is not None and -process.exitcode in self._sent
        if process.exitcode is not None and process.exitcode < 0 and not by_us:  # else it has said why itself
            cause = signal.Signals(-process.exitcode).name
            if self._code in (FINISHED, PREEMPTED):  # else by us, or after another one
                self._killed(self.ranks.index(process), cause)
            print(f"error: {process.name} was ended by {cause}", file=sys.stderr, flush=True)
        ended = process.exitcode if process.exitcode is not None and process.exitcode >= 0 else FAILED
        ended = PREEMPTED if by_us else ended
        if ended == PREEMPTED and signal.SIGTERM not in self._sent:
            self.signal(signal.SIGTERM)
        self._code = self._code or ended
        if ended != FINISHED:
            grace = SAVE_SECONDS if ended == PREEMPTED and not by_us else GRACE_AFTER_FAILURE
            self._deadline = min(self._deadline, time.monotonic() + grace)


class handling:
    """Signals go to a handler, where this thread may decide that."""

    def __init__(self, handler: Callable[[int, Any], None]) -> None:
        self.handler = handler
        self.before: Mapping[int, Any] = {}
        self.context = ExitStack()

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self.context.enter_context(stop.elsewhere())
            self.before = {number: signal.signal(number, self.handler) for number in SIGNALS}

    def __exit__(self, *exception: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.context.close()


def leave_slurm() -> None:
    """Take the variables away by which Lightning would have a process be a task of srun, and demand more of them.

    In a script under sbatch it is none; what srun has started is a rank by other variables, see `Rendezvous`.
    """
    for name in ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"):
        os.environ.pop(name, None)


def _process(
    environment: Mapping[str, str], target: Callable[..., int], arguments: tuple[Any, ...], orphans_save: bool
) -> None:
    """A process forked from a server whose environment is older than the run."""
    os.setpgrp()  # Ctrl-C reaches the parent alone, which passes it on once
    look_again()
    try:
        with stop.listening():
            os.environ.clear()
            os.environ.update(environment)
            leave_slurm()
            threading.Thread(target=_die_with_parent, args=(orphans_save,), daemon=True).start()
            if "OMP_NUM_THREADS" in environment:  # read by nobody after the fork
                import torch

                torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
            code = target(*arguments)
    except Preempted:
        code = PREEMPTED
    sys.exit(code)


def _die_with_parent(save: bool) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        if save:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(SAVE_SECONDS)
        os._exit(FAILED)


def _free_port() -> int:
    """None of those that systems give to connections, from 32768: another's could have it before the ranks meet."""
    for _ in range(100):
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", 25000 + secrets.randbelow(7000)))
            return int(free.getsockname()[1])
    raise RuntimeError("no port of 25000 to 31999 is free for the ranks to meet")


def is_one_of_several() -> bool:
    """Whether this process is one of several ranks that another program started.

    A script under sbatch sees the number of tasks that srun would start, but is none of them.
    """
    return "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1


class Rendezvous:
    """Ranks that torchrun or srun has started already: the first one decides, the others wait for it.

    They meet in the key-value store that `torch.distributed` will use later.
    """

    def __init__(self) -> None:
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            from lightning.fabric.plugins.environments import SLURMEnvironment

            nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_NODELIST") or "127.0.0.1"
            port = 15000 + int(os.environ.get("SLURM_JOB_ID", "0")[-4:])  # the same for all, and another for other jobs
            os.environ.setdefault("MASTER_ADDR", SLURMEnvironment.resolve_root_node_address(nodes))
            os.environ.setdefault("MASTER_PORT", str(port))
            os.environ.update(
                RANK=os.environ["SLURM_PROCID"],
                WORLD_SIZE=os.environ["SLURM_STEP_NUM_TASKS"],
                LOCAL_RANK=os.environ["SLURM_LOCALID"],
                NODE_RANK=os.environ["SLURM_NODEID"],
            )
        self.devices, self.nodes = machines(os.environ)

        from torch.distributed import rendezvous

        self.store, self.rank, self.world = next(rendezvous("env://"))
        self.key = f"triform/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"

    def tell(self, text: str) -> None:
        """Give the others what they wait for."""
        self.store.set(self.key, text)

    def told(self) -> str:
        """Wait for what the first rank tells."""
        self.store.wait([self.key], PREPARATION)
        return str(self.store.get(self.key).decode())


def machines(environment: Mapping[str, str]) -> tuple[int, int]:
    """Ranks on each machine, and machines, as torchrun or srun tells.

    Raises:
        BadInput: the machines have unequal numbers of ranks.
    """
    world = int(environment["WORLD_SIZE"])
    if "LOCAL_WORLD_SIZE" in environment:  # torchrun
        nodes = world // int(environment["LOCAL_WORLD_SIZE"])
        return int(environment["LOCAL_WORLD_SIZE"]), max(nodes, 1)
    counts = environment.get("SLURM_STEP_TASKS_PER_NODE", "")  # such as 8(x2) or 3,2(x3)
    nodes = int(environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES") or 1)
    if "," in counts or world % nodes:
        raise BadInput(
            f"srun has started {world} tasks on {nodes} machines, {counts or 'not equally many on each'}; "
            "start as many on each, with --ntasks-per-node"
        )
    return world // nodes, nodes
