"""A run that a sweep ends early keeps what it has, and all ranks end with it."""

import json
from pathlib import Path

import pytest

from tests.training.runs import make, run
from triform.training.saving import read_checkpoint
from triform.training.signals import PRUNE


@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_is_pruned_after_its_next_validation(devices: int, tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder", f"trainer.devices={devices}")
    (folder.path / PRUNE).touch()
    assert run(folder) == 0
    summary = json.loads(folder.summary.read_text())
    assert (summary["status"], summary["steps"], summary["best"]["step"]) == ("pruned", 5, 5)
    assert "final" not in summary
    assert read_checkpoint(folder.checkpoints / "last.ckpt")["progress"]["step"] == 5
    (folder.path / PRUNE).unlink()
    assert run(folder, resume=True) == 0
    assert json.loads(folder.summary.read_text())["status"] == "finished"


def test_the_last_validation_ends_a_run_as_ever(tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder", "trainer.val_interval=null", "trainer.max_steps=2")
    (folder.path / PRUNE).touch()
    assert run(folder) == 0
    assert json.loads(folder.summary.read_text())["status"] == "finished"
