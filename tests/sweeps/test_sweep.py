"""Sweeps as a user starts them: from the command line, ended in every way, taken up again."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.run.tiny import start, train, triform
from triform.run.folder import RunFolder
from triform.run.rerun import changed
from triform.sweeps.manifest import SweepFolder, is_driven

SHORT = ("trainer.max_steps=2", "trainer.val_interval=1")


def only(tmp_path: Path) -> SweepFolder:
    """The sweep below `tmp_path`."""
    found = list((tmp_path / "outputs" / "sweeps").iterdir())
    assert len(found) == 1
    return SweepFolder(found[0])


def states(folder: SweepFolder) -> dict[str, str]:
    return {" ".join(job.varied): job.status for job in folder.read().jobs}


def wait_for_step(folder: SweepFolder, number: int, step: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 150
    while folder.run(number).read_summary().get("steps", 0) < step:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def wait_for_sweep(tmp_path: Path, process: subprocess.Popen[str]) -> SweepFolder:
    deadline = time.monotonic() + 150
    while not list((tmp_path / "outputs" / "sweeps").glob("*/manifest.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return only(tmp_path)


def test_a_grid_outlives_a_failure_and_is_taken_up_widened_and_retried(tmp_path: Path) -> None:
    words = ("-m", "name=grid", *SHORT, "seed=0,1", "hydra.launcher.jobs=2")
    done = train(tmp_path, *words, "optimizer.lr=1e-3,1e30")
    assert done.returncode == 1
    folder = only(tmp_path)
    assert folder.path.name.startswith("grid-")
    failed = {"seed=0 optimizer.lr=1e+30", "seed=1 optimizer.lr=1e+30"}
    finished = {"seed=0 optimizer.lr=0.001", "seed=1 optimizer.lr=0.001"}
    assert states(folder) == {**dict.fromkeys(failed, "failed"), **dict.fromkeys(finished, "finished")}
    for job in folder.read().jobs:
        run = folder.run(job.number)
        config = run.read_config()
        assert [f"seed={config['seed']}", f"optimizer.lr={config['optimizer']['lr']}"] == job.varied
        assert yaml.safe_load(run.overrides.read_text()) == job.overrides
    lines = done.stdout.splitlines()
    assert lines[0] == f"sweep: 4 runs in {folder.path}"
    assert lines[-1] == f"sweep: {folder.path}"
    assert sum("] finished after" in line for line in lines) == 2
    assert sum("] failed after" in line for line in lines) == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: run ")]
    assert len(errors) == 2
    assert "with seed=0 optimizer.lr=1e+30: FloatingPointError: the " in errors[0]
    assert "tasks/task.py:" in errors[0]
    assert f"repeat it: triform rerun {folder.path}/1" in errors[0]
    assert [entry.name for entry in tmp_path.iterdir()] == ["outputs"], "no multirun.yaml, no log"

    before = {run: (folder.path / run / "summary.json").stat().st_mtime_ns for run in "0123"}
    wider = train(tmp_path, *words, "optimizer.lr=1e-3,2e-3,1e30")
    assert wider.returncode == 1, "what had failed stays so"
    assert only(tmp_path).path == folder.path
    assert wider.stdout.splitlines()[0] == f"sweep: 6 runs in {folder.path}; goes on: 2 waiting, 2 finished, 2 failed"
    new = {4: "seed=0 optimizer.lr=0.002", 5: "seed=1 optimizer.lr=0.002"}
    assert {job.number: " ".join(job.varied) for job in folder.read().jobs[4:]} == new
    assert {run: (folder.path / run / "summary.json").stat().st_mtime_ns for run in "0123"} == before

    again = triform(tmp_path, "sweep", "retry", str(folder.path), "--jobs", "1")
    assert again.returncode == 1
    assert {job.number: job.attempts for job in folder.read().jobs} == {0: 1, 1: 2, 2: 1, 3: 2, 4: 1, 5: 1}


def test_a_killed_driver_loses_no_more_than_running_steps(tmp_path: Path) -> None:
    """Its jobs save what they have; the same command goes on with them, and does what waits."""
    steps = ("trainer.max_steps=400", "trainer.val_interval=400", "trainer.save_interval=400", "trainer.log_interval=1")
    words = ("-m", "name=kill", "seed=0,1,2", "hydra.launcher.jobs=2", *steps)
    process = start(tmp_path, *words)
    folder = wait_for_sweep(tmp_path, process)
    for number in (0, 1):
        wait_for_step(folder, number, 5, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert {job.status for job in folder.read().jobs} == {"running", "waiting"}
    done = train(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "[0] started: seed=0 (attempt 2, from its last checkpoint)" in done.stdout, done.stdout
    for number in (0, 1):
        log = folder.run(number).log(0).read_text()
        assert "going on from" in log
        stopped = int(log.partition("stopped at step ")[2].partition(";")[0])
        assert stopped >= 5
        rows = folder.run(number).metrics.read_text().splitlines()[1:]
        assert {int(row.split(",")[0]) for row in rows} == set(range(1, 401)), "no step is missing"
    assert states(folder) == dict.fromkeys(["seed=0", "seed=1", "seed=2"], "finished")
    assert [job.attempts for job in folder.read().jobs] == [2, 2, 1]


def test_ctrl_c_stops_the_sweep_and_a_second_driver_is_refused(tmp_path: Path) -> None:
    words = (
        "-m",
        "name=stop",
        "seed=0,1",
        "hydra.launcher.jobs=1",
        "trainer.max_steps=100000",
        "trainer.log_interval=1",
    )
    process = start(tmp_path, *words)
    folder = wait_for_sweep(tmp_path, process)
    wait_for_step(folder, 0, 3, process)
    assert is_driven(folder)
    refused = triform(tmp_path, "sweep", "resume", str(folder.path))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "another process is driving this sweep" in refused.stderr
    seen = triform(tmp_path, "sweep", "status", str(folder.path))
    assert seen.returncode == 0
    assert "[0] step " in seen.stdout
    assert "1 waiting, 1 running; is driven now" in seen.stdout
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=100)
    assert process.returncode == 75
    assert states(folder) == {"seed=0": "preempted", "seed=1": "waiting"}
    assert (folder.run(0).checkpoints / "last.ckpt").exists()
    assert f"go on with the same command, or: triform sweep resume {folder.path}" in printed


def test_bad_input_starts_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    done = train(tmp_path, "-m", "name=grid", "model.d_ff=24,32", "model.n_heads=2,3")
    assert (done.returncode, done.stdout) == (2, "")
    assert "n_heads=3" in done.stderr
    assert "(in the run with model.d_ff=24 model.n_heads=3)" in done.stderr
    assert not (tmp_path / "outputs" / "sweeps").exists()


def test_a_job_repeats_from_its_own_record(tmp_path: Path) -> None:
    """With the folder of configs that it was given, and what its recipe had to drop."""
    (tmp_path / "own" / "scheduler").mkdir(parents=True)
    (tmp_path / "own" / "scheduler" / "mine.yaml").write_text("defaults: [constant]\n")
    words = ("-m", "--config-dir", "own", "scheduler=mine", "seed=0,1", "hydra.sweeper.name=own", "trainer.max_steps=1")
    done = train(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    folder = SweepFolder(tmp_path / "outputs" / "sweeps" / "own")
    run = RunFolder(folder.path / "1")
    config, typed = changed(run, ["trainer.max_steps=2"])
    assert f"--config-dir={tmp_path / 'own'}" in typed
    assert (config["seed"], config["trainer"]["max_steps"]) == (1, 2)
    assert config["scheduler"] == run.read_config()["scheduler"]

    other = train(tmp_path, "-m", "seed=0,1", "hydra.sweeper.name=own", "trainer.max_steps=3")
    assert (other.returncode, other.stdout) == (2, "")
    assert "is another sweep" in other.stderr
    more = triform(tmp_path, "sweep", "extend", str(folder.path), "seed=1,2")
    assert more.returncode == 0, more.stderr
    assert states(folder) == dict.fromkeys(["seed=0", "seed=1", "seed=2"], "finished")
    assert folder.run(2).read_config()["scheduler"] == config["scheduler"]
    wrong = triform(tmp_path, "sweep", "extend", str(folder.path), "sed=3")
    assert (wrong.returncode, "sed does not vary in this sweep (did you mean 'seed'?)" in wrong.stderr) == (2, True)


@pytest.mark.parametrize("values", ["range(2)", "0,1"])
def test_each_job_brings_the_recipe_of_its_data(values: str, tmp_path: Path) -> None:
    from triform.run.help import conf_dir
    from triform.sweeps.compose import config_of
    from triform.sweeps.samplers import sampler, split

    (tmp_path / "a.txt").write_text("the cat sat on the mat\n" * 40)
    own = tmp_path / "conf" / "data"
    own.mkdir(parents=True)
    (own / "cat.yaml").write_text(f"defaults: [text]\ntrain_files: {tmp_path}/a.txt\n")
    (tmp_path / "conf" / "experiment").mkdir()
    recipe = (conf_dir() / "experiment" / "text.yaml").read_text().replace("/data: text", "/data: cat")
    (tmp_path / "conf" / "experiment" / "cat.yaml").write_text(recipe)
    fixed, swept = split([f"seed={values}", "data=cat,dates", "model.d_model=16", "model.n_heads=2", "tokenizer=char"])
    grid = sampler({"sampler": "grid"}, swept)
    grid.begin([])
    found: list[Any] = []
    while (varied := grid.ask(len(found))) is not None:
        config = config_of([*fixed, *varied, f"--config-dir={tmp_path / 'conf'}"])
        found.append((config["seed"], config["model"]["_target_"].rpartition(".")[2]))
    assert found == [(0, "Decoder"), (0, "EncoderDecoder"), (1, "Decoder"), (1, "EncoderDecoder")]


def test_a_random_search_is_repeatable_and_grows(tmp_path: Path) -> None:
    words = ("-m", "hydra/sweeper=random", "optimizer.lr=tag(log,interval(1e-4,1e-2))", "name=search", *SHORT)
    done = train(tmp_path, *words, "hydra.sweeper.n_jobs=2", "hydra.sweeper.metric=accuracy", "hydra.sweeper.mode=max")
    assert done.returncode == 0, done.stderr
    folder = only(tmp_path)
    first = [job.varied for job in folder.read().jobs]
    assert folder.read().monitor == {"name": "validation/accuracy", "mode": "max"}
    more = triform(tmp_path, "sweep", "extend", str(folder.path), "--trials", "1")
    assert more.returncode == 0, more.stderr
    assert [job.varied for job in folder.read().jobs][:2] == first
    assert len(folder.read().jobs) == 3
    found = json.loads(folder.manifest.read_text())
    assert found["sweeper"]["n_jobs"] == 3
    assert all(os.path.isdir(folder.path / str(job["number"])) for job in found["jobs"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_variant_is_tuned_then_run_and_judged_on_test_data(tmp_path: Path) -> None:
    """Real runs: trials leave test data alone, the others look at it, and nothing runs twice."""
    words = ("-m", "name=tuned", *SHORT, "optimizer.lr=1e-4,1e-2", "compare.tune=optimizer.lr", "seed=3,4")
    done = train(tmp_path, *words, "hydra.launcher.jobs=2")
    assert done.returncode == 0, done.stderr
    folder = only(tmp_path)
    jobs = folder.read().jobs
    assert [(job.stage, job.value) for job in jobs] == [
        ("tuning", "0.0001"),
        ("tuning", "0.01"),
        ("final", "0.01"),
        ("final", "0.01"),
    ]
    for job in jobs:
        split = {name.partition("/")[0] for name in folder.run(job.number).read_summary()["final"]}
        assert split == {"validation" if job.stage == "tuning" else "test"}
    assert "test data: looked at by 2 of 2, once each" in done.stdout
    assert (folder.path / "plots" / "trials.png").exists()
    assert "by test/loss" in (folder.path / "report.html").read_text()
    again = triform(tmp_path, "sweep", "resume", str(folder.path))
    assert again.returncode == 0, again.stderr
    assert "] started:" not in again.stdout, "all of it has been done"
    assert "as it is: optimizer.lr=0.01, best of 2 by validation/loss" in again.stdout
