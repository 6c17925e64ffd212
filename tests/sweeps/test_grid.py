import json
import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.callbacks import Callback

from tests.run.tiny import train
from tests.training.runs import make
from triform.data.prepare import prepare
from triform.data.sources.dates import Dates
from triform.data.tokenizers import Char
from triform.run.folder import RunFolder
from triform.run.parts import own_data
from triform.run.ranks import handling
from triform.run.rerun import changed
from triform.sweeps.grid import Job, claim, exit_code, run_all, settle


def test_a_grid_runs_every_combination_and_outlives_a_failure(tmp_path: Path) -> None:
    done = train(
        tmp_path,
        "-m",
        "name=grid",
        "trainer.max_steps=2",
        "seed=0,1",
        "optimizer.lr=1e-3,1e30",
        "trainer.val_interval=1",
    )
    assert done.returncode == 1
    parent = tmp_path / "outputs" / "sweeps" / "grid"
    assert sorted(folder.name for folder in parent.iterdir()) == ["0", "1", "2", "3"]
    seen = {}
    for folder in parent.iterdir():
        config = yaml.safe_load((folder / "config.yaml").read_text())
        status = json.loads((folder / "summary.json").read_text())["status"]
        seen[config["seed"], config["optimizer"]["lr"]] = status
        assert f"seed={config['seed']}" in yaml.safe_load((folder / "overrides.yaml").read_text())
    assert seen == {(0, 1e-3): "finished", (0, 1e30): "failed", (1, 1e-3): "finished", (1, 1e30): "failed"}
    lines = done.stdout.splitlines()
    assert lines[0] == f"sweep: 4 runs in {parent}"
    assert lines[-1] == f"sweep: {parent}"
    assert sum("finished after" in line for line in lines) == 2
    assert sum("failed after" in line for line in lines) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["outputs"], "no multirun.yaml, no log"


def test_a_grid_with_bad_input_in_its_last_job_starts_none(tmp_path: Path) -> None:
    done = train(tmp_path, "-m", "name=grid", "model.d_ff=24,32", "model.n_heads=2,3")
    assert (done.returncode, done.stdout) == (2, "")
    assert "n_heads=3" in done.stderr
    assert "(in the run with model.n_heads=3 model.d_ff=24)" in done.stderr
    assert not (tmp_path / "outputs" / "sweeps").exists()


@pytest.mark.parametrize("values", ["range(2)", "0,1"])
def test_each_job_brings_the_recipe_of_its_data(values: str, tmp_path: Path) -> None:
    from hydra import compose, initialize_config_dir

    from triform.run.help import conf_dir
    from triform.sweeps.grid import plan

    (tmp_path / "a.txt").write_text("the cat sat on the mat\n" * 40)
    words = [
        *(f"seed={values}", "data=cat,dates", "model.d_model=16", "model.n_heads=2", "data.seq_len=12"),
        *(f"paths.outputs={tmp_path}/outputs", "tokenizer=char"),
    ]
    own = tmp_path / "conf" / "data"
    own.mkdir(parents=True)
    (own / "cat.yaml").write_text(f"defaults: [text]\ntrain_files: {tmp_path}/a.txt\n")
    (tmp_path / "conf" / "experiment").mkdir()
    recipe = (conf_dir() / "experiment" / "text.yaml").read_text().replace("/data: text", "/data: cat")
    (tmp_path / "conf" / "experiment" / "cat.yaml").write_text(recipe)
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose(
            "train",
            [f"hydra.searchpath=[file://{tmp_path}/conf]", "hydra.mode=MULTIRUN", *words[2:]],
            return_hydra_config=True,
        )
    config.hydra.job.config_name = "train"
    jobs = plan(config, words)
    assert [(job.config["seed"], job.config["model"]["_target_"].rpartition(".")[2]) for job in jobs] == [
        (0, "Decoder"),
        (0, "EncoderDecoder"),
        (1, "Decoder"),
        (1, "EncoderDecoder"),
    ]
    assert [job.folder.path.name for job in jobs] == ["0", "1", "2", "3"]
    assert not (tmp_path / "outputs" / "sweeps").exists(), "planning makes no folder"


def test_a_job_repeats_from_its_own_record(tmp_path: Path) -> None:
    """With the folder of configs that it was given, and what its recipe had to drop."""
    (tmp_path / "own" / "scheduler").mkdir(parents=True)
    (tmp_path / "own" / "scheduler" / "mine.yaml").write_text("defaults: [constant]\n")
    words = ("-m", "--config-dir", "own", "scheduler=mine", "seed=0,1", "name=own", "trainer.max_steps=1")
    done = train(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    folder = RunFolder(tmp_path / "outputs" / "sweeps" / "own" / "1")
    config, typed = changed(folder, ["trainer.max_steps=2"])
    assert f"--config-dir={tmp_path / 'own'}" in typed
    assert (config["seed"], config["trainer"]["max_steps"]) == (1, 2)
    assert config["scheduler"] == folder.read_config()["scheduler"]


def test_no_two_sweeps_get_the_same_folder(tmp_path: Path) -> None:
    prepared = prepare(Dates(9, 2, 2, 0), Char(), tmp_path / "cache", progress=False)
    sweeps = [[Job([], "", {}, prepared, RunFolder(tmp_path / "x")) for _ in range(20)] for _ in range(3)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda jobs: claim(jobs, tmp_path / "parent"), sweeps))
    claimed = [job.folder.path for jobs in sweeps for job in jobs]
    assert len(set(claimed)) == 60
    assert all(path.is_dir() for path in claimed)


class StopTheSweep(Callback):
    """Sends the sweep a signal at a job's first step, and gives it time to arrive."""

    def __init__(self, signal: str) -> None:
        self.signal = signal

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        parent = multiprocessing.parent_process()
        if batch_idx == 0 and parent is not None and parent.pid is not None:
            os.kill(parent.pid, signal.Signals[self.signal])
            time.sleep(0.5)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_the_job_and_the_sweep(name: str, tmp_path: Path) -> None:
    callback = f"+callbacks.stop={{_target_: {__name__}.StopTheSweep, signal: {name}}}"
    known = make(tmp_path, "decoder", "trainer.max_steps=40", "trust=[tests]", callback)
    config = {**known.read_config(), "trust": ["tests"]}
    prepared = own_data(known, config)
    jobs = [Job([], f"seed={n}", config, prepared, RunFolder(tmp_path / "sweep" / str(n))) for n in range(3)]
    asked: list[int] = []
    with handling(lambda number, frame: asked.append(number)):
        run_all(jobs, tmp_path / "sweep", asked)
    assert asked == [signal.Signals[name]]
    assert [job.status for job in jobs] == ["preempted", "not run", "not run"]
    assert jobs[0].summary()["status"] == "preempted"
    assert (jobs[0].folder.checkpoints / "last.ckpt").exists()
    assert exit_code(jobs) == 75


def test_a_signal_between_jobs_starts_no_further_one(tmp_path: Path) -> None:
    prepared = prepare(Dates(9, 2, 2, 0), Char(), tmp_path / "cache", progress=False)
    jobs = [Job([], "", {}, prepared, RunFolder(tmp_path / "x" / "0"))]
    run_all(jobs, tmp_path, [signal.SIGTERM])
    assert (jobs[0].status, exit_code(jobs)) == ("not run", 75)


@pytest.mark.parametrize(
    ("status", "code", "asked", "word"),
    [
        ("finished", 0, False, "finished"),
        ("finished", 75, True, "finished"),  # the signal came after its end
        ("running", 0, False, "failed"),
        ("running", 0, True, "preempted"),
        ("running", 1, True, "preempted"),
        ("failed", 1, True, "failed"),
        ("failed", 0, False, "failed"),
        (None, 0, False, "failed"),
    ],
)
def test_a_job_ends_as_its_summary_says(status: str | None, code: int, asked: bool, word: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.config.write_text("{}")
    if status is not None:
        folder.summary.write_text(json.dumps({"status": status}))
    job = Job([], "", {}, prepare(Dates(9, 2, 2, 0), Char(), tmp_path / "cache", progress=False), folder)
    job.code = settle(job, code, asked)
    assert job.status == word
    assert job.summary()["status"] == word
