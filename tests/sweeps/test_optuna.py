"""Searches: what Optuna is asked and told, taken up again, pruned; runs are stood for by what they would write down."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from tests.run.tiny import TINY, train, triform
from tests.sweeps.test_sweep import only
from triform.data.prepare import prepare
from triform.data.sources.dates import Dates
from triform.data.tokenizers import Char
from triform.run.cli import main
from triform.run.errors import BadInput
from triform.sweeps.compose import Composed, objectives_of
from triform.sweeps.manifest import Job, Manifest, SweepFolder
from triform.sweeps.optuna import JOURNAL, Search
from triform.sweeps.samplers import Sampler, sampler, split

SETTINGS = {
    "sampler": "tpe",
    "n_trials": 15,
    "space": {},
    "startup": 5,
    "pruner": "none",
    "warmup": 1,
    "metric": None,
    "mode": None,
    "seed": 3,
}
LOSS = {"name": "validation/loss", "mode": "min"}
WORDS = ("x=interval(-4,4)", "n=int(interval(1,9))", "kind=a,b")


def chosen(*words: str, **settings: object) -> Search:
    fixed, swept = split(words or WORDS)
    found = sampler(SETTINGS | settings, swept, fixed)
    assert isinstance(found, Search)
    return found


class Sweep:
    """A sweep's folder, and a driver that has one job at a time."""

    def __init__(self, path: Path, *further: dict[str, str]) -> None:
        self.folder = SweepFolder(path)
        path.mkdir(exist_ok=True)
        self.manifest = Manifest([], "", [], {}, {}, LOSS, further=list(further))

    def take_up(self, search: Sampler) -> Sampler:
        search.begin(self.manifest.jobs)
        search.open(self.folder, self.manifest)
        return search

    def ask(self, search: Sampler) -> Job | None:
        number = len(self.manifest.jobs)
        varied = search.ask(number)
        if varied is None:
            return None
        self.manifest.jobs.append(Job(number, varied, varied, "running", 1))
        return self.manifest.jobs[-1]

    def end(self, job: Job, status: str, best: dict[str, float] | None = None, **summary: float) -> float | None:
        job.status = status
        run = self.folder.run(job.number)
        run.path.mkdir(exist_ok=True)
        run.summary.write_text(json.dumps({"status": status, "best": best or {}, **summary}))
        return (best or {}).get("validation/loss")

    def run(self, search: Sampler, loss: Callable[[dict[str, str]], float], most: int = 1000) -> None:
        while most and (job := self.ask(search)) is not None:
            most -= 1
            figure = self.end(job, "finished", {"validation/loss": loss(values(job))})
            search.tell(job.number, "finished", figure)

    @property
    def trials(self) -> list[optuna.trial.FrozenTrial]:
        """What the journal holds, read as anybody would."""
        storage = optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(self.folder.path / JOURNAL))
        )
        return optuna.load_study(study_name="sweep", storage=storage).trials


def values(job: Job) -> dict[str, str]:
    return dict(word.split("=", 1) for word in job.varied)


def bowl(at: dict[str, str]) -> float:
    return (float(at["x"]) - 1.5) ** 2 + 0.1 * (int(at.get("n", 7)) - 7) ** 2 + (at.get("kind", "b") == "a")


@pytest.mark.parametrize("algorithm", ["tpe", "cmaes"])
def test_what_ended_well_is_tried_more_closely(algorithm: str, tmp_path: Path) -> None:
    words = WORDS if algorithm == "tpe" else WORDS[:2]
    found = {}
    for name in (algorithm, "random"):
        sweep = Sweep(tmp_path / name)
        search = chosen(*words, sampler=name, n_trials=40)
        sweep.run(sweep.take_up(search), bowl)
        losses = [bowl(values(job)) for job in sweep.manifest.jobs]
        assert len(losses) == 40
        found[name] = sum(losses[20:]) / 20
        assert [trial.value for trial in sweep.trials if "number" in trial.user_attrs] == losses
    assert found[algorithm] < 0.5 * found["random"]


@pytest.mark.parametrize("algorithm", ["tpe", "cmaes", "random"])
def test_a_search_goes_on_as_if_its_driver_had_never_been_killed(algorithm: str, tmp_path: Path) -> None:
    once, often = Sweep(tmp_path / "once"), Sweep(tmp_path / "often")
    once.run(once.take_up(chosen(sampler=algorithm)), bowl)
    for _ in range(3):
        often.run(often.take_up(chosen(sampler=algorithm)), bowl, 5)
    assert [job.varied for job in often.manifest.jobs] == [job.varied for job in once.manifest.jobs]
    other = Sweep(tmp_path / "other")
    other.run(other.take_up(chosen(sampler=algorithm, seed=4)), bowl, 3)
    assert other.manifest.jobs[0].varied != once.manifest.jobs[0].varied


def test_more_trials_are_added_to_those_there_are(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    sweep.run(sweep.take_up(chosen(n_trials=4)), bowl)
    first = [job.varied for job in sweep.manifest.jobs]
    sweep.run(sweep.take_up(chosen(n_trials=7)), bowl)
    assert len(sweep.manifest.jobs) == 7
    assert [job.varied for job in sweep.manifest.jobs[:4]] == first


def test_parallel_jobs_are_told_in_any_order(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    search = sweep.take_up(chosen(n_trials=16))
    running = [sweep.ask(search) for _ in range(4)]
    while running:
        job = running.pop(len(running) // 2)
        if job is None:
            continue
        search.tell(job.number, "finished", sweep.end(job, "finished", {"validation/loss": float(job.number)}))
        running.append(sweep.ask(search))
    assert {trial.user_attrs["number"]: trial.value for trial in sweep.trials} == {n: float(n) for n in range(16)}


def test_nan_crashed_and_preempted_jobs(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    search = sweep.take_up(chosen())
    jobs = [sweep.ask(search) for _ in range(5)]
    ends = [("finished", {"validation/loss": 1.0}), ("finished", {}), ("failed", {}), ("preempted", {})]
    for job, (status, best) in zip(jobs, ends, strict=False):
        assert job is not None
        search.tell(job.number, status, sweep.end(job, status, best))
    states = [TrialState.COMPLETE, TrialState.FAIL, TrialState.FAIL, TrialState.RUNNING, TrialState.RUNNING]
    assert [trial.state for trial in sweep.trials] == states
    sweep.take_up(chosen())
    assert [trial.state for trial in sweep.trials] == states, "nothing is told twice"


def test_what_ended_while_no_driver_was_there_is_told_by_the_next(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    search = sweep.take_up(chosen())
    job, failed = sweep.ask(search), sweep.ask(search)
    assert job is not None
    assert failed is not None
    search.ask(2)  # killed before it was written down as a job
    sweep.end(job, "finished", {"validation/loss": 0.5})
    sweep.end(failed, "failed")
    with (tmp_path / JOURNAL).open("ab") as journal:
        journal.write(b'{"op_code": 4, "torn')
    search = sweep.take_up(chosen())
    assert [trial.state for trial in sweep.trials] == [TrialState.COMPLETE, TrialState.FAIL, TrialState.FAIL]
    # retried
    search.watch(1, 4, 0.75)
    search.tell(1, "finished", sweep.end(failed, "finished", {"validation/loss": 0.25}))
    again = sweep.trials[-1]
    assert (again.user_attrs["number"], again.value, again.intermediate_values) == (1, 0.25, {1: 0.75})
    assert again.params == sweep.trials[1].params | {"x": pytest.approx(sweep.trials[1].params["x"], rel=1e-5)}


def test_a_lost_journal_is_written_anew(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    sweep.run(sweep.take_up(chosen("x=interval(-4,4)", "n=range(2,9,3)", "kind=a,b", n_trials=6)), bowl)
    before = [
        (trial.user_attrs["number"], trial.value, trial.params["n"], trial.params["kind"]) for trial in sweep.trials
    ]
    (tmp_path / JOURNAL).unlink()
    sweep.take_up(chosen("x=interval(-4,4)", "n=range(2,9,3)", "kind=a,b", n_trials=6))
    after = [
        (trial.user_attrs["number"], trial.value, trial.params["n"], trial.params["kind"]) for trial in sweep.trials
    ]
    assert after == before
    assert {values(job)["n"] for job in sweep.manifest.jobs} <= {"2", "5", "8"}


def test_a_full_disk_leaves_a_journal_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sweep = Sweep(tmp_path)
    search = sweep.take_up(chosen())
    job = sweep.ask(search)
    assert job is not None

    def full(self: optuna.storages.journal.JournalFileBackend, logs: list[dict[str, object]]) -> None:
        with (tmp_path / JOURNAL).open("ab") as journal:
            journal.write(b'{"op_code')
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(optuna.storages.journal.JournalFileBackend, "append_logs", full)
        search.tell(0, "finished", sweep.end(job, "finished", {"validation/loss": 0.5}))
    assert "No space left on device" in caplog.text
    assert [trial.state for trial in sweep.trials] == [TrialState.RUNNING]
    sweep.take_up(chosen())
    assert [trial.value for trial in sweep.trials] == [0.5]


def test_no_job_is_run_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sweep = Sweep(tmp_path)
    sweep.run(sweep.take_up(chosen("kind=a,b", "n=range(3)")), lambda at: float(at["n"]))
    jobs = [tuple(job.varied) for job in sweep.manifest.jobs]
    assert len(set(jobs)) == len(jobs) == 6
    assert "no job that differs from all before; it ends with 6" in caplog.text


SPACE = {
    "optimizer": "choice(adamw,muon)",
    "optimizer.lr": [
        {"values": "tag(log,interval(1e-4,1e-2))", "when": {"optimizer": "adamw"}},
        {"values": "tag(log,interval(1e-1,1))", "when": {"optimizer": "muon"}},
    ],
    "optimizer.momentum": {"values": "interval(0.5,0.9)", "when": {"optimizer": "muon"}},
}


@pytest.mark.parametrize("algorithm", ["tpe", "cmaes", "random"])
def test_a_key_is_asked_only_where_another_has_a_value(algorithm: str, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    search = sweep.take_up(chosen("seed=1", space=SPACE, sampler=algorithm))
    sweep.run(search, lambda at: float(at["optimizer.lr"]))
    seen = set()
    for job in sweep.manifest.jobs:
        at = values(job)
        seen.add(at["optimizer"])
        low, high, keys = (1e-4, 1e-2, 2) if at["optimizer"] == "adamw" else (0.1, 1, 3)
        assert low <= float(at["optimizer.lr"]) <= high
        assert len(at) == keys
    assert seen == {"adamw", "muon"}


def test_several_figures_are_weighed_up(tmp_path: Path) -> None:
    cost = {"name": "flops_per_token", "mode": "min"}
    sweep = Sweep(tmp_path, cost)
    search = sweep.take_up(chosen(metric=["loss", "flops_per_token"], n_trials=3))
    for number, (loss, flops) in enumerate([(1.0, 9.0), (2.0, 4.0), (3.0, 5.0)]):
        job = sweep.ask(search)
        assert job is not None
        assert not search.watch(number, 4, loss)
        search.tell(number, "finished", sweep.end(job, "finished", {"validation/loss": loss}, flops_per_token=flops))
    assert [trial.values for trial in sweep.trials] == [[1.0, 9.0], [2.0, 4.0], [3.0, 5.0]]
    assert search.conclusions() == ["no other run is better in all of validation/loss, flops_per_token: 0, 1"]


def pruned(search: Sampler, sweep: Sweep, curves: list[list[float]]) -> list[int | None]:
    """For each job, the validation at which it is given up."""
    found: list[int | None] = []
    for curve in curves:
        job = sweep.ask(search)
        assert job is not None
        at = next((n for n, loss in enumerate(curve, start=1) if search.watch(job.number, 10 * n, loss)), None)
        status = "finished" if at is None else "pruned"
        search.tell(job.number, status, sweep.end(job, status, {"validation/loss": min(curve[:at])}))
        found.append(at)
    return found


def test_median_gives_up_what_is_worse_than_half(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    search = sweep.take_up(chosen(pruner="median", startup=3))
    curves = [[3.0, 2.0, 1.0], [4.0, 3.0, 2.0], [5.0, 4.0, 3.0], [9.0, 3.5, 0.5], [3.5, 2.5, 1.5]]
    assert pruned(search, sweep, curves) == [None, None, None, 2, None], "not before startup and warmup"
    assert sweep.trials[3].state == TrialState.PRUNED
    assert sweep.trials[3].intermediate_values == {1: 9.0, 2: 3.5}
    taken_up = sweep.take_up(chosen(pruner="median", startup=3))
    job = sweep.ask(taken_up)
    assert job is not None
    assert [taken_up.watch(5, 10 * n, 8.0) for n in (1, 2)] == [False, True]
    again = sweep.take_up(chosen(pruner="median", startup=3))  # which reads the whole record once more
    assert [again.watch(5, 10 * n, 8.0) for n in (1, 2)] == [True, True]
    assert sweep.trials[5].intermediate_values == {1: 8.0, 2: 8.0}


def test_hyperband_lets_a_third_go_on(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    search = sweep.take_up(chosen(pruner="hyperband", n_trials=40))
    assert pruned(search, sweep, [[1.0] * 9]) == [None], "the first tells how long a job is"
    ends = pruned(search, sweep, [[2.0 + n] * 9 for n in range(30)])
    assert {end for end in ends if end is not None} <= {1, 3, 9}
    assert sum(end is not None and end < 9 for end in ends) > 15
    assert pruned(search, sweep, [[0.5] * 9]) == [None], "the best goes on"


def test_a_state_that_names_anything_else_is_not_loaded(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    words = ("x=interval(-4,4)", "y=interval(-4,4)")
    sweep.run(sweep.take_up(chosen(*words, sampler="cmaes")), bowl)
    sweep.take_up(chosen(*words, sampler="cmaes"))  # its own states are fine

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return open, (str(tmp_path / "written"), "w")

    journal = tmp_path / JOURNAL
    text = journal.read_text()
    state = next(json.loads(line) for line in text.splitlines() if "cma:optimizer:0" in line)
    state["system_attr"] = {"cma:optimizer:0": pickle.dumps(Evil()).hex()}
    trial = len(sweep.manifest.jobs)
    job = sweep.take_up(chosen(*words, sampler="cmaes", n_trials=30)).ask(trial)
    assert job is not None
    state["trial_id"] = trial
    with journal.open("a") as file:
        file.write(json.dumps(state) + "\n")
    with pytest.raises(BadInput, match=r"not one of CMA-ES .it names (_io|io)\.open.; remove the file"):
        sweep.take_up(chosen(*words, sampler="cmaes"))
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        (["seed=1"], {}, r"hydra/sweeper=optuna: the space is empty; give a key a range.*search=small"),
        (WORDS, {"n_trials": 0}, "hydra.sweeper.n_trials=0 is no whole number of at least 1"),
        (WORDS, {"startup": 0}, "hydra.sweeper.startup=0"),
        (WORDS, {"warmup": -1}, "hydra.sweeper.warmup=-1"),
        (WORDS, {"seed": None}, "hydra.sweeper.seed=None"),
        (WORDS, {"sampler": "tpee"}, r"hydra.sweeper.sampler=tpee is not known \(did you mean 'tpe'\?\)"),
        (WORDS, {"pruner": "mean"}, r"hydra.sweeper.pruner=mean is not known \(did you mean 'median'"),
        (WORDS, {"metric": ["loss", "seconds"], "sampler": "cmaes"}, "sampler=cmaes takes one figure"),
        (WORDS, {"metric": ["loss", "seconds"], "pruner": "median"}, "set hydra.sweeper.pruner=none"),
    ],
)
def test_a_search_that_cannot_be_is_refused(words: list[str], settings: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        chosen(*words, **settings)


def test_a_space_needs_this_sweeper() -> None:
    with pytest.raises(BadInput, match=r"hydra/sweeper=grid asks for no space; .*choose hydra/sweeper=optuna"):
        sampler({"sampler": "grid", "space": {"a": "choice(1,2)"}}, [])
    with pytest.raises(BadInput, match="several figures need hydra/sweeper=optuna"):
        sampler({"sampler": "grid", "metric": ["loss", "seconds"]}, [])


def test_objectives_are_figures_and_costs(tmp_path: Path) -> None:
    data = prepare(Dates(9, 2, 2, 0), Char(), tmp_path / "cache", progress=False)
    jobs = [Composed({}, data, ("validation/loss", "validation/accuracy"), ("validation/accuracy", "max"))]
    accuracy = {"name": "validation/accuracy", "mode": "max"}
    assert objectives_of({}, jobs) == [accuracy]
    found = objectives_of({"metric": ["accuracy", "flops_per_token", "tokens_per_second", "loss"]}, jobs)
    assert found == [
        accuracy,
        {"name": "flops_per_token", "mode": "min"},
        {"name": "tokens_per_second", "mode": "max"},
        LOSS,
    ]
    for settings, message in (
        ({"metric": ["loss", "flops_per_tokn"]}, r"flops_per_tokn is not logged \(did you mean 'flops_per_token'"),
        ({"metric": ["loss", "acuracy"]}, r"acuracy is not logged \(did you mean 'validation/accuracy'"),
        ({"metric": ["seconds", "loss"]}, "name a validation figure first"),
        ({"metric": ["loss", "seconds"], "mode": ["min"]}, "give each figure min or max"),
    ):
        with pytest.raises(BadInput, match=message):
            objectives_of(settings, jobs)


# As a user starts it

LR = "optimizer.lr=tag(log,interval(1e-4,1e-2))"


def test_a_search_from_the_command_line_is_extended(tmp_path: Path) -> None:
    """Two jobs at once, then one more: Optuna hears of every validation and of every end."""
    words = ("-m", "hydra/sweeper=optuna", LR, "name=search", "trainer.max_steps=2", "trainer.val_interval=1")
    done = train(tmp_path, *words, "hydra.sweeper.n_trials=2", "hydra.launcher.jobs=2")
    assert done.returncode == 0, done.stderr
    folder = only(tmp_path)
    jobs = folder.read().jobs
    assert [job.status for job in jobs] == ["finished"] * 2
    for job in jobs:
        assert job.varied == [f"optimizer.lr={folder.run(job.number).read_config()['optimizer']['lr']:.6g}"]
    more = triform(tmp_path, "sweep", "extend", str(folder.path), "--trials", "1")
    assert more.returncode == 0, more.stderr
    assert [job.varied for job in folder.read().jobs][:2] == [job.varied for job in jobs]
    assert [job.attempts for job in folder.read().jobs] == [1] * 3
    trials = Sweep(folder.path).trials
    best = [folder.run(n).read_summary()["best"][folder.read().monitor["name"]] for n in range(3)]
    assert {trial.user_attrs["number"]: trial.value for trial in trials} == dict(enumerate(best))
    assert all(sorted(trial.intermediate_values) == [1, 2][: len(trial.intermediate_values)] for trial in trials)


def test_bad_searches_start_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, message in (
        (("-m", "hydra/sweeper=optuna"), "the space is empty"),
        (
            ("-m", "search=small", "hydra.sweeper.metric=los"),
            "metric=los is not logged (did you mean 'validation/loss'?)",
        ),
        (("-m", "search=small", "hydra/sweeper=grid"), "choose hydra/sweeper=optuna"),
        (("search=small",), "search=small: one run searches nothing; add -m"),
        (("-m", "hydra/sweeper=optuna", "optimizer.lrr=interval(0,1)"), "(did you mean 'optimizer.lr'?)"),
    ):
        assert main([*TINY, *words]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert message in printed.err
        assert not (tmp_path / "outputs" / "sweeps").exists()


def test_a_job_of_two_processes_is_pruned(tmp_path: Path) -> None:
    """The second learning rate learns nothing; the first has ended, and is better at each validation."""
    words = (
        *("-m", "hydra/sweeper=optuna", "optimizer.lr=1e-2,1e-9", "scheduler=constant", "name=ranks"),
        *("trainer.devices=2", "trainer.max_steps=60", "trainer.val_interval=2", "trainer.save_interval=60"),
        *("hydra.sweeper.n_trials=2", "hydra.sweeper.startup=1", "hydra.sweeper.warmup=0", "hydra.sweeper.metric=loss"),
        *("hydra.launcher.jobs=1", "hydra.sweeper.seed=2"),
    )
    done = train(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    folder = only(tmp_path)
    states = [(job.varied, job.status) for job in folder.read().jobs]
    assert states == [(["optimizer.lr=0.01"], "finished"), (["optimizer.lr=1e-09"], "pruned")]
    assert folder.run(1).read_summary()["steps"] < 60
    assert [trial.state for trial in Sweep(folder.path).trials if "number" in trial.user_attrs] == [
        TrialState.COMPLETE,
        TrialState.PRUNED,
    ]
