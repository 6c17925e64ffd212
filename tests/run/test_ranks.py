import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from triform.run import ranks
from triform.run.ranks import Rendezvous, is_one_of_several, launch, machines, start_all


def write_environment(folder: Path) -> int:
    rank = os.environ["LOCAL_RANK"]
    assert os.environ.get("RANK", rank) == rank
    names = ("WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "OMP_NUM_THREADS", "SECRET_OF_THE_PARENT")
    assert "SLURM_NTASKS" not in os.environ
    (folder / rank).write_text(" ".join(os.environ.get(name, "") for name in names))
    return 0


def fail_on_the_second(folder: Path) -> int:
    if os.environ["LOCAL_RANK"] == "1":
        return 3
    time.sleep(60)  # waits for a partner that will not come
    return 0


def die_on_the_first(folder: Path) -> int:
    if os.environ["LOCAL_RANK"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    return 0


def take_time_on_the_first(folder: Path) -> int:
    if os.environ["LOCAL_RANK"] == "0":
        time.sleep(2)  # as a report does
    return 0


def note_signals(folder: Path) -> int:
    got: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    (folder / f"ready{os.environ['LOCAL_RANK']}").touch()
    deadline = time.monotonic() + 30
    while not got and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    return 75 if got == [signal.SIGTERM] else 1


def test_ranks_have_what_lightning_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SECRET_OF_THE_PARENT", "x")
    monkeypatch.setenv("RANK", "0")  # of whoever exported it
    monkeypatch.setenv("SLURM_NTASKS", "2")  # of sbatch
    assert launch(2, write_environment, (tmp_path,)) == 0
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["2 0 127.0.0.1 1 x"] * 2


def test_processes_share_nothing_but_the_parents_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server they are forked from is older than this variable."""
    monkeypatch.setenv("SECRET_OF_THE_PARENT", "later")
    assert start_all([{"LOCAL_RANK": "7"}], write_environment, (tmp_path,)) == 0
    assert (tmp_path / "7").read_text().endswith("later")


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    start = time.monotonic()
    assert launch(2, fail_on_the_second, (tmp_path,)) == 3
    assert time.monotonic() - start < 30


def test_a_rank_that_is_killed_ends_the_others(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    killed: dict[int, str] = {}
    assert launch(2, die_on_the_first, (tmp_path,), killed.setdefault) == 1
    assert time.monotonic() - start < 30
    assert killed == {0: "SIGKILL"}, "the others, which are ended after it, are no cause"
    assert "rank 0 was ended by SIGKILL" in capfd.readouterr().err


def test_the_first_rank_may_take_its_time_when_all_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "GRACE_AFTER_FAILURE", 0.1)
    assert not hasattr(ranks, "GRACE"), "no other deadline"
    assert launch(2, take_time_on_the_first, (tmp_path,)) == 0


BATCH = {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NNODES": "1"}
STEP = {**BATCH, "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "1"}


@pytest.mark.parametrize(
    ("variables", "several"),
    [({}, False), (BATCH, False), (STEP, True), ({"TORCHELASTIC_RUN_ID": "x"}, True), ({"RANK": "0"}, False)],
    ids=["alone", "sbatch", "srun", "torchrun", "inherited"],
)
def test_who_is_one_of_several_ranks(variables: dict[str, str], several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_one_of_several() is several


def test_ranks_wait_as_long_as_the_first_one_prepares(monkeypatch: pytest.MonkeyPatch) -> None:
    port = ranks._free_port()
    started = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    for name, value in (started | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}).items():
        monkeypatch.setenv(name, value)
    meeting = Rendezvous()
    meeting.store.set_timeout(timedelta(seconds=0.1))
    of_the_first = TCPStore("127.0.0.1", port, is_master=False)
    first = threading.Timer(0.4, of_the_first.set, (meeting.key, "outputs/x"))
    first.start()
    assert meeting.told() == "outputs/x"
    first.join()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, (4, 2)),
        ({"WORLD_SIZE": "16", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, (8, 2)),
        ({"WORLD_SIZE": "16", "SLURM_NNODES": "2"}, (8, 2)),
        (
            {"WORLD_SIZE": "4", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NNODES": "2"},
            (4, 1),
        ),
    ],
)
def test_ranks_on_each_machine(variables: dict[str, str], expected: tuple[int, int]) -> None:
    assert machines(variables) == expected


def test_machines_with_unequal_numbers_of_ranks_are_refused() -> None:
    for counts in ("4,3", ""):
        with pytest.raises(ValueError, match=r"7 tasks on 2 machines.*--ntasks-per-node"):
            machines({"WORLD_SIZE": "7", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": counts})


def test_a_signal_reaches_every_rank_once(tmp_path: Path) -> None:
    def send() -> None:
        while len(list(tmp_path.glob("ready*"))) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=send)
    thread.start()
    assert launch(2, note_signals, (tmp_path,)) == 75
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def wait_to_be_ended(folder: Path) -> int:
    (folder / "ready").touch()
    time.sleep(60)
    return 0


def test_a_process_that_a_passed_on_signal_ends_is_preempted(tmp_path: Path) -> None:
    def stop() -> None:
        while not (tmp_path / "ready").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    told: list[object] = []
    code = start_all([{}], wait_to_be_ended, (tmp_path,), lambda rank, name: told.append(name), told.append)
    assert (code, told) == (75, [signal.SIGTERM])
