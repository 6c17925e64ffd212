"""The record of a sweep: what was typed, and how far each of its jobs has come."""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from triform.run.errors import BadInput, nearest, one_line
from triform.run.folder import RunFolder, write_whole

log = logging.getLogger(__name__)

WAITING, RUNNING, FINISHED, FAILED, PREEMPTED, PRUNED = STATUSES = (
    *("waiting", "running", "finished", "failed", "preempted", "pruned"),
)
OVER = (FINISHED, PRUNED)
"""What is never run again."""

TUNING, FINAL = "tuning", "final"
"""Stages of a comparison of tuned variants."""


@dataclass
class Job:
    """One combination of a sweep.

    Args:
        number: of its run folder.
        varied: overrides in which it differs from the other jobs.
        overrides: all of them, with the flags that say where configs are: `python train.py OVERRIDES` is this job.
        status: one of `STATUSES`.
        attempts: how often it was started.
        error: of the last attempt.
        where: file and line of the error, where it has one.
        id: under which the launcher knows it while it runs.
        seconds: from its start to its end, over all attempts, what waited for it included.
        stage: `TUNING` or `FINAL` where variants are tuned before they are compared, else empty.
        variant: of a stage, what is compared, in words.
        value: of a stage, that of the tuned key.
        replaced: it counts no more, because another value was chosen for its variant, or it is asked for no more.
    """

    number: int
    varied: list[str]
    overrides: list[str]
    status: str = WAITING
    attempts: int = 0
    error: str | None = None
    where: str | None = None
    id: str | None = None
    seconds: float = 0.0
    stage: str = ""
    variant: str = ""
    value: str = ""
    replaced: bool = False


@dataclass
class Manifest:
    """A sweep.

    Args:
        typed: overrides of `python train.py -m` that it was begun with, those of `hydra.` included.
        key: tells it from other sweeps, whatever values its keys have.
        fixed: overrides that all jobs share, with flags.
        sweeper: settings of what chooses the jobs.
        launcher: settings of what runs them.
        monitor: figure that they are judged by, and whether its "min" or "max" is best.
        further: figures that a search weighs up against it.
        tuning: the keys of `conf/compare`, where `tune` is set, and under `chosen` what came of it for each variant.
    """

    typed: list[str]
    key: str
    fixed: list[str]
    sweeper: dict[str, Any]
    launcher: dict[str, Any]
    monitor: dict[str, str]
    jobs: list[Job] = field(default_factory=list)
    further: list[dict[str, str]] = field(default_factory=list)
    tuning: dict[str, Any] | None = None

    @property
    def counting(self) -> list[Job]:
        """Its jobs but for those that were replaced."""
        return [job for job in self.jobs if not job.replaced]


@dataclass(frozen=True)
class SweepFolder:
    """Where a sweep keeps what."""

    path: Path

    @property
    def manifest(self) -> Path:
        """The record of the sweep."""
        return self.path / "manifest.json"

    @property
    def lock(self) -> Path:
        """Locked by the process that drives the sweep."""
        return self.path / ".lock"

    def run(self, number: int) -> RunFolder:
        """The folder of a job."""
        return RunFolder(self.path / str(number))

    def read(self) -> Manifest:
        """The record.

        Raises:
            BadInput: it is missing or broken.
        """
        try:
            found = json.loads(self.manifest.read_text(encoding="utf-8"))
            jobs = [Job(**_known(Job, job)) for job in found.pop("jobs")]
            return Manifest(**_known(Manifest, found), jobs=jobs)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(
                f"{self.manifest} is no record of a sweep ({one_line(error)}); put it back as the sweep wrote it"
            ) from error

    def write(self, manifest: Manifest) -> None:
        """Replace the record whole. On a full disk the one before stays, and the sweep goes on: the next change of a
        job tries again, and what the jobs' own folders say holds."""
        try:
            write_whole(self.manifest, json.dumps(asdict(manifest), indent=1, ensure_ascii=False) + "\n")
        except OSError as error:
            log.warning("%s cannot be written: %s", self.manifest, error.strerror or error)
            with suppress(OSError):
                self.manifest.with_name(f".{self.manifest.name}.{os.getpid()}").unlink(missing_ok=True)


def _known(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """What of `values` a class has fields for: a newer version may have written more."""
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


@contextmanager
def held(folder: SweepFolder) -> Iterator[None]:
    """While a sweep is driven: nobody else drives it.

    Raises:
        BadInput: somebody does.
    """
    lock = FileLock(folder.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise BadInput(
            f"{folder.path}: another process is driving this sweep; wait for it or end it "
            f"(triform sweep status {folder.path} shows how far it is)"
        ) from error
    except OSError as error:
        raise BadInput(f"{folder.path} cannot be written to: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


def is_driven(folder: SweepFolder) -> bool:
    """Whether a process drives the sweep now."""
    if not folder.lock.exists():
        return False
    try:
        with held(folder):
            return False
    except BadInput:
        return True


def find(path: str | Path) -> SweepFolder:
    """The sweep in a folder, which may be given by one of its jobs.

    Raises:
        BadInput: there is none.
    """
    given = Path(path).expanduser()
    for candidate in (given, given.parent):
        if (candidate / "manifest.json").is_file():
            return SweepFolder(candidate.resolve())
    if not given.exists():
        siblings = [entry.name for entry in given.parent.iterdir()] if given.parent.is_dir() else []
        raise BadInput(f"{path}: no such sweep{nearest(given.name, siblings)}; give the folder printed as `sweep: ...`")
    raise BadInput(f"{path} is no sweep's folder: it has no manifest.json; give the folder printed as `sweep: ...`")


def counted(jobs: Sequence[Job]) -> str:
    """How many jobs are in which state, in words."""
    numbers = {status: sum(job.status == status for job in jobs) for status in STATUSES}
    return ", ".join(f"{number} {status}" for status, number in numbers.items() if number)
