"""The queue, with a launcher that runs nothing."""

import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from triform.data.prepare import Prepared, prepare
from triform.data.sources.dates import Dates
from triform.data.tokenizers import Char
from triform.run.errors import BadInput
from triform.run.folder import RunFolder
from triform.sweeps import driver
from triform.sweeps.compose import Composed, monitor_of
from triform.sweeps.driver import Driver, exit_code, settle, validations
from triform.sweeps.launcher import Ended, Launcher, Ready
from triform.sweeps.manifest import Job, Manifest, SweepFolder
from triform.sweeps.samplers import Grid, Sampler
from triform.sweeps.view import View, failures, table

LOSS = {"name": "validation/loss", "mode": "min"}


class Fake(Launcher):
    """Ends the oldest of its jobs at each look, as `ends` says: exit code, and what its summary then holds."""

    def __init__(self, at_once: int, ends: Mapping[int, tuple[int, Mapping[str, Any]]]) -> None:
        self.at_once, self.ends = at_once, ends
        self.running: list[Ready] = []
        self.log: list[str] = []
        self.left_by_another: dict[int, str] = {}

    def as_if_here(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return config

    def shape(self, config: Mapping[str, Any]) -> tuple[str, int, int]:
        if config["devices"] > 4:
            raise BadInput("more than there are")
        return "cpu", config["devices"], 1

    def room(self, devices: int, waiting: int) -> int:
        return self.at_once - len(self.running)

    def submit(self, jobs: Sequence[Ready]) -> list[str]:
        self.running += jobs
        self.log += [f"start {job.number}" for job in jobs]
        return [f"id{job.number}" for job in jobs]

    def attach(self, numbers: Sequence[int]) -> dict[int, str]:
        return {number: id for number, id in self.left_by_another.items() if number in numbers}

    def poll(self, seconds: float) -> list[Ended]:
        if not self.running:
            return []
        job = self.running.pop(0)
        code, summary = self.ends.get(job.number, (0, {"status": "finished", "best": {"validation/loss": job.number}}))
        (job.path / "summary.json").write_text(json.dumps(summary))
        self.log.append(f"end {job.number}")
        return [Ended(f"id{job.number}", code, summary.get("cause"))]

    def signal(self, number: int) -> bool:
        self.log.append(f"signal {number}")
        return True

    def cancel(self, id: str) -> None:
        raise AssertionError


def driven(
    path: Path,
    fake: Fake,
    jobs: list[Job],
    monkeypatch: pytest.MonkeyPatch,
    sampler: Sampler | None = None,
    asked: Sequence[int] = (),
    broken: Sequence[int] = (),
) -> Manifest:
    """Run jobs that need no config."""

    def make(folder: RunFolder, job: Job, made: Composed) -> None:
        if job.number in broken:
            raise OSError(28, "No space left on device")
        folder.path.mkdir()
        folder.config.write_text("devices: 1\n")

    monkeypatch.setattr(driver, "make_folder", make)
    monkeypatch.setattr(driver, "compose_job", lambda job, launcher, trust: composed)
    monkeypatch.setattr(driver, "POLL_SECONDS", 0.0)
    composed = Composed({"devices": 1}, prepared(path), ("validation/loss",), ("validation/loss", "min"))
    folder = SweepFolder(path / "sweep")
    folder.path.mkdir(exist_ok=True)
    manifest = Manifest([], "", ["a=1"], {}, {}, LOSS, jobs)
    folder.write(manifest)
    sampler = sampler or Grid([])
    with View(folder, manifest) as view:
        Driver(folder, manifest, sampler, fake, view, {}, (), list(asked)).run(list(jobs))
    assert folder.read() == manifest, "every change is written down"
    return manifest


def prepared(path: Path) -> Prepared:
    return prepare(Dates(9, 2, 2, 0), Char(), path / "cache", progress=False)


def three() -> list[Job]:
    return [Job(n, [f"seed={n}"], [f"seed={n}"]) for n in range(3)]


def test_jobs_run_as_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(2, {})
    manifest = driven(tmp_path, fake, three(), monkeypatch)
    assert fake.log == ["start 0", "start 1", "end 0", "start 2", "end 1", "end 2"]
    assert [(job.status, job.attempts, job.id) for job in manifest.jobs] == [("finished", 1, None)] * 3
    assert exit_code(manifest.jobs) == 0


def test_a_failure_a_kill_and_a_full_disk_end_no_other_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = {
        1: (1, {"status": "failed", "error": "the loss is nan", "where": "a.py:7"}),
        2: (1, {"status": "running", "cause": "rank 0 was ended by SIGKILL"}),
    }
    jobs = [*three(), Job(3, ["seed=3"], ["seed=3"]), Job(4, ["seed=4"], ["seed=4"])]
    manifest = driven(tmp_path, Fake(1, ends), jobs, monkeypatch, broken=[3])
    assert [job.status for job in manifest.jobs] == ["finished", "failed", "failed", "failed", "finished"]
    assert [job.error for job in manifest.jobs[1:4]] == [
        "the loss is nan",
        "the run: rank 0 was ended by SIGKILL",
        "[Errno 28] No space left on device",
    ]
    assert exit_code(manifest.jobs) == 1
    lines = failures(SweepFolder(tmp_path / "sweep"), manifest.jobs)
    assert "run 1 with seed=1: the loss is nan (a.py:7)" in lines[0]
    assert f"repeat it: triform rerun {tmp_path / 'sweep' / '1'}" in lines[0]
    assert "repeat it: python train.py seed=3" in lines[2]
    assert "[1] failed after" in capsys.readouterr().out, "reported at once"


def test_a_signal_starts_no_further_job_and_is_passed_on_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(1, {})
    manifest = driven(tmp_path, fake, three(), monkeypatch, asked=[signal.SIGTERM])
    assert fake.log == [f"signal {signal.SIGTERM:d}"]
    assert {job.status for job in manifest.jobs} == {"waiting"}
    assert exit_code(manifest.jobs) == 75


def test_a_preempted_job_waits_for_the_next_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = three()
    driven(tmp_path, Fake(1, {1: (75, {"status": "preempted"})}), jobs, monkeypatch)
    assert [job.status for job in jobs] == ["finished", "preempted", "finished"]
    assert exit_code(jobs) == 75
    (tmp_path / "sweep" / "1" / ".prune").touch()  # of an earlier attempt
    driven(tmp_path, Fake(1, {}), jobs[1:2], monkeypatch)
    assert (jobs[1].status, jobs[1].attempts) == ("finished", 2)
    assert not (tmp_path / "sweep" / "1" / ".prune").exists()


def test_what_runs_without_its_driver_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = three()
    for job in jobs[:2]:
        job.status, job.attempts, job.id = "running", 1, f"id{job.number}"
        (tmp_path / "sweep" / str(job.number)).mkdir(parents=True)
        (tmp_path / "sweep" / str(job.number) / "config.yaml").write_text("devices: 1\n")
    fake = Fake(3, {})
    fake.left_by_another = {1: "id1"}
    fake.running = [Ready(1, tmp_path / "sweep" / "1", "cpu", 1, 1, ())]
    driven(tmp_path, fake, jobs, monkeypatch)
    assert fake.log == ["start 0", "start 2", "end 1", "end 0", "end 2"]
    assert [job.attempts for job in jobs] == [2, 1, 1]


def test_a_job_that_fits_nowhere_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = three()
    jobs[1].attempts = 1
    (tmp_path / "sweep" / "1").mkdir(parents=True)
    (tmp_path / "sweep" / "1" / "config.yaml").write_text("devices: 5\n")
    driven(tmp_path, Fake(1, {}), jobs, monkeypatch)
    assert [job.status for job in jobs] == ["finished", "failed", "finished"]
    assert jobs[1].error == "more than there are"


class Search(Sampler):
    """Four jobs, the second of which is given up when its loss is above 1."""

    adaptive = watches = True

    def __init__(self) -> None:
        self.told: list[tuple[int, str, float | None]] = []
        self.asked: list[int] = []

    def example(self) -> list[str]:
        return ["x=0"]

    def begin(self, jobs: Sequence[Job]) -> None:
        pass

    def ask(self, number: int) -> list[str] | None:
        self.asked.append(len(self.told))
        return [f"x={number}"] if number < 4 else None

    def tell(self, number: int, status: str, figure: float | None) -> None:
        self.told.append((number, status, figure))

    def watch(self, number: int, step: int, figure: float) -> bool:
        return number == 1 and figure > 1


class Watched(Fake):
    """Its jobs end one look later than they validate."""

    def poll(self, seconds: float) -> list[Ended]:
        for job in self.running:
            metrics = job.path / "metrics.csv"
            if not metrics.exists():
                metrics.write_text("step,validation/loss\n4,\n5,2.5\n6,1.")
                return []
        return super().poll(seconds)


def test_a_search_is_asked_when_there_is_room_and_told_how_each_job_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search()
    ends = {1: (0, {"status": "pruned", "best": {"validation/loss": 2.5}}), 2: (1, {"status": "failed"})}
    manifest = driven(tmp_path, Watched(2, ends), [], monkeypatch, search)
    assert search.told == [(0, "finished", 0.0), (1, "pruned", 2.5), (2, "failed", None), (3, "finished", 3.0)]
    assert search.asked[:4] == [0, 0, 1, 2], "as late as possible"
    assert [job.overrides for job in manifest.jobs] == [["a=1", f"x={n}"] for n in range(4)]
    pruned = [n for n in range(4) if (tmp_path / "sweep" / str(n) / ".prune").exists()]
    assert pruned == [1]
    assert exit_code(manifest.jobs) == 1


def test_validations_are_read_from_the_record(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert validations(folder, "validation/loss") == []
    folder.metrics.write_text("step,train/loss,validation/loss\n1,2.0,\n2,,1.5\n4,,nan\n6,,1.25\n8,,1.")
    assert validations(folder, "validation/loss") == [(2, 1.5), (6, 1.25)], "the last line is torn"


@pytest.mark.parametrize(
    ("status", "code", "asked", "cause", "word"),
    [
        ("finished", 0, False, None, "finished"),
        ("finished", 75, True, None, "finished"),  # the signal came after its end
        ("finished", 1, False, "rank 1 was ended by SIGKILL", "finished"),
        ("pruned", 0, False, None, "pruned"),
        ("running", 0, False, None, "failed"),
        ("running", 0, True, None, "preempted"),
        ("running", 1, True, None, "preempted"),
        ("running", 1, False, "rank 0 was ended by SIGKILL", "failed"),
        ("failed", 1, True, None, "failed"),
        ("failed", 0, False, None, "failed"),
        (None, 0, False, None, "failed"),
    ],
)
def test_a_job_ends_as_its_summary_says(
    status: str | None, code: int, asked: bool, cause: str | None, word: str, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    folder.config.write_text("{}")
    if status is not None:
        folder.summary.write_text(json.dumps({"status": status}))
    settle(folder, Ended("0", code, cause), asked)
    assert folder.read_summary()["status"] == word


@pytest.mark.parametrize(
    ("statuses", "has_more", "code"),
    [
        (["finished", "finished"], False, 0),
        (["pruned", "pruned"], False, 0),
        (["finished", "failed"], False, 1),
        (["finished", "failed", "preempted"], False, 75),
        (["finished", "running"], False, 75),
        (["finished"], True, 75),  # a search that was stopped while nothing ran
        ([], False, 0),
    ],
)
def test_the_exit_code_tells_how_a_sweep_ended(statuses: list[str], has_more: bool, code: int) -> None:
    assert exit_code([Job(n, [], [], status) for n, status in enumerate(statuses)], has_more) == code


def test_the_table_has_the_best_job_first(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    jobs = [*three(), Job(3, ["seed=3"], [])]
    for job, value in zip(jobs, [1.5, 0.5, None, 1.0], strict=True):
        folder.run(job.number).path.mkdir()
        folder.run(job.number).summary.write_text(json.dumps({"best": {"validation/loss": value}}))
    for mode, order in (("min", ["1", "3", "0", "2"]), ("max", ["0", "3", "1", "2"])):
        manifest = Manifest([], "", [], {}, {}, {"name": "validation/loss", "mode": mode}, jobs)
        assert list(table(folder, manifest).columns[0].cells) == order


def test_a_figure_that_no_run_logs_is_refused_with_the_nearest(tmp_path: Path) -> None:
    names = ("validation/loss", "validation/accuracy")
    job = Composed({}, prepared(tmp_path), names, ("validation/accuracy", "max"))
    assert monitor_of({}, [job]) == {"name": "validation/accuracy", "mode": "max"}
    assert monitor_of({"metric": "loss"}, [job]) == {"name": "validation/loss", "mode": "min"}
    assert monitor_of({"metric": "validation/accuracy", "mode": "min"}, [job])["mode"] == "min"
    with pytest.raises(BadInput, match=r"metric=acuracy is not logged \(did you mean 'validation/accuracy'"):
        monitor_of({"metric": "acuracy"}, [job])
    with pytest.raises(BadInput, match=r"hydra\.sweeper\.mode=best"):
        monitor_of({"metric": "loss", "mode": "best"}, [job])
