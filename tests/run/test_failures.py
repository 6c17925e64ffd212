"""What is left of a run that goes wrong, and of one that does not although something around it does."""

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback

from tests.training.runs import make
from triform.run.evaluate import check_files
from triform.run.folder import RunFolder
from triform.run.job import conclude, fail, rank_main, resume, start, training
from triform.run.parts import own_data, read_origin
from triform.run.ranks import start_all
from triform.training.hardware import rank

SHORT = ("trainer.max_steps=2", "trainer.val_interval=2")


class At(Callback):
    """Raises, or sends this process a signal, on one rank, after a step."""

    def __init__(self, rank: int, step: int, signal: str | None) -> None:
        self.rank, self.step, self.signal = rank, step, signal

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self.step and rank() == self.rank:
            if self.signal is None:
                raise ArithmeticError("this rank alone")
            os.kill(os.getpid(), signal.Signals[self.signal])


def at(rank: int, name: str = "null") -> tuple[str, ...]:
    return (
        "trust=[tests]",
        f"+callbacks.at={{_target_: {__name__}.At, rank: {rank}, step: 1, signal: {name}}}",
        "trainer.devices=2",
    )


def summary(folder: RunFolder) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(folder.summary.read_text())
    return found


def started(folder: RunFolder) -> int:
    config = folder.read_config()
    return start(folder, config, own_data(folder, config), False, None)


def test_the_first_error_is_kept_with_its_rank(tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder", *SHORT, *at(1))
    assert started(folder) == 1
    found = summary(folder)
    assert (found["status"], found["rank"]) == ("failed", 1)
    assert found["error"] == "ArithmeticError: this rank alone"
    assert found["where"].rpartition(":")[0] == __file__
    assert "this rank alone" in folder.log(1).read_text()
    assert folder.log(0).name == "log.txt"
    assert "this rank alone" not in folder.log(0).read_text()


def test_a_rank_that_is_killed_is_the_cause(tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder", *SHORT, *at(1, "SIGKILL"))
    assert started(folder) == 1
    found = summary(folder)
    assert (found["status"], found["error"]) == ("failed", "rank 1 was ended by SIGKILL")


def test_what_follows_the_first_error_does_not_replace_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with training(folder):
        fail(folder, 1, "first")
        fail(folder, 0, "lost a partner")
        assert summary(folder) == {"status": "failed", "error": "first", "rank": 1}
        fail(folder, 2, "was killed before", first=True)
        assert summary(folder)["rank"] == 2
    with training(folder):  # resumed
        fail(folder, 0, "another")
    assert summary(folder)["error"] == "another"


def raise_in_the_report(folder: RunFolder, trust: Sequence[str]) -> None:
    raise OSError("no space left for pictures")


def interrupt_the_report(folder: RunFolder, trust: Sequence[str]) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("finish", [raise_in_the_report, interrupt_the_report])
def test_a_finished_run_stays_finished_without_its_report(finish: Any, tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder", *SHORT)
    assert start_all([{}], rank_main, (folder, False, None, finish)) == 0
    assert summary(folder)["status"] == "finished"
    assert "Traceback" in folder.log(0).read_text()


def test_a_report_that_fails_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conclude(RunFolder(tmp_path), (), raise_in_the_report, [])
    reason = "OSError: no space left for pictures"
    assert capsys.readouterr().err == f"warning: the run has finished, its report has not ({reason})\n"


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder")
    source = tmp_path / "source.txt"
    check_files(folder, read_origin(folder))
    source.write_text(source.read_text() + "another line\n")
    with pytest.raises(ValueError, match=rf"{source} has changed since {folder.path} began"):
        resume(folder)
    with pytest.raises(ValueError, match=rf"{source} has changed since {folder.path} began"):
        check_files(folder, read_origin(folder))
    assert len([path for path in (tmp_path / "outputs" / ".cache").iterdir() if path.is_dir()]) == 1


def test_ranks_read_the_runs_own_data_and_no_other(tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder")
    config = folder.read_config()
    source = tmp_path / "source.txt"
    before = source.read_text()
    source.write_text(before + "another line\n")
    assert own_data(folder, config).folder.name == read_origin(folder).key
    config["paths"]["cache"] = str(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=f"{source} has changed"):
        own_data(folder, config)
    source.write_text(before)
    assert own_data(folder, config).folder.name == read_origin(folder).key


def test_another_tokenizer_is_named(tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder")
    config = folder.read_config()
    config["tokenizer"] = {"_target_": "triform.data.tokenizers.Byte"}
    config["paths"]["cache"] = str(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"the tokenizer \(Char\(\), now Byte\(\)\) has changed"):
        own_data(folder, config)


class Leave(Callback):
    """Leaves the program as if all were well."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        raise SystemExit


def test_a_run_that_is_left_has_failed(tmp_path: Path) -> None:
    callback = f"+callbacks.leave={{_target_: {__name__}.Leave}}"
    folder = make(tmp_path, "decoder", *SHORT, "trust=[tests]", callback)
    assert start_all([{}], rank_main, (folder, False, None, None, ["tests"])) == 1
    assert summary(folder)["error"] == "SystemExit: SystemExit"
