import resource
import signal
from pathlib import Path

import pytest
import torch

from triform.training.checkpoints import BEST, LAST, AtomicCheckpointIO, link, newest, read_checkpoint


def write(path: Path, value: float, size: int = 10) -> None:
    content = {"state_dict": {"w": torch.full((size,), value)}, "progress": {"step": 3}}
    AtomicCheckpointIO().save_checkpoint(content, path)


def test_a_disk_that_fills_up_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / LAST, 1.0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises((OSError, RuntimeError)):
            write(tmp_path / LAST, 2.0, size=1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [file.name for file in tmp_path.iterdir()] == [LAST]
    assert read_checkpoint(tmp_path / LAST)["state_dict"]["w"][0] == 1.0


def test_best_keeps_its_content_when_last_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / LAST, 1.0)
    link(tmp_path / LAST, tmp_path / BEST)
    write(tmp_path / LAST, 2.0)
    assert read_checkpoint(tmp_path / BEST)["state_dict"]["w"][0] == 1.0
    assert read_checkpoint(tmp_path / LAST)["state_dict"]["w"][0] == 2.0
    link(tmp_path / LAST, tmp_path / BEST)
    assert read_checkpoint(tmp_path / BEST)["state_dict"]["w"][0] == 2.0
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([LAST, BEST])


class Harmful:
    """An object that a checkpoint must not bring to life."""

    def __reduce__(self) -> tuple:
        return (print, ("unpickled",))


def test_objects_in_a_file_are_refused_not_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": Harmful()}, tmp_path / LAST)
    with pytest.raises(ValueError, match="cannot be read"):
        read_checkpoint(tmp_path / LAST)
    assert "unpickled" not in capsys.readouterr().out


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99])
def test_a_cut_file_is_told_from_a_good_one(tmp_path: Path, keep: float) -> None:
    write(tmp_path / LAST, 1.0, size=5000)
    link(tmp_path / LAST, tmp_path / BEST)
    whole = (tmp_path / LAST).read_bytes()
    (tmp_path / LAST).unlink()
    (tmp_path / LAST).write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    assert newest(tmp_path) == tmp_path / BEST
    (tmp_path / BEST).unlink()
    with pytest.raises(ValueError, match=r"last\.ckpt cannot be read.*; or start anew with: triform rerun"):
        newest(tmp_path)
    (tmp_path / LAST).unlink()
    assert newest(tmp_path) is None


@pytest.mark.parametrize("content", [[1.0], {"w": torch.ones(2)}, {"state_dict": 3}, torch.ones(2)])
def test_what_is_no_checkpoint_is_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / LAST)
    with pytest.raises(ValueError, match=r"last\.ckpt is no checkpoint: it holds no state_dict"):
        read_checkpoint(tmp_path / LAST)


def test_a_missing_file_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"last\.ckpt does not exist; the run stopped before its first checkpoint"):
        read_checkpoint(tmp_path / LAST)
