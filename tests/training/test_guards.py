"""Numbers that are not finite, memory that is not enough, ranks that stand still: what is left of the run, and said."""

import csv
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback

from tests.training.runs import make
from tests.training.test_sharded import write as write_parts
from triform.run.folder import RunFolder
from triform.run.job import resume, start
from triform.run.parts import own_data
from triform.run.ranks import start_all
from triform.run.replay import copied, replay
from triform.training.dossier import Dossier
from triform.training.guards import Guard, is_cause, is_out_of_memory, said, sizes
from triform.training.hardware import rank
from triform.training.saving import LAST, PREVIOUS, read_checkpoint
from triform.training.watchdog import AFTER_SECONDS, Watchdog, patience

CAUSES = ("gradient", "loss", "memory", "sleep")


class Break(Callback):
    """Goes wrong in a step (from 1) and `more` after it, on one rank."""

    def __init__(self, cause: str, step: int, rank: int, more: int = 0) -> None:
        assert cause in CAUSES
        self.cause, self.steps, self.rank = cause, range(step, step + more + 1), rank

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step + 1 not in self.steps or rank() != self.rank:
            return
        if self.cause == "loss":
            original = pl_module.objective.loss

            def broken(model: Any, batch: Any) -> Any:
                pl_module.objective.loss = original
                return original(model, batch) * math.nan

            pl_module.objective.loss = broken
        if self.cause == "memory":
            torch.empty(1 << 60)
        if self.cause == "sleep":
            time.sleep(600)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if self.cause == "gradient" and trainer.global_step + 1 in self.steps and rank() == self.rank:
            dict(pl_module.named_parameters())[NAME].grad[1] = math.inf


class Limits(Callback):
    """Writes down how many seconds this rank waits for the others, in each group of ranks."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        mesh = pl_module.device_mesh
        groups = [dist.group.WORLD, pl_module.group, *([] if mesh is None else mesh.get_all_groups())]
        limits = [group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups]
        Path(self.folder, f"limits.{rank()}").write_text(json.dumps(limits))


class Ask(Callback):
    """Asks this process to stop in a step (from 1)."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step + 1 == self.step:
            pl_module.stop_requested = True


NAME = "model.stack.layers.1.attention.q_proj.weight"


def broken(tmp_path: Path, cause: str, step: int, rank: int, *overrides: str, more: int = 0) -> RunFolder:
    values = f"cause: {cause}, step: {step}, rank: {rank}, more: {more}"
    callback = f"+callbacks.break={{_target_: {__name__}.Break, {values}}}"
    return make(tmp_path, "decoder", "trust=[tests]", callback, "data.num_workers=0", *overrides)


def train(folder: RunFolder, again: bool = False) -> int:
    if again:
        return resume(folder, ["tests"])
    config = {**folder.read_config(), "trust": ["tests"]}
    return start(folder, config, own_data(folder, config), False, None)


def once_more(folder: RunFolder) -> int:
    return replay(folder, ["tests"])


def summary(folder: RunFolder) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(folder.summary.read_text())
    return found


def last(folder: RunFolder) -> dict[str, Any]:
    return read_checkpoint(folder.checkpoints / "last.ckpt")


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder.dossier / "not_finite.jsonl").read_text().splitlines()]


def test_a_gradient_that_is_not_finite_reaches_nothing_and_is_replayed(tmp_path: Path) -> None:
    folder = broken(tmp_path, "gradient", 8, 0)
    assert start_all([{}], train, (folder,)) == 1
    error = summary(folder)["error"]
    assert error.startswith(f"NotFinite: step 8: the loss is finite, the first gradient that is not is that of {NAME}")
    assert "parameter group 0; 1 of" in error
    assert "lower optimizer.lr" in error
    assert last(folder)["progress"]["step"] == 6
    (line,) = lines(folder)
    (found,) = line["ranks"]
    assert (line["step"], found["rank"], found["parameter"], found["epoch"]) == (8, 0, NAME, 0)
    numbers = found["examples"]
    assert len(numbers) == len(set(numbers)) == 18
    assert all(str(number) in error for number in numbers[:12])
    (dossier,) = Dossier(folder.path).read()
    assert dossier["error"] == error
    assert (dossier["step"], dossier["phase"], dossier["examples"]) == (8, "training", numbers)
    assert dossier["batch"]["input_ids"] == [9, 32]
    assert dossier["command"] == f"triform replay {folder.path}"
    assert "NotFinite" in (folder.dossier / "rank0.traceback.txt").read_text()
    assert torch.load(folder.dossier / "rank0.rng.pt", weights_only=True).dtype == torch.uint8
    before = last(folder)
    assert start_all([{}], once_more, (folder,)) == 0, "the same error in the same step"
    (again,) = Dossier(folder.dossier / "replay").read()
    assert {key: again[key] for key in ("error", "step", "examples")} == {
        key: dossier[key] for key in ("error", "step", "examples")
    }
    assert before["progress"] == last(folder)["progress"], "the run itself stays as it was"


@pytest.mark.parametrize("cause", ["gradient", pytest.param("loss", marks=pytest.mark.slow)])
def test_a_step_may_be_skipped(tmp_path: Path, cause: str) -> None:
    folder = broken(tmp_path, cause, 4, 0, "trainer.non_finite=skip", "trainer.max_skipped=2", more=1)
    assert start_all([{}], train, (folder,)) == 0
    assert summary(folder)["status"] == "finished"
    assert [line["step"] for line in lines(folder)] == [4, 5]
    assert last(folder)["progress"]["step"] == 12
    (state,) = last(folder)["optimizer_states"]
    assert {int(of["step"]) for of in state["state"].values()} == {10}, "two updates were not made"
    assert all(bool(weight.isfinite().all()) for weight in last(folder)["state_dict"].values())
    rows = folder.metrics.read_text()
    assert "nan" not in rows
    assert "inf" not in rows
    losses = [float(row["train/loss"]) for row in csv.DictReader(rows.splitlines()) if row["train/loss"]]
    assert len(losses) == 6
    assert 4.5 > losses[0] > losses[1] > losses[2] > losses[3] > 3, "of the targets of steps that were taken"


def test_a_resumed_run_goes_on_counting_what_is_skipped_in_a_row(tmp_path: Path) -> None:
    words = ("trainer.non_finite=skip", "trainer.max_skipped=2", "trainer.save_interval=1")
    folder = broken(tmp_path, "gradient", 4, 0, *words, f"+callbacks.ask={{_target_: {__name__}.Ask, step: 5}}", more=2)
    assert start_all([{}], train, (folder,)) == 75
    assert last(folder)["callbacks"]["Guard"] == {"in_a_row": 2}
    assert start_all([{}], train, (folder, True)) == 1
    assert summary(folder)["error"].startswith("NotFinite: step 6")


@pytest.mark.slow
def test_more_steps_in_a_row_than_may_be_skipped_fail(tmp_path: Path) -> None:
    folder = broken(tmp_path, "gradient", 4, 0, "trainer.non_finite=skip", "trainer.max_skipped=2", more=2)
    assert start_all([{}], train, (folder,)) == 1
    assert summary(folder)["error"].startswith("NotFinite: step 6")
    assert "after 2 skipped in a row" in summary(folder)["error"]
    assert last(folder)["progress"]["step"] == 5, "the validation of step 5 saves one, of the weights of step 3"


def test_all_ranks_leave_out_the_step_of_a_rank(tmp_path: Path) -> None:
    folder = broken(tmp_path, "loss", 4, 1, "trainer.non_finite=skip", "trainer.devices=2")
    assert start_all([{}], train, (folder,)) == 0
    (line,) = lines(folder)
    assert [one["rank"] for one in line["ranks"] if one["loss"] == "nan"] == [1]
    assert [len(one["examples"]) for one in line["ranks"]] == [9, 9]
    assert not set(line["ranks"][0]["examples"]) & set(line["ranks"][1]["examples"])
    (state,) = last(folder)["optimizer_states"]
    assert {int(of["step"]) for of in state["state"].values()} == {11}


def test_memory_that_is_not_enough_is_said_with_the_batch(tmp_path: Path) -> None:
    folder = broken(tmp_path, "memory", 3, 1, "trainer.devices=2")
    assert start_all([{}], train, (folder,)) == 1
    found = summary(folder)
    assert found["rank"] == 1
    assert found["error"].startswith("OutOfMemory: out of memory in step 3 (training), in a batch of input_ids 5 x 32,")
    assert "raise trainer.accumulate" in found["error"]
    assert "GiB" in found["error"]
    assert next(one for one in Dossier(folder.path).read() if one["rank"] == 1)["step"] == 3


def test_a_rank_that_stands_still_ends_the_run_with_all_stacks(tmp_path: Path) -> None:
    folder = broken(tmp_path, "sleep", 3, 1, "trainer.devices=2", "trainer.timeout=10")
    began = time.monotonic()
    assert start_all([{}], train, (folder,)) == 1
    assert time.monotonic() - began < 120
    stacks = [(folder.dossier / f"stack.rank{number}.txt").read_text() for number in (0, 1)]
    assert "on_train_batch_start" in stacks[1]
    assert "step 2" in stacks[1]
    assert __file__ in stacks[1].splitlines()[0]
    assert "Thread" in stacks[0]
    found = summary(folder)
    assert found["status"] == "failed"
    assert f"rank 1 at {__file__}:" in found["error"]
    assert "(on_train_batch_start)" in found["error"]
    assert "after step 2" in found["error"]


@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("ddp", marks=pytest.mark.slow)])
def test_ranks_wait_for_each_other_longer_than_the_watchdog(tmp_path: Path, strategy: str) -> None:
    callback = f"+callbacks.limits={{_target_: {__name__}.Limits, folder: {tmp_path}}}"
    words = ("trust=[tests]", callback, "data.num_workers=0", "trainer.devices=2", "trainer.max_steps=1")
    folder = make(tmp_path, "decoder", *words, f"trainer.strategy={strategy}", "trainer.timeout=77")
    assert start_all([{}], train, (folder,)) == 0
    for number in (0, 1):
        limits = json.loads((tmp_path / f"limits.{number}").read_text())
        assert limits == [77 + AFTER_SECONDS] * (4 if strategy == "fsdp" else 2)


def test_without_a_watchdog_ranks_wait_for_a_month() -> None:
    assert patience(None).days == 30


def test_a_watchdog_that_saw_progress_leaves_nothing(tmp_path: Path) -> None:
    with Watchdog(tmp_path, 100):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("key", ["gradient", "loss"])
def test_an_error_is_told_with_its_cause(key: str) -> None:
    found = {"rank": 3, "loss": "nan" if key == "loss" else "2.5", "parameter": "head.weight", "group": 1}
    found |= {"not_finite": 2, "parameters": 7, "epoch": 4, "examples": list(range(100, 120))}
    text = said([found])
    assert ("the loss is nan" in text) == (key == "loss")
    assert "head.weight (parameter group 1; 2 of 7)" in text
    assert "epoch 4, examples 100, 101" in text
    assert "111, ..." in text
    assert "119" not in text
    assert text.endswith("on rank 3")


def test_what_is_told_of_several_ranks_is_of_those_with_a_bad_loss() -> None:
    fine = {"rank": 0, "loss": "1.0", "parameter": "a", "group": 0, "not_finite": 1, "parameters": 2}
    assert said([fine, fine | {"rank": 2, "loss": "inf"}]).endswith("on rank 2")
    assert said([fine, fine | {"rank": 2}]).endswith("on rank 0, 2")


def test_a_rank_that_knows_by_the_norm_alone_is_no_cause() -> None:
    assert is_cause({"rank": 1, "loss": "2.5", "parameter": "head.weight"})
    assert is_cause({"rank": 1, "loss": "nan"})
    assert not is_cause({"rank": 0, "loss": "2.5", "epoch": 3, "examples": [1]})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            True,
        ),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_is_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_sizes_are_those_of_tensors() -> None:
    assert sizes({"input_ids": torch.zeros(2, 7), "n_tokens": 3}) == {"input_ids": [2, 7]}
    assert sizes(None) == {}


def test_values_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"non_finite='ignore' is not known; set trainer\.non_finite to stop or skip"):
        Guard(tmp_path, "ignore", 3)
    with pytest.raises(ValueError, match=r"max_skipped=0 is below 1; set trainer\.max_skipped"):
        Guard(tmp_path, "skip", 0)
    with pytest.raises(ValueError, match=r"timeout=0 is not above 0; set trainer\.timeout to seconds, or null"):
        Watchdog(tmp_path, 0)


def test_what_is_replayed_from_parts_can_be_saved(tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder")
    for step in (1, 2):
        write_parts(folder.checkpoints, step)
    copy = copied(folder, 3)
    write_parts(copy.checkpoints, 3)
    steps = {name: read_checkpoint(copy.checkpoints / name)["progress"]["step"] for name in (PREVIOUS, LAST)}
    assert steps == {PREVIOUS: 2, LAST: 3}
    assert read_checkpoint(folder.checkpoints / LAST)["progress"]["step"] == 2, "the run itself stays as it was"


def test_a_run_that_has_not_failed_is_not_replayed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to replay"):
        replay(RunFolder(tmp_path))
