"""What a sweep shows while it runs, and at its end."""

import math
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from triform.run.folder import RunFolder
from triform.sweeps.manifest import (
    FAILED,
    FINAL,
    FINISHED,
    OVER,
    RUNNING,
    TUNING,
    Job,
    Manifest,
    SweepFolder,
    counted,
    is_driven,
)
from triform.training.units import duration, rate

LINE_SECONDS = 30.0
"""Between two lines about running jobs where there is no terminal."""

TOO_MANY = 20
"""Failed jobs that are named one by one; the others are in the table."""


class View:
    """Lines of a sweep: on a terminal one for each running job that changes in place, elsewhere one after the other."""

    def __init__(self, folder: SweepFolder, manifest: Manifest, console: Console | None = None) -> None:
        self.folder, self.manifest = folder, manifest
        self.console = console or Console()
        self._live: Live | None = None
        self._said = time.monotonic()

    def __enter__(self) -> "View":
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._live is not None:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, flush=True)

    def begun(self, job: Job) -> None:
        """A job was started."""
        again = "" if job.attempts == 1 else f" (attempt {job.attempts}, from its last checkpoint)"
        self.say(f"[{job.number}] started: {_varied(job)}{again}")

    def ended(self, job: Job) -> None:
        """A job has ended."""
        cause = f": {job.error}" if job.status == FAILED else ""
        figure = self.figures(job)
        parts = [f"[{job.number}] {job.status} after {duration(job.seconds)}{cause}"]
        parts += [figure] * bool(figure) + [f"({_of_all(self.manifest)} over)"]
        self.say("  ".join(parts))

    def tick(self) -> None:
        """Show how far the running jobs are."""
        if self._live is not None:
            self._live.update(self._running())
        elif time.monotonic() - self._said >= LINE_SECONDS:
            self._said = time.monotonic()
            for job in self.manifest.jobs:
                if job.status == RUNNING:
                    self.say(f"[{job.number}] {'  '.join(progress(self.folder.run(job.number)))}")

    def figures(self, job: Job) -> str:
        """The best figures of a job as people read them."""
        best = self.folder.run(job.number).read_summary().get("best") or {}
        return "  ".join(f"{key} {v:.4g}" for key, v in best.items() if key != "step" and isinstance(v, int | float))

    def _running(self) -> Table:
        table = Table(show_edge=False, pad_edge=False, box=None, show_header=False)
        for job in self.manifest.jobs:
            if job.status == RUNNING:
                shown = progress(self.folder.run(job.number))
                table.add_row(f"[{job.number}]", escape(_varied(job)), *map(escape, shown or ["starts"]))
        table.add_row("", f"{_of_all(self.manifest)} over")
        return table


def progress(folder: RunFolder) -> list[str]:
    """How far a run is, as it last wrote down: step, time left, loss, speed."""
    summary = folder.read_summary()
    if "steps" not in summary:
        return ["starts"]
    step, total, seconds = summary["steps"], summary.get("total_steps"), summary.get("seconds") or 0.0
    shown = [f"step {step}/{total}" if total else f"step {step}"]
    if total and step:
        shown.append(f"{duration(seconds / step * (total - step))} left")
    last = summary.get("last") or {}
    shown += [
        f"{name.removeprefix('train/')} {last[name]:.4f}"
        for name in ("train/loss", "validation/loss")
        if isinstance(last.get(name), int | float)
    ]
    if summary.get("tokens_per_second"):
        shown.append(f"{rate(summary['tokens_per_second'])} tokens/s")
    return shown


def judged(folder: SweepFolder, manifest: Manifest, job: Job) -> float | None:
    """The best value of what the sweep judges by; None: there is none that is finite."""
    value = (folder.run(job.number).read_summary().get("best") or {}).get(manifest.monitor["name"])
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def table(folder: SweepFolder, manifest: Manifest) -> Table:
    """Every job, the best ones first."""
    name, mode = manifest.monitor["name"], manifest.monitor["mode"]
    sign = 1 if mode == "min" else -1
    values = {job.number: judged(folder, manifest, job) for job in manifest.jobs}

    def rank(job: Job) -> tuple[float, int]:
        value = values[job.number]
        return (math.inf if value is None else sign * value, job.number)

    made = Table(show_edge=False, pad_edge=False, box=None)
    for heading in ("run", "with", "status", "time", name):
        made.add_column(heading, justify="left" if heading in ("with", "status") else "right", overflow="fold")
    for job in sorted(manifest.jobs, key=rank):
        value = values[job.number]
        made.add_row(
            str(job.number),
            escape(_varied(job)),
            job.status,
            duration(job.seconds) if job.attempts else "",
            "" if value is None else f"{value:.4g}",
        )
    return made


def stages(folder: SweepFolder, manifest: Manifest) -> list[str]:
    """How far each stage is, where variants are tuned before they are compared."""
    if manifest.tuning is None:
        return []
    trials, finals, wanted = _staged(manifest)
    chosen, names = manifest.tuning.get("chosen", {}), {job.variant for job in trials}
    summaries = [folder.run(job.number).read_summary() for job in finals if job.status == FINISHED]
    tested = sum(any(name.startswith("test/") for name in summary.get("final") or ()) for summary in summaries)
    return [
        f"trials: {_over(trials)} of {len(trials)} over, of {len(chosen)} of {len(names)} variants all",
        f"runs at the best values: {_over(finals)} of {wanted} over",
        f"test data: looked at by {tested} of {wanted}, once each",
    ]


def _staged(manifest: Manifest) -> tuple[list[Job], list[Job], int]:
    """Trials, runs that are compared, and how many of these there will be."""
    trials, finals = ([job for job in manifest.counting if job.stage == stage] for stage in (TUNING, FINAL))
    tuning = manifest.tuning or {}
    without = {name for name, found in tuning.get("chosen", {}).items() if found["value"] is None}
    return trials, finals, len({job.variant for job in trials} - without) * len(tuning.get("seeds", ()))


def chosen_lines(manifest: Manifest) -> list[str]:
    """What was chosen for each variant, in words, with a warning where a better value may lie outside."""
    tuning = manifest.tuning or {}
    key, name = tuning.get("tune"), manifest.monitor["name"]
    lines = []
    for variant, found in tuning.get("chosen", {}).items():
        if found["value"] is None:
            lines.append(
                f"{variant}: none of its {found['tried']} trials has ended with a finite {name}, so it is not compared"
            )
            continue
        lines.append(f"{variant}: {key}={found['value']}, best of {found['tried']} by {name} {found['figure']:.4g}")
        if found["edge"] is not None:
            lines.append(
                f"warning: {variant}: the {found['edge']} {key} that was tried is its best; a better one may lie "
                "beyond: try more with a larger compare.trials"
            )
    return lines


def failures(folder: SweepFolder, jobs: Sequence[Job]) -> list[str]:
    """For each job that failed: which, with what, why, where, and the command that repeats it."""
    lines = []
    failed = [job for job in jobs if job.status == FAILED]
    for job in failed[:TOO_MANY]:
        run = folder.run(job.number)
        where = f" ({job.where})" if job.where else ""
        lines.append(
            f"error: run {job.number} with {_varied(job)}: {job.error or 'see its log'}{where}; "
            f"its log: {run.log(0)}; repeat it: {repeat(folder, job)}"
        )
    if len(failed) > TOO_MANY:
        lines.append(f"error: and {len(failed) - TOO_MANY} more; see triform sweep status {folder.path}")
    return lines


def repeat(folder: SweepFolder, job: Job) -> str:
    """A command that does what a job did, once more."""
    import shlex

    run = folder.run(job.number)
    return f"triform rerun {run.path}" if run.config.exists() else f"python train.py {shlex.join(job.overrides)}"


def conclude(folder: SweepFolder, manifest: Manifest, conclusions: Sequence[str]) -> None:
    """Print how every job ended, what follows from it, what failed, then the folder."""
    Console().print(table(folder, manifest))
    for line in (*stages(folder, manifest), *conclusions):
        print(line, flush=True)
    for line in failures(folder, manifest.counting):
        print(line, file=sys.stderr, flush=True)
    left = [job for job in manifest.counting if job.status not in (*OVER, FAILED)]
    if left:
        print(f"go on with the same command, or: triform sweep resume {folder.path}", flush=True)
    elif any(job.status == FAILED for job in manifest.counting):
        print(f"try what failed again with: triform sweep retry {folder.path}", flush=True)
    print(f"sweep: {folder.path}", flush=True)


def _over(jobs: Sequence[Job]) -> int:
    return sum(job.status in (*OVER, FAILED) for job in jobs)


def _of_all(manifest: Manifest) -> str:
    trials, finals, wanted = _staged(manifest)
    total = len(manifest.counting) if manifest.tuning is None else len(trials) + max(wanted, len(finals))
    return f"{_over(manifest.counting)} of {total}"


def _varied(job: Job) -> str:
    words = " ".join(job.varied) or "as it is"
    return f"{words} ({'replaced' if job.replaced else job.stage})" if job.stage else words


def status(folder: SweepFolder) -> None:
    """Print how far each run of a sweep is, whoever drives it."""
    manifest = folder.read()
    for job in manifest.jobs:
        found = folder.run(job.number).read_summary().get("status")
        if job.attempts and job.status not in OVER and found in OVER:
            job.status = found
    driven = is_driven(folder)
    Console().print(table(folder, manifest))
    for job in manifest.jobs:
        if job.status == RUNNING:
            shown = "  ".join(progress(folder.run(job.number)))
            print(f"[{job.number}] {shown}" if driven else f"[{job.number}] was left by its driver at {shown}")
    for line in (*stages(folder, manifest), *chosen_lines(manifest), *failures(folder, manifest.counting)):
        print(line)
    print(f"sweep: {folder.path}: {counted(manifest.jobs)}; {'is driven now' if driven else 'nobody drives it'}")
