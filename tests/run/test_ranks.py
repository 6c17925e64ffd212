import os
import signal
import threading
import time
from pathlib import Path

import pytest

from triform.run.ranks import launch, start_all


def write_environment(folder: Path) -> int:
    rank = os.environ["LOCAL_RANK"]
    names = ("WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "OMP_NUM_THREADS", "SECRET_OF_THE_PARENT")
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
    assert launch(2, die_on_the_first, (tmp_path,)) == 1
    assert time.monotonic() - start < 30
    assert "rank 0 was ended by SIGKILL" in capfd.readouterr().err


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
