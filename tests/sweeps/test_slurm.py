"""Jobs on a cluster: what is submitted, and what the answers mean; a real SLURM is in test_cluster.py."""

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from triform.run.errors import BadInput
from triform.sweeps import sbatch, slurm
from triform.sweeps.launcher import Ended, Ready
from triform.sweeps.sbatch import Batch, last_words, outcome
from triform.sweeps.slurm import Slurm


class Cluster:
    """Answers as the programs of SLURM do."""

    def __init__(self) -> None:
        self.queue = ""
        self.job = ""
        self.called: list[tuple[str, ...]] = []

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        self.called.append(command)
        out = {"sbatch": "17;main\n", "squeue": self.queue, "scontrol": self.job}.get(command[0], "")
        failed = command[0] == "squeue" and self.queue == "down"
        return subprocess.CompletedProcess(command, int(failed), out, "")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    for module in (sbatch, slurm):
        monkeypatch.setattr(module, "call", found.run)
    monkeypatch.setattr(slurm, "QUERY_SECONDS", 0.0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    return found


SETTINGS: dict[str, Any] = {
    "template": None,
    "limit": 3,
    "hours": 1.5,
    "partition": None,
    "cpus_per_rank": None,
    "options": [],
    "cancel": False,
}


def made(path: Path, array: bool = True, **changed: Any) -> Slurm:
    settings = SETTINGS | changed
    return Slurm(path, array, Batch.of(settings), settings["limit"], settings["cancel"])


def ready(path: Path, *numbers: int, device: str = "cuda") -> list[Ready]:
    return [Ready(number, path / str(number), device, 4, 2, ("mine",)) for number in numbers]


def test_a_grid_is_one_array(tmp_path: Path, cluster: Cluster) -> None:
    launcher = made(tmp_path, partition="big", options=["--mem=64G"], cpus_per_rank=6)
    assert launcher.room(4, 50) == 50
    assert launcher.submit(ready(tmp_path, 0, 1, 2, 5)) == ["17_0", "17_1", "17_2", "17_5"]
    script = (tmp_path / "slurm-0-5.sbatch").read_text()
    for line in (
        *(f"#SBATCH --job-name={launcher.name}", "#SBATCH --array=0-2,5%3", "#SBATCH --nodes=2"),
        *("#SBATCH --ntasks-per-node=4", "#SBATCH --gpus-per-node=4", "#SBATCH --cpus-per-task=6"),
        *("#SBATCH --time=90", "#SBATCH --partition=big", "#SBATCH --mem=64G"),
    ):
        assert line in script.splitlines()
    assert f"resume {tmp_path}/$SLURM_ARRAY_TASK_ID --trust mine" in script
    assert f"#SBATCH --output={tmp_path}/%a/slurm.txt" in script.splitlines()
    assert "{{" not in script
    assert [command[0] for command in cluster.called] == ["sbatch"]


def test_a_search_is_jobs_up_to_the_limit(tmp_path: Path, cluster: Cluster) -> None:
    launcher = made(tmp_path, array=False)
    assert launcher.room(4, 50) == 3
    launcher.submit(ready(tmp_path, 0, 1, device="cpu"))
    assert "--gpus" not in (tmp_path / "slurm-0-1.sbatch").read_text()
    assert launcher.room(4, 50) == 1


def test_a_job_has_ended_when_the_queue_knows_it_no_more(tmp_path: Path, cluster: Cluster) -> None:
    launcher = made(tmp_path)
    launcher.submit(ready(tmp_path, 0, 1))
    cluster.queue = "17_0 RUNNING\n17_1 PENDING\n"
    assert launcher.poll(0) == []
    cluster.queue = "down"
    assert launcher.poll(0) == [], "nobody knows"
    cluster.queue, cluster.job = "17_1 RUNNING\n", "JobId=18 JobState=COMPLETED ExitCode=0:0"
    assert launcher.poll(0) == [Ended("17_0", 0, None)]
    cluster.queue, cluster.job = "17_1 COMPLETED\n", "JobId=19 JobState=OUT_OF_MEMORY ExitCode=0:125"
    (end,) = launcher.poll(0)
    assert (end.id, end.code) == ("17_1", 1)
    assert end.cause == f"SLURM ended it: OUT_OF_MEMORY; see {tmp_path}/1/slurm.txt"


def test_what_a_run_could_not_say_itself_is_in_its_jobs_log(tmp_path: Path, cluster: Cluster) -> None:
    launcher = made(tmp_path)
    launcher.submit(ready(tmp_path, 0, 1))
    for number in (0, 1):
        (tmp_path / str(number)).mkdir()
    (tmp_path / "0" / "slurm.txt").write_text("error: an earlier one\nerror: no torch\nsrun: error: task 0: exit 1\n")
    (tmp_path / "1" / "summary.json").write_text('{"status": "failed", "error": "its own"}')
    cluster.job = "JobState=FAILED ExitCode=1:0"
    assert launcher.poll(0) == [
        Ended("17_0", 1, f"no torch; see {tmp_path}/0/slurm.txt"),
        Ended("17_1", 1, None),
    ]
    (tmp_path / "log").write_text("\nslurmstepd: error: killed\n")
    assert last_words(tmp_path / "log") == "slurmstepd: error: killed"
    assert last_words(tmp_path / "nowhere") == ""


@pytest.mark.parametrize(
    ("job", "end"),
    [
        ("JobState=COMPLETED ExitCode=0:0", (0, None)),
        ("JobState=FAILED ExitCode=2:0", (2, None)),
        ("JobState=FAILED ExitCode=75:0", (75, None)),
        ("JobState=FAILED ExitCode=143:0", (75, None)),
        ("JobState=CANCELLED ExitCode=0:15", (75, None)),
        ("JobState=TIMEOUT ExitCode=0:0", (75, None)),
        ("JobState=NODE_FAIL ExitCode=0:0", (75, None)),
        ("", (1, None)),
    ],
)
def test_what_a_state_means(job: str, end: tuple[int, str | None], cluster: Cluster) -> None:
    cluster.job = job
    assert outcome("17_3") == end


def test_a_later_driver_finds_the_jobs(tmp_path: Path, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.queue = "17_0 RUNNING\n17_1 PENDING\n17_2 COMPLETED\n"
    launcher = made(tmp_path)
    assert launcher.attach([1, 2, 3]) == {1: "17_1"}
    assert launcher.signal(signal.SIGINT) is False, "they go on"
    assert f"scancel --name={launcher.name}" in capsys.readouterr().out
    assert made(tmp_path / ".." / tmp_path.name).name != launcher.name, "of the same name elsewhere"
    launcher = made(tmp_path, cancel=True)
    launcher.attach([0])
    assert launcher.signal(signal.SIGINT) is True
    assert cluster.called[-1] == ("scancel", "17_0")
    cluster.queue = "down"
    with pytest.raises(BadInput, match=r"squeue: .*nobody knows"):
        launcher.attach([0])


def test_a_template_of_the_users(tmp_path: Path, cluster: Cluster) -> None:
    file = tmp_path / "my.sbatch"
    file.write_text("#!/bin/bash\nmodule load cuda\n{{nmae}}\n")
    with pytest.raises(BadInput, match=r"\{\{nmae\}\} stands for nothing \(did you mean 'name'"):
        made(tmp_path, template=str(file))
    file.write_text("#!/bin/bash\nmodule load cuda # ${HOME}\n{{run}}\n")
    made(tmp_path, template=str(file)).submit(ready(tmp_path, 4))
    script = (tmp_path / "slurm-4-4.sbatch").read_text()
    assert script == f"#!/bin/bash\nmodule load cuda # ${{HOME}}\n{tmp_path}/$SLURM_ARRAY_TASK_ID\n"
    with pytest.raises(BadInput, match=r"template=.*nothing\.sbatch cannot be read"):
        made(tmp_path, template=str(tmp_path / "nothing.sbatch"))
    for wrong, message in (
        ({"limit": 0}, r"hydra\.launcher\.limit=0 is below 1"),
        ({"cpus_per_rank": 0}, r"hydra\.launcher\.cpus_per_rank=0 is below 1"),
        ({"hours": 0.05}, r"hydra\.launcher\.hours=0\.05: the last 2 minutes of a job are for saving"),
        ({"hours": "long"}, r"hydra\.launcher\.hours=long is no number"),
    ):
        with pytest.raises(BadInput, match=message):
            made(tmp_path, **wrong)


def test_a_folder_of_any_name_is_one_word_of_the_script(tmp_path: Path, cluster: Cluster) -> None:
    path = tmp_path / "50% of it"
    path.mkdir()
    made(path).submit(ready(path, 0))
    script = (path / "slurm-0-0.sbatch").read_text()
    assert f"#SBATCH --output='{tmp_path}/50%% of it/%a/slurm.txt'" in script.splitlines()
    assert f"resume '{path}'/$SLURM_ARRAY_TASK_ID" in script


def test_what_cannot_be_asked_for_is_refused(tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = made(tmp_path)
    trainer = {"devices": 4, "num_nodes": 2, "accelerator": "auto", "strategy": "fsdp", "tensor_parallel": 2}
    assert launcher.shape({"trainer": trainer}) == ("cuda", 4, 2)
    assert launcher.shape({"trainer": {**trainer, "devices": 1, "accelerator": "cpu"}}) == ("cpu", 1, 2)
    with pytest.raises(BadInput, match=r"trainer\.devices=auto"):
        launcher.shape({"trainer": {**trainer, "devices": "auto"}})
    with pytest.raises(BadInput, match=r"tensor_parallel=3 does not divide the 8 ranks"):
        launcher.shape({"trainer": {**trainer, "tensor_parallel": 3}})
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BadInput, match="there is no sbatch here"):
        made(tmp_path)
