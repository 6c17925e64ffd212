"""Jobs on this machine: who gets which device, how many at once, and that ranks of a job are of that job alone."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training.runs import make
from triform.run.errors import BadInput
from triform.run.folder import RunFolder
from triform.sweeps import local
from triform.sweeps.launcher import Ended, Ready
from triform.sweeps.local import PRELOAD, Local
from triform.sweeps.manifest import SweepFolder
from triform.sweeps.run import launcher_of


def ready(folder: RunFolder, number: int, devices: int = 1, device: str = "cpu") -> Ready:
    return Ready(number, folder.path, device, devices, 1, ())


def note(path: Path, trust: tuple[str, ...]) -> int:
    """Write down what a rank is given, and stay until told to end."""
    names = ("RANK", "WORLD_SIZE", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    file = path / f"given{os.environ.get('RANK', '')}"
    file.with_suffix(".new").write_text(json.dumps({name: os.environ.get(name) for name in names}))
    file.with_suffix(".new").rename(file)
    deadline = time.monotonic() + 60
    while not (path / "end").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return 0


def given(path: Path, rank: str = "") -> dict[str, str | None]:
    deadline = time.monotonic() + 60
    while not (path / f"given{rank}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    found: dict[str, str | None] = json.loads((path / f"given{rank}").read_text())
    return found


def until(launcher: Local, count: int) -> list[Ended]:
    ended: list[Ended] = []
    deadline = time.monotonic() + 120
    while len(ended) < count and time.monotonic() < deadline:
        ended += launcher.poll(0.1)
    return ended


def test_each_job_has_gpus_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "run_rank", note)
    folders = [RunFolder(tmp_path / str(n)) for n in range(3)]
    for folder in folders:
        folder.path.mkdir()
    launcher = Local(None, 1, ["4", "5", "7"])
    assert launcher.room(2, 3) == 1
    launcher.submit([ready(folders[0], 0, 2, "cuda")])
    assert launcher.room(2, 2) == 0, "one GPU is left"
    assert launcher.room(1, 2) == 1
    launcher.submit([ready(folders[1], 1, 1, "cuda")])
    assert launcher.room(1, 1) == 0
    first, second = given(folders[0].path, "0"), given(folders[0].path, "1")
    assert first["CUDA_VISIBLE_DEVICES"] == second["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert (first["WORLD_SIZE"], first["MASTER_PORT"]) == ("2", second["MASTER_PORT"])
    assert given(folders[1].path)["CUDA_VISIBLE_DEVICES"] == "7"
    assert given(folders[1].path)["WORLD_SIZE"] is None
    (folders[0].path / "end").touch()
    assert until(launcher, 1) == [Ended("0", 0, None)]
    assert launcher.room(2, 1) == 1, "its GPUs are free again"
    launcher.cancel("1")
    assert until(launcher, 1) == [Ended("1", 75, None)]


def test_two_jobs_may_share_a_gpu_but_no_job_gets_one_twice() -> None:
    launcher = Local(None, 2, ["0", "1"])
    assert launcher.room(2, 9) == 1
    launcher._free = ["0", "0"]
    assert launcher.room(2, 9) == 0
    assert launcher.room(1, 9) == 1


def test_cores_are_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(local, "run_rank", note)
    monkeypatch.setattr(local, "_free_memory", lambda: 2**40)
    folders = [RunFolder(tmp_path / str(n)) for n in range(2)]
    for folder in folders:
        folder.path.mkdir()
        (folder.path / "end").touch()
    launcher = Local(None, 1, [])
    launcher.cores = 12
    assert launcher.room(2, 2) == 1
    launcher.submit([ready(folders[0], 0, 2)])
    assert given(folders[0].path, "1")["OMP_NUM_THREADS"] == "3", "two jobs of two ranks"
    until(launcher, 1)
    launcher.room(1, 1)
    launcher.submit([ready(folders[1], 1)])
    assert given(folders[1].path)["OMP_NUM_THREADS"] == "12", "the last job has them all"
    until(launcher, 1)


def test_memory_and_a_number_limit_the_jobs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_free_memory", lambda: 5 * 2**30)
    launcher = Local(None, 1, [])
    launcher.cores = 64
    assert launcher.room(1, 99) == 1
    assert launcher._at_once == 2
    monkeypatch.setattr(local, "_free_memory", lambda: 0)
    assert launcher.room(1, 99) == 1, "one always runs"
    launcher = Local(3, 1, [])
    launcher.room(1, 99)
    assert launcher._at_once == 3
    for jobs, per_gpu in ((0, 1), (1, 0)):
        with pytest.raises(BadInput, match=r"hydra\.launcher\.(jobs|per_gpu)=.* is no number of jobs"):
            Local(jobs, per_gpu, [])
    for value in ("many", True, 1.5):
        with pytest.raises(BadInput, match=r"hydra\.launcher\.jobs=.* is no whole number"):
            launcher_of({"launcher": "local", "jobs": value, "per_gpu": 1}, SweepFolder(Path("x")), adaptive=False)


def test_several_machines_are_another_launchers() -> None:
    with pytest.raises(BadInput, match=r"trainer\.num_nodes=2.*hydra/launcher=slurm"):
        Local(None, 1, []).shape({"trainer": {"num_nodes": 2}})


def test_jobs_of_two_ranks_run_once_each_and_beside_each_other(tmp_path: Path) -> None:
    """Each of them trains as it does alone: the ranks of one know nothing of the other's."""
    words = ("trainer.devices=2", "trainer.max_steps=3", "trainer.val_interval=3")
    folders = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        folders.append(make(tmp_path / str(number), "decoder", *words, f"seed={number}"))
    launcher = Local(2, 1, [])
    for number, folder in enumerate(folders):
        assert launcher.room(2, 2 - number) == 1
        launcher.submit([ready(folder, number, 2)])
    ended = until(launcher, 2)
    assert sorted(one.id for one in ended) == ["0", "1"]
    assert [one.code for one in ended] == [0, 0]
    for folder in folders:
        summary = folder.read_summary()
        assert (summary["status"], summary["steps"]) == ("finished", 3)
        assert folder.log(1).exists()
        assert "3 steps" in folder.log(0).read_text(), "what is said on standard error is in the log"
        assert json.loads(folder.environment.read_text())["threads"]["torch"] == 1
    assert folders[0].read_summary()["last"] != folders[1].read_summary()["last"]


def test_a_killed_rank_is_told_with_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "run_rank", note)
    launcher = Local(1, 1, [])
    launcher.room(1, 1)
    launcher.submit([ready(RunFolder(tmp_path), 3)])
    given(tmp_path)
    launcher._running["3"][0].ranks[0].kill()
    assert until(launcher, 1) == [Ended("3", 1, "rank 0 was ended by SIGKILL")]


def test_what_the_server_has_imported_is_garbage_in_no_job() -> None:
    """The collector would look through all of it in each job."""
    assert PRELOAD[-1] == "triform.sweeps.freeze", "nothing is imported after it"
    code = "import gc, json, triform.sweeps.freeze; print(gc.get_freeze_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 1000
