"""`triform submit`: one run as a job of SLURM, whose programs answer from here."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.run.tiny import TINY, triform
from triform.commands import main
from triform.run.folder import RunFolder, write_whole
from triform.sweeps import sbatch


class Cluster:
    """A queue of jobs with ids from 31 on."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.scripts: list[str] = []
        self.answers = True

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        if command[0] == "squeue":
            out = "".join(f"{id} PENDING\n" for id in self.waiting)
            return subprocess.CompletedProcess(command, int(not self.answers), out, "" if self.answers else "no route")
        assert command[:2] == ("sbatch", "--parsable")
        self.scripts.append(Path(command[2]).read_text())
        self.waiting.append(str(30 + len(self.scripts)))
        return subprocess.CompletedProcess(command, 0, f"{self.waiting[-1]};main\n", "")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    found = Cluster()
    monkeypatch.setattr(sbatch, "call", found.call)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.chdir(tmp_path)
    return found


WORDS = (*TINY, "trainer=fsdp_tp", "trainer.devices=4", "trainer.num_nodes=2", "hydra.launcher.hours=3", "name=big")


def submit(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[str], RunFolder]:
    assert main(["submit", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    return lines, RunFolder(Path(lines[-1].removeprefix("run: ")))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["submit", *words]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    return error


def test_a_run_is_made_and_submitted(cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines, folder = submit(capsys, *WORDS, 'hydra.launcher.options=["--account=lab"]')
    assert lines[0] == "job 31: 2 machines with 4 GPUs each, 3 hours at a time"
    assert lines[1] == f"watch: squeue --jobs=31; tail -F {folder.path}/slurm.txt"
    assert lines[2] == f"end:   scancel 31, which saves a checkpoint; go on: triform submit {folder.path}"
    assert folder.path.parent == tmp_path / "outputs" / "big"
    script = (folder.path / "slurm.sbatch").read_text()
    assert script == cluster.scripts[0]
    for line in (
        *("#SBATCH --job-name=triform-big", "#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=4", "#SBATCH --time=180"),
        *("#SBATCH --gpus-per-node=4", "#SBATCH --account=lab", f"#SBATCH --output={folder.path}/slurm.txt"),
    ):
        assert line in script.splitlines()
    assert "--array" not in script
    assert f"resume {folder.path} \n" in script
    config = folder.read_config()["trainer"]
    assert (config["devices"], config["num_nodes"], config["accelerator"]) == (4, 2, "auto"), "as it will run there"
    typed = yaml.safe_load(folder.overrides.read_text())
    assert not [word for word in typed if "hydra" in word]
    assert "trainer.devices=4" in typed
    assert (folder.path / "tokenizer").is_dir()


def test_nothing_is_submitted_twice(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    _, folder = submit(capsys, *WORDS)
    again = (*WORDS, "hydra.launcher.hours=5")  # the same run, asked for in another way
    for words in (again, (str(folder.path),)):
        assert f"{folder.path} is in the queue already, as job 31" in refused(capsys, *words)
    cluster.answers = False
    assert "squeue: no route: nobody knows whether this run is in the queue" in refused(capsys, *again)
    cluster.answers, cluster.waiting = True, []
    lines, same = submit(capsys, *again)
    assert same == folder
    assert lines[0] == "job 32, goes on with its run: 2 machines with 4 GPUs each, 5 hours at a time"
    cluster.waiting = []
    lines, same = submit(capsys, str(folder.path), "hydra.launcher.partition=day")
    assert same == folder
    assert lines[0].endswith("5 hours at a time"), "as it was submitted before"
    assert "#SBATCH --partition=day" in cluster.scripts[2]
    cluster.waiting = []
    for status, goes_on in (("preempted", True), ("failed", False), ("finished", False)):
        write_whole(folder.summary, json.dumps({"status": status}))
        _, other = submit(capsys, *WORDS)
        assert (other == folder) == goes_on
        if not goes_on:
            shutil.rmtree(other.path)
        cluster.waiting = []
    assert "has finished; with a change: triform rerun" in refused(capsys, str(folder.path))


def test_a_dry_run_prints_the_script_alone(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["submit", "--dry-run", *TINY]) == 0
    script = capsys.readouterr().out
    assert script.startswith("#!/bin/bash\n#SBATCH --job-name=triform-dates\n")
    assert f"#SBATCH --output={tmp_path}/outputs/dates/" in script
    assert not cluster.scripts
    assert not list(tmp_path.iterdir())
    assert "there is no sbatch here" in refused(capsys, *TINY)
    assert not list(tmp_path.iterdir())


def test_a_run_may_be_prepared_for_another_scheduler(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    lines, folder = submit(capsys, "--prepare", *TINY, "trainer.accelerator=cpu")
    assert lines == [f"run: {folder.path}"]
    assert not cluster.scripts
    assert (folder.path / "tokenizer").is_dir()
    assert not (folder.path / "slurm.sbatch").exists()
    done = triform(tmp_path, "resume", str(folder.path))
    assert done.returncode == 0, done.stderr
    assert folder.read_summary()["status"] == "finished"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-m", "seed=1"], "a sweep submits its own jobs"),
        (["seed=0,1"], "several values of a key make a sweep"),
        (["outputs/no/such"], "outputs/no/such: no such run"),
        (["somewhere", "seed=4"], "a run with changes is triform rerun's"),
        (["modle=decoder"], "modle: no such key"),
        (["hydra.launcher.huors=3"], "hydra.launcher.huors: no such key"),
        (["hydra.launcher.hours=0.01"], "the last 2 minutes of a job are for saving"),
        (["hydra.launcher.template=none.sbatch"], "hydra.launcher.template=none.sbatch cannot be read"),
        (["trainer=fsdp_tp", "trainer.tensor_parallel=3"], "tensor_parallel=3 does not divide the 4 ranks"),
        (["trainer=fsdp_tp", "trainer.tensor_parallel=4", *TINY], "n_heads=2 is not a multiple"),
        (["trainer.devices=auto"], "trainer.devices=auto: a job on a cluster is given what it asks for"),
    ],
)
def test_what_cannot_work_is_refused(
    words: list[str], message: str, cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert message in refused(capsys, *words)
    assert not cluster.scripts
    assert not (tmp_path / "outputs").exists()
