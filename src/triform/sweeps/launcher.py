"""What runs the jobs of a sweep."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ready:
    """A job whose run folder is made: its ranks read everything from there and go on from its checkpoint, if any.

    Args:
        device: "cpu" or "cuda".
        devices: ranks on each machine.
        trust: packages besides triform's own that its config may name.
    """

    number: int
    path: Path
    device: str
    devices: int
    nodes: int
    trust: tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """How the processes of a job ended; what its run came to stands in its folder.

    Args:
        id: the launcher's, of the job.
        code: exit code.
        cause: what ended them from outside, such as a signal; None: nothing known.
    """

    id: str
    code: int
    cause: str | None


class Launcher(ABC):
    """Starts jobs, tells which have ended, ends them."""

    @abstractmethod
    def as_if_here(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The config of a job as it can be checked on this machine."""

    @abstractmethod
    def shape(self, config: Mapping[str, Any]) -> tuple[str, int, int]:
        """The device ("cpu" or "cuda") of a job, its ranks on each machine, and machines.

        Raises:
            BadInput: it can never start.
        """

    @abstractmethod
    def room(self, devices: int, waiting: int) -> int:
        """How many jobs of so many ranks each may start now.

        Args:
            waiting: jobs that are left.
        """

    @abstractmethod
    def submit(self, jobs: Sequence[Ready]) -> list[str]:
        """Start jobs and return their ids."""

    @abstractmethod
    def attach(self, numbers: Sequence[int]) -> dict[int, str]:
        """Ids of those of these jobs that an earlier driver started and that go on without it, by number."""

    @abstractmethod
    def poll(self, seconds: float) -> list[Ended]:
        """Jobs that have ended since the last call, waiting so long for one."""

    @abstractmethod
    def signal(self, number: int) -> bool:
        """Do what a signal to the driver means for the jobs. False: they go on without the driver."""

    @abstractmethod
    def cancel(self, id: str) -> None:
        """End a job, which may save a checkpoint first."""
