"""The queue of a sweep: what starts when, and how each job ended."""

import csv
import logging
import math
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from triform.run.errors import one_line
from triform.run.folder import RunFolder
from triform.run.job import fail, mark, preempt
from triform.sweeps.compose import Composed, compose_job, make_folder
from triform.sweeps.launcher import Ended, Launcher, Ready
from triform.sweeps.manifest import FAILED, OVER, PREEMPTED, RUNNING, WAITING, Job, Manifest, SweepFolder
from triform.sweeps.samplers import Sampler
from triform.sweeps.view import View, judged
from triform.training import codes

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
"""Between two looks at what runs."""


class Driver:
    """Asks a sampler for jobs, has a launcher run them, and writes down what became of each.

    Args:
        composed: jobs that have passed the checks already, by number.
        trust: packages besides triform's own that configs may name.
        asked: signals that this process got so far; those that arrive later are added.
    """

    def __init__(
        self,
        folder: SweepFolder,
        manifest: Manifest,
        sampler: Sampler,
        launcher: Launcher,
        view: View,
        composed: Mapping[int, Composed],
        trust: Sequence[str],
        asked: list[int],
    ) -> None:
        self.folder, self.manifest, self.sampler, self.launcher = folder, manifest, sampler, launcher
        self.view, self.composed, self.trust, self.asked = view, dict(composed), tuple(trust), asked
        self._devices = 1
        self._by_id: dict[str, Job] = {}
        self._since: dict[str, float] = {}
        self._passed_on = 0
        self._watched: dict[int, int] = {}  # job -> last step that the sampler was told
        self._read: dict[int, int] = {}  # job -> bytes of its record then

    def run(self, jobs: Sequence[Job]) -> None:
        """Run these jobs, and further ones that the sampler has, until all have ended or a signal asks to stop."""
        queue = list(jobs)
        try:
            self._attach(queue)
            while not self._passed_on or self._by_id:
                if not self.asked:
                    self._submit(queue)
                    if not self._by_id and not queue:
                        return
                self._look()
                for number in self.asked[self._passed_on :]:
                    self._passed_on += 1
                    if not self.launcher.signal(number):
                        return
        except BaseException:  # a bug, or a disk that is full: the jobs save what they have
            self.launcher.signal(signal.SIGTERM)
            while self._by_id:
                self._look()
            raise

    def _look(self) -> None:
        for ended in self.launcher.poll(POLL_SECONDS):
            self._settle(ended)
        self._watch()
        self.view.tick()

    def _attach(self, queue: list[Job]) -> None:
        """Take over what an earlier driver left running."""
        begun = [job for job in queue if job.status == RUNNING]
        ids = self.launcher.attach([job.number for job in begun])
        for job in begun:
            if job.number in ids:
                queue.remove(job)
                job.id = ids[job.number]
                self._by_id[job.id], self._since[job.id] = job, time.monotonic()
            else:
                job.status, job.id = PREEMPTED, None

    def _submit(self, queue: list[Job]) -> None:
        """Start what there is room for."""
        while queue or (self.sampler.adaptive and self.launcher.room(self._devices, 1) and self._ask(queue)):
            shape = self._shape(queue[0])
            if shape is None:
                queue.pop(0)
                continue
            self._devices = shape[1]
            room = self.launcher.room(self._devices, len(queue))
            if not room:
                return
            batch: list[tuple[Job, Ready]] = []
            while queue and len(batch) < room and self._shape(queue[0]) == shape:
                job = queue.pop(0)
                path = self._made(job)
                if path is not None:
                    batch.append((job, Ready(job.number, path, *shape, self.trust)))
            self._start(batch)

    def _ask(self, queue: list[Job]) -> bool:
        """Add the sampler's next job to the queue, if it has one."""
        number = max((job.number for job in self.manifest.jobs), default=-1) + 1
        job = self.sampler.job(number, self.manifest.fixed)
        if job is None:
            return False
        if job.number == number:
            self.manifest.jobs.append(job)
        queue.append(job)
        return True

    def _shape(self, job: Job) -> tuple[str, int, int] | None:
        """What a job runs on; None: it cannot, which is written down."""
        try:
            if self._begun(job):
                return self.launcher.shape(self.folder.run(job.number).read_config())
            if job.number not in self.composed:
                self.composed[job.number] = compose_job(job, self.launcher, self.trust)
            return self.launcher.shape(self.composed[job.number].config)
        except (ValueError, OSError) as error:
            self._failed(job, one_line(error))
            return None

    def _begun(self, job: Job) -> bool:
        return job.attempts > 0 and self.folder.run(job.number).config.exists()

    def _made(self, job: Job) -> Path | None:
        """A job's run folder, which is made where it is not there; None: it cannot be, which is written down."""
        folder = self.folder.run(job.number)
        try:
            if self._begun(job):
                prune_file(folder).unlink(missing_ok=True)
                if folder.summary.exists():
                    mark(folder, status="preempted", error=None)  # until it says something itself
            else:
                make_folder(folder, job, self.composed.pop(job.number))
        except (ValueError, OSError) as error:
            self._failed(job, one_line(error))
            return None
        return folder.path

    def _start(self, batch: Sequence[tuple[Job, Ready]]) -> None:
        for job, _ in batch:
            job.status, job.id, job.error, job.where = RUNNING, None, None, None
            job.attempts += 1
        self.folder.write(self.manifest)  # before they start: whoever comes after this driver looks for them
        try:
            ids = self.launcher.submit([ready for _, ready in batch]) if batch else []
        except (ValueError, OSError) as error:
            for job, _ in batch:
                self._failed(job, one_line(error))
            return
        for (job, _), id in zip(batch, ids, strict=True):
            job.id = id
            self._by_id[id], self._since[id] = job, time.monotonic()
            self.view.begun(job)
        self.folder.write(self.manifest)

    def _failed(self, job: Job, error: str) -> None:
        job.status, job.error, job.where, job.id = FAILED, error, None, None
        self.sampler.tell(job.number, FAILED, None)
        self.folder.write(self.manifest)
        self.view.ended(job)

    def _settle(self, ended: Ended) -> None:
        job = self._by_id.pop(ended.id)
        job.seconds += time.monotonic() - self._since.pop(ended.id)
        job.id = None
        folder = self.folder.run(job.number)
        try:
            settle(folder, ended, bool(self.asked))
        except OSError as error:
            log.warning("%s cannot be written: %s", folder.summary, error.strerror or error)
        summary = folder.read_summary()
        job.status = summary.get("status", FAILED)
        if job.status not in (*OVER, PREEMPTED):
            job.status = FAILED
            job.error = summary.get("error") or ended.cause or f"its process ended with code {ended.code}"
            job.where = summary.get("where")
        self.sampler.tell(job.number, job.status, judged(self.folder, self.manifest, job))
        self.folder.write(self.manifest)  # with what the sampler writes down there
        self.view.ended(job)

    def _watch(self) -> None:
        """Tell the sampler each new validation of a running job, and ask a run to end that it gives up."""
        if not self.sampler.watches:
            return
        for job in self._by_id.values():
            folder = self.folder.run(job.number)
            size = folder.metrics.stat().st_size if folder.metrics.exists() else 0
            if self._read.get(job.number) == size:
                continue
            self._read[job.number] = size
            for step, figure in validations(folder, self.manifest.monitor["name"]):
                if step <= self._watched.get(job.number, -1):
                    continue
                self._watched[job.number] = step
                if self.sampler.watch(job.number, step, figure):
                    with suppress(OSError):
                        prune_file(folder).touch()


def prune_file(folder: RunFolder) -> Path:
    """What asks a run to end after its next validation."""
    from triform.training.signals import PRUNE  # brings Lightning along, which the server of the jobs imports meanwhile

    return folder.path / PRUNE


def validations(folder: RunFolder, name: str) -> list[tuple[int, float]]:
    """Steps and finite values of a figure that a run has written down so far."""
    try:
        whole = folder.metrics.read_text(encoding="utf-8").rpartition("\n")[0]
    except OSError:
        return []
    found = []
    for row in csv.DictReader(whole.splitlines()):
        with suppress(ValueError, TypeError):
            step, value = int(row["step"]), float(row.get(name) or "nan")
            if math.isfinite(value):
                found.append((step, value))
    return found


def settle(folder: RunFolder, ended: Ended, asked: bool) -> None:
    """Let the summary of a run say how it ended where it could not say so itself.

    Args:
        asked: a signal has asked to stop.
    """
    status = folder.read_summary().get("status")
    if status in OVER:
        return
    if ended.cause is not None and ended.code != codes.PREEMPTED:
        fail(folder, 0, f"the run: {ended.cause}", first=True)
    elif ended.code == codes.PREEMPTED or (asked and status != FAILED):  # the signal came before it could say so
        preempt(folder)
    elif status != FAILED:
        fail(folder, 0, "its process ended before the run had finished", first=True)


def exit_code(jobs: Sequence[Job], has_more: bool = False) -> int:
    """Of a sweep: preempted if any job has not come to its end, else failed if any has.

    Args:
        has_more: there would be further jobs.
    """
    statuses = {job.status for job in jobs}
    if has_more or statuses & {WAITING, RUNNING, PREEMPTED}:
        return codes.PREEMPTED
    return codes.FAILED if FAILED in statuses else codes.FINISHED
