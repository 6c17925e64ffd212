"""Variants that are tuned before they are compared, with a launcher that computes what a run would come to."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.sweeps.test_driver import prepared
from triform.data.prepare import Prepared
from triform.run.cli import main
from triform.run.errors import BadInput
from triform.run.folder import RunFolder
from triform.sweeps import driver, run
from triform.sweeps.compose import Composed
from triform.sweeps.launcher import Ended, Launcher, Ready
from triform.sweeps.manifest import FINAL, TUNING, Job, Manifest, SweepFolder
from triform.sweeps.samplers import Interval, split
from triform.sweeps.tune import Tuned, Untuned, around, edge, spaced, tuned
from triform.sweeps.view import stages

LOSS = {"name": "validation/loss", "mode": "min"}
KEY = "optimizer.lr"
LRS = ("0.001", "0.002", "0.004")
BEST = {"a": 0.002, "b": 0.004, "c": 0.008}
COMPARE = {"tune": KEY, "trials": 3, "factor": 2.0, "seed": 1000}


class Killed(Exception):
    """The driver was killed."""


class Computed(Launcher):
    """Runs one job at a time, whose loss is least at the best value of its variant.

    Args:
        end: exit code and summary of a job by its overrides; None: `computed`.
        kill_at: jobs that end before the driver is killed.
    """

    def __init__(self, path: Path, end: Callable[[dict[str, str]], Any] | None = None, kill_at: int = 1000) -> None:
        self.path, self.end, self.left = path, end or computed, kill_at
        self.running: list[Ready] = []
        self.started: list[str] = []

    def as_if_here(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        return config

    def shape(self, config: Mapping[str, Any]) -> tuple[str, int, int]:
        return "cpu", 1, 1

    def room(self, devices: int, waiting: int) -> int:
        return min(1 - len(self.running), waiting)

    def submit(self, jobs: Sequence[Ready]) -> list[str]:
        self.running += jobs
        words = [json.loads((job.path / "words").read_text()) for job in jobs]
        self.started += [" ".join(f"{key.rpartition('.')[2]}={value}" for key, value in one.items()) for one in words]
        return [str(job.number) for job in jobs]

    def attach(self, numbers: Sequence[int]) -> dict[int, str]:
        return {}

    def poll(self, seconds: float) -> list[Ended]:
        if not self.left:
            self.running.clear()
            raise Killed
        self.left -= 1
        job = self.running.pop(0)
        code, summary = self.end(json.loads((job.path / "words").read_text()))
        (job.path / "summary.json").write_text(json.dumps(summary))
        return [Ended(str(job.number), code, None)]

    def signal(self, number: int) -> bool:
        return True

    def cancel(self, id: str) -> None:
        raise AssertionError


def computed(words: dict[str, str]) -> tuple[int, dict[str, Any]]:
    loss = 1 + abs(math.log(float(words[KEY]) / BEST[words["model"]])) + int(words["seed"]) % 10 / 100
    final = {"test/loss": loss} if words.get("trainer.test") != "false" else {"validation/loss": loss}
    return 0, {"status": "finished", "best": {"validation/loss": loss}, "final": final}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepared(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def runs_without_configs(data: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(folder: RunFolder, job: Job, made: Composed) -> None:
        folder.path.mkdir(exist_ok=True)
        folder.config.write_text("{}\n")
        (folder.path / "words").write_text(json.dumps(dict(word.split("=", 1) for word in job.overrides)))

    composed = Composed({}, data, ("validation/loss",), ("validation/loss", "min"))
    monkeypatch.setattr(driver, "make_folder", make)
    monkeypatch.setattr(driver, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(run, "compare", lambda folder, manifest: None)
    for module in (driver, run):
        monkeypatch.setattr(module, "compose_job", lambda job, launcher, trust: composed)


def variants(*models: str, values: Sequence[str] = LRS) -> list[Untuned]:
    return [Untuned((f"model={model}",), tuple(values)) for model in models]


def go(path: Path, chosen: Tuned, launcher: Computed, retry: bool = False) -> int:
    """Begin the sweep, or take it up as the next driver does."""
    folder = SweepFolder(path / "sweep")
    folder.path.mkdir(exist_ok=True)
    manifest = Manifest([], "", ["trainer.test=true", "seed=3"], {}, {}, LOSS, tuning=COMPARE | {"chosen": {}})
    if folder.manifest.exists():
        manifest.jobs = folder.read().jobs
    composed = run.plan(manifest, chosen, launcher, (), run.reconcile(folder, manifest))
    try:
        return run.drive(folder, manifest, chosen, launcher, composed, (), retry)
    except Killed:
        return -9


def found(path: Path) -> Manifest:
    return SweepFolder(path / "sweep").read()


def test_each_variant_is_tried_alike_then_run_at_its_own_best_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = Computed(tmp_path)
    assert go(tmp_path, Tuned(variants("a", "b"), KEY, ("5", "6"), 1000), launcher) == 0
    trials = [f"model={model} lr={lr} seed=1000 test=false" for model in "ab" for lr in LRS]
    finals = [f"test=true model={m} lr={lr} seed={s}" for m, lr in (("a", "0.002"), ("b", "0.004")) for s in (5, 6)]
    assert launcher.started == trials + finals
    printed = capsys.readouterr().out.splitlines()
    assert "model=a: optimizer.lr=0.002, best of 3 by validation/loss 1" in printed
    assert "warning: model=b: the largest optimizer.lr that was tried is its best" in "\n".join(printed)
    assert not [line for line in printed if "warning: model=a" in line]
    assert printed[-1] == f"sweep: {tmp_path / 'sweep'}"
    assert "[0] finished after 0:00  validation/loss 1.693  (1 of 10 over)" in printed
    assert stages(SweepFolder(tmp_path / "sweep"), found(tmp_path)) == [
        "trials: 6 of 6 over, of 2 of 2 variants all",
        "runs at the best values: 4 of 4 over",
        "test data: looked at by 4 of 4, once each",
    ]


@pytest.mark.parametrize("ended", range(10))
def test_it_goes_on_wherever_its_driver_was_killed(ended: int, tmp_path: Path) -> None:
    def chosen() -> Tuned:
        return Tuned(variants("a", "b"), KEY, ("5", "6"), 1000)

    first, second = Computed(tmp_path, kill_at=ended), Computed(tmp_path)
    assert go(tmp_path, chosen(), first) == -9
    assert go(tmp_path, chosen(), second) == 0
    once = Computed(tmp_path)
    (tmp_path / "once").mkdir()
    go(tmp_path / "once", chosen(), once)
    assert first.started[:ended] + second.started == once.started
    assert [job.varied for job in found(tmp_path).jobs] == [job.varied for job in found(tmp_path / "once").jobs]


def test_a_failed_trial_is_not_chosen_and_a_variant_without_any_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(words: dict[str, str]) -> tuple[int, dict[str, Any]]:
        if words["model"] == "b" or words[KEY] == "0.002":
            return 1, {"status": "failed", "error": "nan", "best": {"validation/loss": 0.1}}
        return computed(words)

    launcher = Computed(tmp_path, end)
    assert go(tmp_path, Tuned(variants("a", "b"), KEY, ("5",), 1000), launcher) == 1
    chosen = found(tmp_path).tuning or {}
    assert chosen["chosen"]["model=a"]["value"] in ("0.001", "0.004")
    assert chosen["chosen"]["model=b"] == {"value": None, "tried": 3, "ended": 0}
    assert "model=b: none of its 3 trials has ended with a finite validation/loss" in capsys.readouterr().out
    assert [job.variant for job in found(tmp_path).jobs if job.stage == FINAL] == ["model=a"]

    again = Computed(tmp_path)
    assert go(tmp_path, Tuned(variants("a", "b"), KEY, ("5",), 1000), again) == 1, "what failed stays so"
    assert again.started == []
    assert go(tmp_path, Tuned(variants("a", "b"), KEY, ("5",), 1000), again, retry=True) == 0
    assert again.started[-2:] == ["test=true model=a lr=0.002 seed=5", "test=true model=b lr=0.004 seed=5"]
    jobs = found(tmp_path).jobs
    assert [job.value for job in jobs if job.replaced] == [launcher.started[-1].partition("lr=")[2].partition(" ")[0]]


def test_a_better_value_replaces_the_runs_at_the_former_one(tmp_path: Path) -> None:
    def chosen(values: Sequence[str], seeds: Sequence[str] = ("5",)) -> Tuned:
        return Tuned(variants("c", values=values), KEY, seeds, 1000)

    assert go(tmp_path, chosen(LRS), Computed(tmp_path)) == 0
    wider = Computed(tmp_path)
    assert go(tmp_path, chosen([*LRS, "0.008"], ("5", "6")), wider) == 0
    own = "model=c lr=0.008 seed"
    assert wider.started == [f"{own}=1000 test=false", f"test=true {own}=5", f"test=true {own}=6"]
    manifest = found(tmp_path)
    assert [(job.value, job.replaced) for job in manifest.jobs if job.stage == FINAL] == [
        ("0.004", True),
        ("0.008", False),
        ("0.008", False),
    ]
    assert (manifest.tuning or {})["chosen"]["model=c"]["edge"] == "largest"
    narrow = Computed(tmp_path)
    assert go(tmp_path, chosen(LRS), narrow) == 0
    assert narrow.started == []
    assert [job.value for job in found(tmp_path).counting if job.stage == FINAL] == ["0.004"]
    assert [job.value for job in found(tmp_path).counting if job.stage == TUNING] == [*LRS]


def test_a_sweep_that_is_stopped_between_its_stages_has_not_finished(tmp_path: Path) -> None:
    asked = Tuned(variants("a"), KEY, ("5",), 1000)
    folder, manifest = SweepFolder(tmp_path), Manifest([], "", [], {}, {}, LOSS, tuning=COMPARE | {"chosen": {}})
    run.plan(manifest, asked, Computed(tmp_path), (), [])
    asked.open(folder, manifest)
    assert asked.has_more()
    for job in manifest.jobs:
        job.status = "finished"
        folder.run(job.number).path.mkdir()
        words = dict(word.split("=", 1) for word in job.overrides)
        folder.run(job.number).summary.write_text(json.dumps(computed(words)[1]))
    asked.tell(2, "finished", 1.0)
    assert asked.has_more(), "its runs at the best value are not known yet"
    job = asked.job(3, [])
    assert job is not None
    manifest.jobs.append(job)
    assert not asked.has_more()


def test_values_lie_around_the_variants_own() -> None:
    assert around(KEY, 3e-3, 5, 2.0) == ["0.00075", "0.0015", "0.003", "0.006", "0.012"]
    assert around(KEY, 3e-3, 4, 2.0) == ["0.0015", "0.003", "0.006", "0.012"]
    assert around("data.batch_size", 32, 3, 2.0) == ["16", "32", "64"]
    assert set(around(KEY, 7e-4, 4, 3.0)) < set(around(KEY, 7e-4, 7, 3.0)), "more trials keep those of fewer"
    with pytest.raises(BadInput, match=r"around 2 by factors of 2 are not 5; type them: model\.n_layers=a,b,c"):
        around("model.n_layers", 2, 5, 2.0)
    assert spaced(Interval(KEY, 1e-4, 1e-2, True, False), 3) == ["0.0001", "0.001", "0.01"]
    assert spaced(Interval("x", 0.0, 1.0, False, False), 5) == ["0", "0.25", "0.5", "0.75", "1"]
    assert spaced(Interval("n", 1, 3, False, True), 7) == ["1", "2", "3"]
    assert (edge("0.001", LRS), edge("0.004", LRS), edge("0.002", LRS)) == ("smallest", "largest", None)
    assert edge("adamw", ("adamw", "muon")) is None


def chosen_from(*words: str, kind: str = "grid", **compare: object) -> Tuned:
    """As typed, where every variant's own learning rate is 0.01, but that of `model=b`."""

    def config_of(overrides: list[str]) -> dict[str, Any]:
        own = {"lr": 0.02 if "model=b" in overrides else 0.01, "weight_decay": 0.0, "betas": [0.9, 0.98]}
        return {"seed": 7, "optimizer": own, "traceback": False}

    fixed, swept = split(words)
    settings = {"sampler": kind, "file": None} | ({"n_trials": 3} if kind == "tpe" else {})
    return tuned(COMPARE | compare, settings, swept, fixed, config_of)


def test_what_is_typed_says_variants_values_and_seeds() -> None:
    plain = chosen_from("model=a,b", "seed=0,1")
    assert plain.variants == (
        Untuned(("model=a",), ("0.005", "0.01", "0.02")),
        Untuned(("model=b",), ("0.01", "0.02", "0.04")),
    )
    assert (plain.key, plain.seeds, plain.seed) == (KEY, ("0", "1"), 1000)
    assert chosen_from("seed=3").seeds == ("3",)
    assert chosen_from().seeds == ("7",)
    assert chosen_from().variants == (Untuned((), ("0.005", "0.01", "0.02")),)
    assert chosen_from("model=a,b", f"{KEY}=1,2").variants[1].values == ("1", "2")
    assert chosen_from("model/norm=layer,rms", tune="model/norm").variants == (Untuned((), ("layer", "rms")),)
    ranged = chosen_from("model=a,b", f"{KEY}=tag(log,interval(1e-4,1e-2))", trials=5)
    assert ranged.variants[0].values == ("0.0001", "0.000316228", "0.001", "0.00316228", "0.01")


@pytest.mark.parametrize(
    ("words", "compare", "message"),
    [
        ((), {"tune": "optimizer.rl"}, r"compare\.tune=optimizer\.rl: no such key \(did you mean 'optimizer\.lr'\?\)"),
        ((), {"tune": "optimizer.weight_decay"}, r"around 0\.0 there are no values to try; type them"),
        ((), {"tune": "optimizer.betas"}, r"around \[0\.9, 0\.98\] there are no values"),
        ((), {"tune": "model/norm"}, r"a choice of parts has no values around it; type some: model/norm=a,b"),
        ((), {"tune": "traceback"}, r"around false there are no values"),
        ((), {"tune": "seed"}, r"compare\.tune=seed is no key to be tuned"),
        ((), {"tune": 3}, r"compare\.tune=3 is no key to be tuned"),
        ((), {"trials": 1}, r"compare\.trials=1 is no whole number of at least 2"),
        ((), {"trials": 2.5}, r"compare\.trials=2\.5 is no whole number"),
        ((), {"factor": 1}, r"compare\.factor=1 is no number above 1"),
        ((), {"factor": math.inf}, r"compare\.factor=inf is no number above 1"),
        ((), {"seed": -1}, r"compare\.seed=-1 is no whole number of at least 0"),
        (("seed=0,1000",), {}, r"compare\.seed=1000 is a seed of the runs that are compared, too"),
        (("seed=interval(0,9)",), {}, r"seed: a range has no end of seeds"),
        (("model=interval(0,9)",), {}, r"model=interval\(0,9\): a range has no end of values"),
        ((f"{KEY}=choice(0.1)",), {}, r"as it is has one value, 0\.1; set compare\.trials to 2 or more, or type"),
        ((), {"kind": "random"}, r"compare\.tune=optimizer\.lr is a search already; leave hydra/sweeper=random out"),
        ((), {"kind": "tpe"}, r"leave hydra/sweeper=optuna out"),
    ],
)
def test_what_does_not_fit_is_refused(words: Sequence[str], compare: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        chosen_from(*words, **compare)


def test_a_line_of_a_list_says_around_which_value_it_is_tried(tmp_path: Path) -> None:
    file = tmp_path / "jobs.txt"

    def listed(text: str, *more: str) -> Tuned:
        file.write_text(text)
        fixed, swept = split(["seed=0,1", *more])

        def config_of(words: list[str]) -> dict[str, Any]:
            return {"optimizer": {"lr": 0.1 if f"{KEY}=0.1" in words else 8.0}}

        return tuned(COMPARE | {"trials": 3}, {"sampler": "list", "file": str(file)}, swept, fixed, config_of)

    assert listed(f"model=a\nmodel=b n=2 {KEY}=0.1\n").variants == (
        Untuned(("model=a",), ("4", "8", "16")),
        Untuned(("model=b", "n=2"), ("0.05", "0.1", "0.2")),
    )
    with pytest.raises(BadInput, match=rf"{KEY}=0.1 in a line of hydra\.sweeper\.file: compare"):
        listed(f"model=a\nmodel=b {KEY}=0.1\n", f"{KEY}=1,2")
    with pytest.raises(BadInput, match=r"seed=3 in a line of hydra\.sweeper\.file: compare"):
        listed("model=a\nmodel=b seed=3\n")
    with pytest.raises(BadInput, match=f"two lines differ in {KEY} alone"):
        listed(f"model=b {KEY}=8\nmodel=b {KEY}=0.1\n")


def test_a_comparison_is_widened_by_trials_seeds_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "config_of", lambda words: {"seed": 7, "optimizer": {"lr": 0.01}})

    def widened(widen: Sequence[str], trials: int = 0) -> tuple[Tuned, Manifest]:
        typed = ["model=a,b", "seed=0,1", f"compare.tune={KEY}"]
        manifest = Manifest(typed, "", [], {"sampler": "grid"}, {}, LOSS, tuning=COMPARE | {"chosen": {}})
        for number, (stage, model, seed) in enumerate([(TUNING, "a", 1000), (TUNING, "b", 1000), (FINAL, "a", 0)]):
            varied = [f"model={model}", f"{KEY}=0.01", f"seed={seed}"]
            manifest.jobs.append(Job(number, varied, varied, stage=stage, variant=f"model={model}", value="0.01"))
        found = run.widened(manifest, widen, trials)
        assert isinstance(found, Tuned)
        return found, manifest

    own = ("0.005", "0.01", "0.02")
    found, manifest = widened([], 2)
    assert found.variants[1].values == ("0.0025", *own, "0.04")
    assert manifest.tuning == COMPARE | {"chosen": {}, "trials": 5}
    found, manifest = widened(["seed=2,3"])
    assert (found.seeds, found.variants[0].values) == (("0", "1", "2", "3"), own)
    assert [variant.name for variant in found.variants] == ["model=a", "model=b"]
    found, manifest = widened(["model=c"])
    assert [variant.name for variant in found.variants] == ["model=a", "model=b", "model=c"]
    found, manifest = widened([f"{KEY}=0.1"])
    assert {variant.values for variant in found.variants} == {("0.01", "0.1")}
    with pytest.raises(BadInput, match="sed does not vary in this sweep"):
        widened(["sed=3"])


def test_one_run_compares_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"compare.tune={KEY}"]) == 2
    assert capsys.readouterr().err == f"error: compare.tune={KEY}: one run compares nothing; add -m\n"
    assert main(["-m", "compare.trails=3", "seed=0,1"]) == 2
    assert "compare.trails: no such key (did you mean 'compare.trials'?)" in capsys.readouterr().err
