"""Runs and sweeps on a real SLURM of two nodes, ended in every way that it has. Skipped where none answers."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.run.tiny import COMMAND, TINY, environment, start, train, triform
from tests.sweeps.test_sweep import only, states, wait_for_step, wait_for_sweep
from tests.training.runs import outcome
from triform.run.folder import RunFolder
from triform.run.help import conf_dir
from triform.sweeps.sbatch import queued
from triform.sweeps.slurm import Slurm
from triform.sweeps.submission import RECORD


def answers() -> bool:
    if shutil.which("sinfo") is None:
        return False
    return subprocess.run(["sinfo", "--noheader"], capture_output=True, timeout=30).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not answers(), reason="no SLURM answers here"),
]

LONG = ("trainer.max_steps=100000", "trainer.val_interval=100000", "trainer.save_interval=100000")
CLUSTER = ("-m", "hydra/launcher=slurm", "hydra.launcher.hours=0.2", "trainer.accelerator=cpu")


def slurm(*line: str) -> str:
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout


def until(true: Callable[[], bool], what: str, seconds: float = 150) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def state(job: str) -> str:
    """Of a job of one's own: the word of squeue; empty where it is in the queue no more."""
    return subprocess.run(
        ["squeue", "--noheader", "--array", "--format=%T", f"--jobs={job}"], capture_output=True, text=True
    ).stdout.strip()


def step(folder: RunFolder) -> int:
    return int(folder.read_summary().get("steps", 0))


def again_at_once(job: str, folder: RunFolder) -> None:
    """Wait until a job is back in the queue, with its run saved, and spare it SLURM's two minutes there."""
    until(lambda: state(job) in ("PENDING", ""), f"{job} is {state(job)}, not back in the queue")
    assert state(job), f"{job} has ended"
    assert folder.read_summary()["status"] == "preempted"
    time.sleep(8)  # slurmd takes a job that starts again sooner for the one that was ended
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")


def submitted(folder: Path, *words: str) -> tuple[str, RunFolder]:
    """`triform submit`, with the id of the job and the folder of its run."""
    done = triform(folder, "submit", *TINY, "trainer.accelerator=cpu", "hydra.launcher.hours=0.2", *words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    run = RunFolder(Path(lines[-1].removeprefix("run: ")))
    job = lines[0].split()[1].rstrip(":,")
    assert json.loads((run.path / RECORD).read_text())["job"] == job
    return job, run


def test_a_run_requeued_three_times_equals_the_run_never_stopped(tmp_path: Path) -> None:
    """On two nodes: by a signal, by SLURM's own requeue, by another signal."""
    words = ("trainer.num_nodes=2", "trainer.max_steps=240", "trainer.val_interval=60", "trainer.save_interval=60")
    words = (*words, "model.dropout=0.1", "logger=wandb", "logger.mode=offline")
    _, straight = submitted(tmp_path, "name=straight", *words)
    job, folder = submitted(tmp_path, "name=stopped", *words)
    refused = triform(tmp_path, "submit", str(folder.path))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"is in the queue already, as job {job}" in refused.stderr
    last = 0
    for stop in (
        ["scancel", "--signal=USR1", job],
        ["scontrol", "requeue", job],
        ["scancel", "--signal=TERM", job],
    ):
        until(lambda last=last: step(folder) > last + 5, f"no further than step {last}")
        slurm(*stop)
        again_at_once(job, folder)
        last = step(folder)
    until(lambda: not state(job), "the stopped run does not end", 300)
    until(lambda: straight.read_summary().get("status") == "finished", "the other run does not end", 300)
    assert folder.read_summary()["status"] == "finished"
    assert (folder.path / "slurm.txt").read_text().count("going on from") == 3
    found, expected = outcome(folder), outcome(straight)
    assert found.pop("rows") == expected.pop("rows")
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    ids = {path.name.rpartition("-")[2] for path in folder.path.glob("wandb/offline-run-*")}
    assert ids == {(folder.path / "wandb_id").read_text().strip()}
    again = triform(tmp_path, "submit", str(folder.path))
    assert again.returncode == 2
    assert "has finished" in again.stderr


def test_a_cancelled_run_is_saved_and_stays_out_of_the_queue(tmp_path: Path) -> None:
    job, folder = submitted(tmp_path, "name=one", *LONG)
    until(lambda: step(folder) > 5, "does not start")
    slurm("scancel", job)
    until(lambda: not state(job), "does not end")
    assert folder.read_summary()["status"] == "preempted"
    stopped = step(folder)
    time.sleep(3)
    assert not state(job)
    job, same = submitted(tmp_path, "name=one", *LONG)
    assert same == folder, "the same command goes on with it"
    until(lambda: step(folder) > stopped, "does not go on")
    slurm("scancel", job)
    until(lambda: not state(job), "does not end")


def test_an_array_whose_tasks_are_stopped_alone(tmp_path: Path) -> None:
    """One task goes back into the queue by itself, one is cancelled; the killed driver's successor finds both."""
    words = (*CLUSTER, "name=array", "seed=0,1,2", "trainer.max_steps=400", "trainer.val_interval=200")
    process = start(tmp_path, *words)
    folder = wait_for_sweep(tmp_path, process)
    for number in (0, 1):
        wait_for_step(folder, number, 5, process)
    array = folder.read().jobs[0].id.rpartition("_")[0]
    slurm("scancel", "--signal=USR1", f"{array}_0")
    slurm("scancel", f"{array}_1")
    again_at_once(f"{array}_0", folder.run(0))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = train(tmp_path, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert states(only(tmp_path)) == dict.fromkeys(["seed=0", "seed=1", "seed=2"], "finished")
    assert [job.attempts for job in folder.read().jobs] == [1, 2, 1], "the cancelled one alone was submitted again"
    for number in (0, 1):
        assert "going on from" in (folder.path / str(number) / "slurm.txt").read_text()


def sweep(folder: Path, *words: str) -> subprocess.Popen[str]:
    """`triform sweep WORDS`, not waited for."""
    line = (*COMMAND, "sweep", *words)
    return subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment()
    )


def test_a_sweep_is_retried_and_taken_up_by_its_folder(tmp_path: Path) -> None:
    """Jobs fail on nodes that are broken; resume leaves them so; retry is killed, and resume ends what it began."""
    broken = tmp_path / "broken"
    broken.touch()
    template = tmp_path / "own.sbatch"
    script = (conf_dir() / "hydra" / "launcher" / "slurm.sbatch").read_text()
    template.write_text(script.replace("{{options}}\n", f"{{{{options}}}}\ntest ! -e {broken} || exit 3\n"))
    words = (*CLUSTER, "name=again", "seed=0,1", "trainer.max_steps=120", f"hydra.launcher.template={template}")
    process = start(tmp_path, *words)
    _, error = process.communicate(timeout=600)
    assert process.returncode == 1, error
    folder = only(tmp_path)
    assert set(states(folder).values()) == {"failed"}
    broken.unlink()
    process = sweep(tmp_path, "resume", str(folder.path))
    process.communicate(timeout=600)
    assert process.returncode == 1
    assert [(job.status, job.attempts) for job in folder.read().jobs] == [("failed", 1)] * 2
    process = sweep(tmp_path, "retry", str(folder.path))
    wait_for_step(folder, 0, 3, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = sweep(tmp_path, "resume", str(folder.path))
    out, error = process.communicate(timeout=600)
    assert process.returncode == 0, out + error
    assert [(job.status, job.attempts) for job in folder.read().jobs] == [("finished", 2)] * 2


def test_variants_are_tuned_then_judged(tmp_path: Path) -> None:
    words = (*CLUSTER, "name=tuned", "optimizer.lr=1e-4,1e-2", "compare.tune=optimizer.lr", "seed=3,4")
    process = start(tmp_path, *words)
    out, error = process.communicate(timeout=800)
    assert process.returncode == 0, out + error
    jobs = only(tmp_path).read().jobs
    assert [(job.stage, job.value, job.attempts) for job in jobs] == [
        *(("tuning", "0.0001", 1), ("tuning", "0.01", 1), ("final", "0.01", 1), ("final", "0.01", 1))
    ]
    assert "test data: looked at by 2 of 2, once each" in out


def test_ctrl_c_may_cancel(tmp_path: Path) -> None:
    words = (*CLUSTER, "name=stop", "seed=0,1", *LONG, "hydra.launcher.cancel=true", "hydra.launcher.limit=1")
    process = start(tmp_path, *words)
    folder = wait_for_sweep(tmp_path, process)
    wait_for_step(folder, 0, 3, process)
    seen = triform(tmp_path, "sweep", "status", str(folder.path))
    assert "[0] step " in seen.stdout
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)
    assert process.returncode == 75
    launcher = Slurm.__new__(Slurm)
    launcher.sweep = folder.path
    assert queued(f"--name={launcher.name}") == set()
    assert folder.run(0).read_summary()["status"] == "preempted"
    assert [job.status for job in folder.read().jobs] == ["preempted", "preempted"]


def test_a_search_gives_running_jobs_up(tmp_path: Path) -> None:
    words = (*CLUSTER, "name=search", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=4", "hydra.launcher.limit=2")
    words = (*words, "hydra.sweeper.startup=1", "hydra.sweeper.warmup=1", "hydra.sweeper.sampler=random")
    words = (*words, "trainer.max_steps=120", "trainer.val_interval=6", "trainer.num_nodes=2")
    process = start(tmp_path, *words, "optimizer.lr=tag(log,interval(1e-7,1e-2))")
    out, error = process.communicate(timeout=800)
    assert process.returncode == 0, out + error
    folder = only(tmp_path)
    jobs = folder.read().jobs
    assert [job.attempts for job in jobs] == [1] * 4
    assert "pruned" in {job.status for job in jobs} <= {"finished", "pruned"}
    pruned = next(job for job in jobs if job.status == "pruned")
    assert step(folder.run(pruned.number)) < 120
    wider = triform(tmp_path, "sweep", "extend", str(folder.path), "--trials", "1")
    assert wider.returncode == 0, wider.stderr
    assert len(folder.read().jobs) == 5


def test_a_job_whose_program_does_not_start_is_reported_with_its_log(tmp_path: Path) -> None:
    template = tmp_path / "own.sbatch"
    template.write_text(
        "#!/bin/bash\n#SBATCH --nodes={{nodes}}\n#SBATCH --output={{log}}\n#SBATCH --job-name={{name}}\n{{options}}\n"
        "echo 'error: no module of that name'\nexit 3\n"
    )
    words = (*CLUSTER, "name=broken", "seed=0,1", f"hydra.launcher.template={template}")
    done = train(tmp_path, *words)
    assert done.returncode == 1
    folder = only(tmp_path)
    for number in (0, 1):
        assert f"no module of that name; see {folder.path}/{number}/slurm.txt" in done.stderr


def test_jobs_on_two_nodes_outlive_their_driver(tmp_path: Path) -> None:
    """Two ranks on two nodes in each job; the first driver is killed, the second finds its jobs again."""
    words = ("-m", "hydra/launcher=slurm", "hydra.launcher.limit=1", "hydra.launcher.hours=0.2", "name=nodes")
    words = (*words, "trainer.accelerator=cpu", "trainer.num_nodes=2", "trainer.max_steps=60", "seed=0,1")
    process = start(tmp_path, *words)
    folder = wait_for_sweep(tmp_path, process)
    wait_for_step(folder, 0, 2, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = train(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert states(only(tmp_path)) == {"seed=0": "finished", "seed=1": "finished"}
    assert [job.attempts for job in folder.read().jobs] == [1, 1], "nothing was submitted twice"
    assert folder.run(0).log(1).exists()
    assert (folder.path / "0" / "slurm.txt").stat().st_size
