import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import HashStore

from triform.training.meeting import Meeting
from triform.training.saving import (
    BEST,
    DAMAGED,
    LAST,
    PREVIOUS,
    AtomicCheckpointIO,
    NotSaved,
    copied,
    fault,
    link,
    n_bytes,
    newest,
    no_room,
    read_checkpoint,
    set_aside,
)
from triform.training.sealed import write_sealed

KINDS = pytest.mark.parametrize("asynchronous", [False, True])


def content(value: float, size: int = 10) -> dict[str, Any]:
    return {"state_dict": {"w": torch.full((size,), value)}, "progress": {"step": 3}}


def write(path: Path, value: float, size: int = 10, asynchronous: bool = False, best: bool = False) -> None:
    with AtomicCheckpointIO(asynchronous) as saving:
        saving.best = best
        saving.save_checkpoint(content(value, size), path)


def value(path: Path) -> float:
    return float(read_checkpoint(path)["state_dict"]["w"][0])


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@KINDS
def test_a_file_that_grows_too_large_leaves_the_previous_checkpoint(tmp_path: Path, asynchronous: bool) -> None:
    write(tmp_path / LAST, 1.0)
    with (
        files_of_at_most(50_000),
        pytest.raises(NotSaved, match=r"File too large\): it needs 4,000,000 bytes, [0-9,]+"),
    ):
        write(tmp_path / LAST, 2.0, 1_000_000, asynchronous)
    assert [file.name for file in tmp_path.iterdir()] == [LAST]
    assert value(tmp_path / LAST) == 1.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting takes rights that this user has not")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@KINDS
def test_a_full_disk_is_told_with_the_bytes_that_are_needed_and_free(small_disk: Path, asynchronous: bool) -> None:
    write(small_disk / LAST, 1.0)
    write(small_disk / LAST, 2.0)
    before = {file.name: file.read_bytes() for file in small_disk.iterdir()}
    with pytest.raises(NotSaved) as refusal:
        write(small_disk / LAST, 3.0, 30_000, asynchronous)
    assert "last.ckpt could not be written (No space left on device): it needs 120,000 bytes, " in str(refusal.value)
    free = int(str(refusal.value).split("bytes, ")[1].split(" ")[0].replace(",", ""))
    assert 40_000 < free < 65_536  # once the half of a file is gone
    assert {file.name: file.read_bytes() for file in small_disk.iterdir()} == before
    write(small_disk / LAST, 4.0)
    assert (value(small_disk / LAST), value(small_disk / PREVIOUS)) == (4.0, 2.0)


@KINDS
def test_a_read_only_disk_keeps_what_it_has(small_disk: Path, asynchronous: bool) -> None:
    write(small_disk / LAST, 1.0)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(NotSaved, match=r"Read-only file system\): it needs 40 bytes"):
        write(small_disk / LAST, 2.0, asynchronous=asynchronous)
    assert value(newest(small_disk) or Path()) == 1.0


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_no_space_for_a_later_byte_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    """Where nothing can be mounted: the error of a sync, which is when a network's disk says that it is full."""
    write(tmp_path / LAST, 1.0)
    original, calls = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(28, "No space left on device")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotSaved, match=r"No space left on device.*triform resume"):
        write(tmp_path / LAST, 2.0)
    assert not list(tmp_path.glob(".*"))
    assert value(newest(tmp_path) or Path()) == (1.0 if nth < 3 else 2.0)


@KINDS
def test_what_was_last_becomes_previous_and_best_stays(tmp_path: Path, asynchronous: bool) -> None:
    for number in range(1, 5):
        write(tmp_path / LAST, float(number), asynchronous=asynchronous, best=number == 2)
    assert [value(tmp_path / name) for name in (BEST, PREVIOUS, LAST)] == [2.0, 3.0, 4.0]
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([LAST, BEST, PREVIOUS])


def test_files_are_linked_not_copied_and_copied_where_they_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / LAST, 1.0)
    link(tmp_path / LAST, tmp_path / BEST)
    assert (tmp_path / BEST).samefile(tmp_path / LAST)

    def refuse(*paths: Path) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    link(tmp_path / LAST, tmp_path / PREVIOUS)
    assert not (tmp_path / PREVIOUS).samefile(tmp_path / LAST)
    assert value(tmp_path / PREVIOUS) == 1.0


def damage(path: Path) -> None:
    """Flip a bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.unlink()
    path.write_bytes(data)


def test_the_newest_good_checkpoint_is_gone_on_from(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert newest(tmp_path) is None
    for number in range(1, 5):
        write(tmp_path / LAST, float(number), best=number == 2)
    for name, following in ((LAST, PREVIOUS), (PREVIOUS, BEST)):
        assert newest(tmp_path) == tmp_path / name
        damage(tmp_path / name)
        caplog.clear()
        assert newest(tmp_path) == tmp_path / following
        assert f"{tmp_path / name} cannot be read" in caplog.text
    damage(tmp_path / BEST)
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be read.*; or start anew with: triform rerun"):
        newest(tmp_path)


def test_a_checkpoint_that_one_rank_does_not_see_is_no_checkpoint(tmp_path: Path) -> None:
    """As where each machine has a disk of its own; going on from an older one without a word would lose steps."""
    store = HashStore()

    def meeting(rank: int) -> Meeting:
        one = Meeting(1, timedelta(seconds=30))
        one.ranks, one.rank, one._store = 2, rank, store
        return one

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    write(tmp_path / "first" / LAST, 1.0)
    with ThreadPoolExecutor(2) as pool:
        paths = (tmp_path / "first" / LAST, tmp_path / "second" / LAST)
        found = list(pool.map(fault, paths, (meeting(0), meeting(1))))
    assert all(one is not None and "is there on rank 0, not on rank 1" in one for one in found)


def test_a_damaged_one_never_takes_the_place_of_a_good_one(tmp_path: Path) -> None:
    write(tmp_path / LAST, 1.0)
    write(tmp_path / LAST, 2.0)
    damage(tmp_path / LAST)
    start = newest(tmp_path)
    assert start == tmp_path / PREVIOUS
    set_aside(tmp_path, start)
    write(tmp_path / LAST, 3.0)
    assert [value(tmp_path / name) for name in (PREVIOUS, LAST)] == [1.0, 3.0]
    assert (tmp_path / DAMAGED).exists()
    set_aside(tmp_path, tmp_path / LAST)
    assert value(tmp_path / LAST) == 3.0


@pytest.mark.parametrize("wrong", [{"w": torch.ones(2)}, {"state_dict": 3}])
def test_what_is_no_checkpoint_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    write_sealed(wrong, tmp_path / LAST)
    with pytest.raises(ValueError, match=r"last\.ckpt is no checkpoint: it holds no state_dict"):
        read_checkpoint(tmp_path / LAST)


def test_a_copy_shares_nothing_but_what_was_shared() -> None:
    shared = torch.arange(12.0).reshape(3, 4)
    given = {
        "a": shared,
        "b": [shared.T, (shared[1],)],
        "c": torch.nn.Parameter(torch.ones(2)),
        "d": {"e": 5, "f": None},
    }
    copy = copied(given)
    assert n_bytes(given) == n_bytes(copy) == 4 * (12 + 2)
    shared.zero_()
    assert torch.equal(copy["a"], torch.arange(12.0).reshape(3, 4))
    assert torch.equal(copy["b"][0], copy["a"].T)
    copy["a"][1, 2] = -1.0
    assert copy["b"][0][2, 1] == copy["b"][1][0][2] == -1.0
    assert copy["d"] == {"e": 5, "f": None}


@pytest.mark.parametrize(
    "given",
    [
        torch.tensor(2.5),
        torch.arange(6, dtype=torch.bfloat16),
        torch.arange(24.0)[5:17].view(3, 4).T,
        torch.arange(3.0).expand(4, 3),
        torch.empty(0, 7),
        nn.Parameter(torch.ones(2, 3)),
    ],
    ids=["one number", "bfloat16", "part, turned", "repeated", "nothing", "parameter"],
)
def test_no_copy_has_memory_of_what_is_trained(given: Tensor) -> None:
    before, strides = given.detach().clone(), given.stride()
    copy = copied({"a": given})["a"]
    given.untyped_storage().fill_(7)  # bytes
    assert torch.equal(copy, before)
    assert (copy.dtype, copy.stride(), copy.requires_grad) == (before.dtype, strides, False)
    assert not given.numel() or copy.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()


class Gate:
    """Holds a writer at its sync until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached, original = threading.Event(), threading.Event(), os.fsync

        def wait(descriptor: int) -> None:
            self.reached.set()
            assert self.opened.wait(30)
            original(descriptor)

        monkeypatch.setattr(os, "fsync", wait)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it changes meanwhile is not in the file, which is that of a writer that is waited for, byte by byte."""
    weights = content(1.0)
    write(tmp_path / "expected" / LAST, 1.0)
    gate = Gate(monkeypatch)
    with AtomicCheckpointIO(asynchronous=True) as saving:
        saving.save_checkpoint(weights, tmp_path / LAST)
        weights["state_dict"]["w"].fill_(2.0)
        assert gate.reached.wait(30)
        assert not (tmp_path / LAST).exists()
        gate.opened.set()
    assert (tmp_path / LAST).read_bytes() == (tmp_path / "expected" / LAST).read_bytes()


def test_one_is_written_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    with AtomicCheckpointIO(asynchronous=True) as saving:
        saving.save_checkpoint(content(1.0), tmp_path / LAST)
        second = threading.Thread(target=saving.save_checkpoint, args=(content(2.0), tmp_path / LAST))
        second.start()
        time.sleep(0.1)
        assert second.is_alive()
        assert len(list(tmp_path.glob(".*"))) == 1
        gate.opened.set()
        second.join(30)
    assert [value(tmp_path / name) for name in (PREVIOUS, LAST)] == [1.0, 2.0]


def test_a_failed_writer_is_told_of_at_the_next_save_and_at_the_end(tmp_path: Path) -> None:
    with files_of_at_most(50_000):
        saving = AtomicCheckpointIO(asynchronous=True)
        saving.save_checkpoint(content(1.0, 100_000), tmp_path / LAST)
        with pytest.raises(NotSaved, match="File too large"):
            saving.save_checkpoint(content(2.0), tmp_path / LAST)
        saving.save_checkpoint(content(3.0), tmp_path / LAST)
        saving.wait()
        with pytest.raises(NotSaved), saving:
            saving.save_checkpoint(content(4.0, 100_000), tmp_path / LAST)
        saving.save_checkpoint(content(5.0, 100_000), tmp_path / LAST)
        with pytest.raises(KeyError), saving:  # what failed first is what is told
            content(6.0)["nothing"]
    assert value(tmp_path / LAST) == 3.0


def test_a_disk_that_takes_nothing_is_told_whoever_wrote(tmp_path: Path) -> None:
    told = no_room(OSError(28, "No space left on device"), tmp_path)
    assert f"{tmp_path} cannot be written to (No space left on device), " in str(told)
    assert f"bytes are free; its checkpoints are kept; make room and go on with: triform resume {tmp_path}" in str(told)
    assert no_room(FileNotFoundError(2, "No such file"), tmp_path) is None
    assert no_room(ValueError("28"), tmp_path) is None
