import json
from pathlib import Path

import pytest
import yaml

from triform.commands import main
from triform.run.errors import BadInput
from triform.sweeps.manifest import Job, Manifest, SweepFolder
from triform.sweeps.wandb import definition


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    """A sweep that nobody drives: one job has finished, one failed, one was left by its driver, one waits."""
    found = SweepFolder(tmp_path / "dates-abc123")
    jobs = [Job(n, [f"seed={n}"], ["model.d_model=16", f"seed={n}"], "waiting") for n in range(4)]
    states = [("finished", 1.5), ("failed", None), ("running", 2.5)]
    for job, (status, best) in zip(jobs, states, strict=False):
        job.status, job.attempts = status, 1
        run = found.run(job.number)
        run.path.mkdir(parents=True)
        run.config.write_text("{}")
        run.summary.write_text(
            json.dumps(
                {"status": status, "steps": 5, "total_steps": 10, "seconds": 2.0}
                | ({"best": {"validation/loss": best}} if best else {})
            )
        )
    jobs[1].error, jobs[1].where = "ValueError: no", "a.py:3"
    typed = ["model.d_model=16", "seed=0,1,2,3", "hydra.launcher.jobs=2"]
    sweeper = {"sampler": "grid", "metric": None}
    launcher = {"launcher": "local", "jobs": 2, "per_gpu": 1}
    monitor = {"name": "validation/loss", "mode": "min"}
    found.write(Manifest(typed, "abc123", ["model.d_model=16"], sweeper, launcher, monitor, jobs))
    return found


def test_status_shows_every_job(folder: SweepFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "status", str(folder.path / "1")]) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()[1:5]]
    assert [row[:3] for row in rows] == [
        ["0", "seed=0", "finished"],
        ["2", "seed=2", "running"],
        ["1", "seed=1", "failed"],
        ["3", "seed=3", "waiting"],
    ]
    assert "[2] was left by its driver at step 5/10" in printed
    assert "run 1 with seed=1: ValueError: no (a.py:3)" in printed
    assert f"repeat it: triform rerun {folder.path}/1" in printed
    assert "1 waiting, 1 running, 1 finished, 1 failed; nobody drives it" in printed


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["sweep", "statsu", "."], "did you mean 'status'?"),
        (["sweep", "status", "nowhere"], "nowhere: no such sweep"),
        (["sweep", "status", "."], "is no sweep's folder"),
        (["sweep", "retry", "dates-abc123", "seed=4"], "only extend takes values"),
        (["sweep", "extend", "dates-abc123"], "nothing to add"),
        (["sweep", "extend", "dates-abc123", "--trials", "3"], "this sweep is none"),
        (["sweep", "extend", "dates-abc123", "lr=3"], "lr does not vary in this sweep; seed do"),
        (["sweep", "resume", "dates-abc123", "--launcher", "slrm"], "did you mean 'slurm'?"),
        (["sweep", "resume", "dates-abc123", "--jobs", "few"], "hydra.launcher.jobs=few is no whole number"),
        (["sweep", "wandb", "model.d_model=16"], "nothing varies"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    fragment: str,
    folder: SweepFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder.path.parent)
    before = folder.manifest.read_text()
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert fragment in printed.err
    assert folder.manifest.read_text() == before


def test_a_sweep_as_weights_and_biases_defines_one(folder: SweepFolder) -> None:
    made = yaml.safe_load(definition(str(folder.path), []))
    assert made == {
        "program": "train.py",
        "method": "grid",
        "metric": {"name": "validation/loss", "goal": "minimize"},
        "parameters": {"seed": {"values": [0, 1, 2, 3]}},
        "command": ["${env}", "${interpreter}", "${program}", "model.d_model=16", "${args_no_hyphens}"],
    }


def test_ranges_as_weights_and_biases_names_them(folder: SweepFolder) -> None:
    manifest = folder.read()
    manifest.typed = [
        *(
            "optimizer.lr=tag(log,interval(1e-4,1e-2))",
            "model.n_layers=int(interval(2,8))",
            "model.dropout=interval(0,0.5)",
        ),
        *("model/norm=layer,rms", "hydra/sweeper=random"),
    ]
    manifest.sweeper = {"sampler": "random", "n_jobs": 7, "seed": 0}
    folder.write(manifest)
    made = yaml.safe_load(definition(str(folder.path), []))
    assert (made["method"], made["run_cap"]) == ("random", 7)
    assert isinstance(made["parameters"]["model.n_layers"]["max"], int)
    assert made["parameters"] == {
        "optimizer.lr": {"distribution": "log_uniform_values", "min": 1e-4, "max": 1e-2},
        "model.n_layers": {"distribution": "int_uniform", "min": 2, "max": 8},
        "model.dropout": {"distribution": "uniform", "min": 0.0, "max": 0.5},
        "model/norm": {"values": ["layer", "rms"]},
    }


def test_what_follows_from_trials_is_no_sweep_of_weights_and_biases() -> None:
    with pytest.raises(BadInput, match=r"^compare\.tune=optimizer\.lr: Weights & Biases has no runs that follow"):
        definition("seed=0,1", ["compare.tune=optimizer.lr"])
