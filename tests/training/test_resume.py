"""Killed at any point and resumed, a run ends as one that was never stopped."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import triform
from tests.training.runs import differences, documents, make, mixture, outcome, run
from triform.run.again import continued, keep
from triform.run.folder import RunFolder

PLACES = {"micro-batch": 24, "update": 12, "validation": 3, "save": 7, "write": 23, "rename": 30, "link": 9}
"""Where a run is killed, and how often it comes by there at least."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Outcome of the run that is never stopped, by family and workers."""
    known: dict[tuple[str, int], dict[str, Any]] = {}

    def get(family: str, workers: int) -> dict[str, Any]:
        if (family, workers) not in known:
            folder = make(tmp_path_factory.mktemp(family), family, f"data.num_workers={workers}")
            assert run(folder) == 0
            known[family, workers] = outcome(folder)
        return known[family, workers]

    return get


def kill_and_resume(folder: RunFolder, place: str, count: int) -> None:
    code = run(folder, kill_at={place: count})
    assert code == -9, f"killed at {place} {count}: exit {code}"
    resumes = 0
    while code != 0:
        code = run(folder, resume=True)
        resumes += 1
        assert resumes < 3


def points(family: str, n: int) -> list[tuple[str, int]]:
    draw = random.Random(f"resume {family}")
    places = [list(PLACES)[i % len(PLACES)] for i in range(n)]
    return [(place, draw.randint(1, PLACES[place])) for place in places]


@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder_decoder"])
def test_killed_runs_end_bitwise_equal(tmp_path: Path, whole: Any, family: str) -> None:
    expected = whole(family, 0)
    assert expected["step"] == 12
    for i, (place, count) in enumerate(points(family, 10)):
        (tmp_path / str(i)).mkdir()
        folder = make(tmp_path / str(i), family, "data.num_workers=0")
        kill_and_resume(folder, place, count)
        assert not differences(expected, outcome(folder)), f"killed at {place} {count}"
        assert json.loads(folder.summary.read_text())["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder_decoder"])
def test_loader_workers_change_nothing(tmp_path: Path, whole: Any, family: str) -> None:
    expected = whole(family, 0)
    assert not differences(expected, whole(family, 2))
    for i, (place, count) in enumerate(points(family, 10)):
        (tmp_path / str(i)).mkdir()
        folder = make(tmp_path / str(i), family, "data.num_workers=2")
        kill_and_resume(folder, place, count)
        assert not differences(expected, outcome(folder)), f"killed at {place} {count}"


@pytest.mark.parametrize(("name", "count"), [("TERM", 3), ("USR1", 5), ("INT", 8), ("TERM", 10), ("TERM", 12)])
def test_a_signal_saves_at_the_next_step_and_exits_75(tmp_path: Path, whole: Any, name: str, count: int) -> None:
    """At steps without and with a validation due (5 and 10), and at the last one."""
    folder = make(tmp_path, "decoder")
    assert run(folder, kill_at={f"{name}:update": count}) == 75
    assert outcome_step(folder) == count
    summary = json.loads(folder.summary.read_text())
    assert (summary["status"], summary["steps"]) == ("preempted", count)
    assert run(folder, resume=True) == 0
    assert not differences(whole("decoder", 0), outcome(folder))


@pytest.mark.parametrize("count", [1, 3])
def test_a_signal_ends_a_validation_which_is_made_up_for(tmp_path: Path, whole: Any, count: int) -> None:
    folder = make(tmp_path, "decoder")
    assert run(folder, kill_at={"TERM:validation": count}) == 75
    assert run(folder, resume=True) == 0
    assert not differences(whole("decoder", 0), outcome(folder))


def test_other_signals_than_a_second_interrupt_may_come_twice(tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder")
    assert run(folder, kill_at={"TERM:micro-batch": 5, "USR1:update": 3}) == 75
    assert run(make_again(tmp_path), kill_at={"INT:micro-batch": 5, "INT:update": 3}) == 128 + signal.SIGINT


def make_again(folder: Path) -> RunFolder:
    (folder / "again").mkdir()
    return make(folder / "again", "decoder")


def test_two_ranks_stop_and_go_on_as_one(tmp_path: Path, whole: Any) -> None:
    """A signal that reaches one rank stops both at the same step."""
    folder = make(tmp_path, "decoder", "trainer.devices=2")
    assert run(folder, kill_at={"TERM:micro-batch": 9}) == 75
    assert json.loads(folder.summary.read_text())["status"] == "preempted"
    step = outcome_step(folder)
    assert step in (5, 6)
    assert run(folder, resume=True) == 0
    assert outcome_step(folder) == 12


@pytest.mark.slow  # the next one changes their number, too
def test_a_run_goes_on_with_other_numbers_of_ranks(tmp_path: Path) -> None:
    """Each remaining example once: tokens are the same at each row, losses and weights to rounding."""
    folders = without_dropout(tmp_path, "trainer.async_save=false")  # that of step 3 is on disk before step 4 begins
    assert run(folders[1], kill_at={"micro-batch": 8}) == -9
    go_on(folders[1], "trainer.devices=2")
    assert run(folders[1], resume=True, kill_at={"TERM:update": 4}) == 75
    assert outcome_step(folders[1]) == 7
    go_on(folders[1], "trainer.devices=1", "trainer.accumulate=3")
    assert run(folders[1], resume=True) == 0
    assert_close(*(outcome(folder) for folder in folders))


def test_any_strategy_goes_on_from_the_checkpoint_of_any_other(tmp_path: Path) -> None:
    """One process, parts of two, parts cut in another way, one process: weights and optimizer."""
    folders = without_dropout(tmp_path)
    assert run(folders[1], kill_at={"TERM:update": 3}) == 75
    go_on(folders[1], "trainer.strategy=fsdp", "trainer.devices=2")
    assert run(folders[1], resume=True, kill_at={"TERM:update": 3}) == 75
    assert (folders[1].checkpoints / "last.ckpt").is_dir()
    go_on(folders[1], "trainer.strategy=tensor_parallel", "trainer.tensor_parallel=2")
    assert run(folders[1], resume=True, kill_at={"TERM:update": 3}) == 75
    assert outcome_step(folders[1]) == 9
    go_on(folders[1], "trainer.strategy=auto", "trainer.tensor_parallel=1", "trainer.devices=1")
    assert run(folders[1], resume=True) == 0
    assert (folders[1].checkpoints / "last.ckpt").is_file()
    assert_close(*(outcome(folder) for folder in folders))


def without_dropout(folder: Path, *overrides: str) -> list[RunFolder]:
    """A run that is done, and the same not yet begun."""
    folders = []
    for name in ("whole", "moved"):
        (folder / name).mkdir()
        folders.append(make(folder / name, "decoder", "model.dropout=0", *overrides))
    assert run(folders[0]) == 0
    return folders


def go_on(folder: RunFolder, *overrides: str) -> None:
    keep(folder, continued(folder.read_config(), overrides))


def assert_close(whole: dict[str, Any], moved: dict[str, Any]) -> None:
    assert moved["step"] == 12
    assert [(row["step"], row["tokens"]) for row in moved["rows"]] == [(r["step"], r["tokens"]) for r in whole["rows"]]
    for row, other in zip(moved["rows"], whole["rows"], strict=True):
        for name in ("train/loss", "validation/loss", "test/loss"):
            assert row[name] == other[name] == "" or float(row[name]) == pytest.approx(float(other[name]), rel=1e-5)
    for name, weight in whole["weights"].items():
        torch.testing.assert_close(moved["weights"][name], weight, atol=1e-5, rtol=1e-4)


def test_a_run_whose_last_update_breaks_the_weights_fails(tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder", "trainer.max_steps=1", "scheduler.warmup_steps=0", "optimizer.lr=1e300")
    assert run(folder) == 1
    assert "weights" in json.loads(folder.summary.read_text())["error"]


def test_a_run_without_a_good_checkpoint_is_not_started_anew(tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder")
    assert run(folder, kill_at={"micro-batch": 12}) == -9
    for checkpoint in folder.checkpoints.iterdir():
        checkpoint.unlink()
        checkpoint.write_bytes(b"damaged")
    assert run(folder, resume=True) != 0
    assert (folder.checkpoints / "last.ckpt").read_bytes() == b"damaged"


def test_two_ranks_resume_bitwise(tmp_path: Path) -> None:
    folders = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        folders.append(make(tmp_path / name, "decoder", "trainer.devices=2"))
    assert run(folders[0]) == 0
    assert run(folders[1], kill_at={"micro-batch": 15}) != 0
    assert run(folders[1], resume=True) == 0
    assert outcome_step(folders[1]) == 12
    assert not differences(outcome(folders[0]), outcome(folders[1]))


def outcome_step(folder: RunFolder) -> int:
    from triform.training.saving import read_checkpoint

    return int(read_checkpoint(folder.checkpoints / "last.ckpt")["progress"]["step"])


@pytest.mark.parametrize(
    ("place", "count", "callbacks"),
    [
        ("rename", 19, "ema"),
        *(pytest.param(*case, "default", marks=pytest.mark.slow) for case in (("write", 9), ("micro-batch", 11))),
    ],
)
def test_two_ranks_that_write_their_parts_resume_bitwise(
    tmp_path: Path, place: str, count: int, callbacks: str
) -> None:
    folders = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        words = ("trainer.devices=2", "trainer.strategy=fsdp", f"callbacks={callbacks}")
        folders.append(make(tmp_path / name, "decoder", *words))
    assert run(folders[0]) == 0
    assert run(folders[1], kill_at={place: count}) != 0
    assert run(folders[1], resume=True) == 0
    assert not differences(outcome(folders[0]), outcome(folders[1]))
    models = [triform.load(folder.path)[0].state_dict() for folder in folders]
    assert not differences(*models)
    assert not [entry.name for entry in folders[1].checkpoints.iterdir() if entry.name.startswith(".")]


def test_muon_resumes_bitwise_too(tmp_path: Path) -> None:
    folders = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        folders.append(make(tmp_path / name, "decoder", "optimizer=muon"))
    assert run(folders[0]) == 0
    kill_and_resume(folders[1], "micro-batch", 15)
    assert not differences(outcome(folders[0]), outcome(folders[1]))


@pytest.mark.parametrize(("family", "seed"), [("decoder", 0), ("decoder", 3), ("encoder", 1)])
def test_packed_documents_resume_bitwise(tmp_path: Path, family: str, seed: int) -> None:
    folders = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        packing = ("data.packing=true", documents(tmp_path), "data.batch_size=7", f"seed={seed}")
        folders.append(make(tmp_path / name, family, *packing))
    assert run(folders[0]) == 0
    kill_and_resume(folders[1], "micro-batch", 9 + 4 * seed)
    assert not differences(outcome(folders[0]), outcome(folders[1]))


@pytest.mark.parametrize(("packing", "seed"), [("false", 2), ("true", 4)])
def test_a_mixture_resumes_bitwise(tmp_path: Path, packing: str, seed: int) -> None:
    folders = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        parts = (*mixture(tmp_path), f"data.packing={packing}", "data.batch_size=7", f"seed={seed}")
        folders.append(make(tmp_path / name, "decoder", *parts))
    assert run(folders[0]) == 0
    kill_and_resume(folders[1], "micro-batch", 19)
    assert not differences(outcome(folders[0]), outcome(folders[1]))


@pytest.mark.parametrize("where", ["last", "previous"])
def test_a_flipped_bit_falls_back_to_the_newest_good_checkpoint(tmp_path: Path, whole: Any, where: str) -> None:
    """`best` is the same file as `last` or `previous`, where one of them was the best so far."""
    folder = make(tmp_path, "decoder")
    assert run(folder, kill_at={"micro-batch": 21}) == -9
    files = [
        folder.checkpoints / name for name in (("last.ckpt",) if where == "last" else ("last.ckpt", "previous.ckpt"))
    ]
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 2
        path.unlink()
        path.write_bytes(data)
    assert run(folder, resume=True) == 0
    assert "its content is not what its hash says" in folder.log(0).read_text()
    assert not differences(whole("decoder", 0), outcome(folder))


def test_a_validation_whose_checkpoint_was_lost_is_recorded_once(tmp_path: Path, whole: Any) -> None:
    """Killed in the last save, when the row of the validation before it had been written."""
    folder = make(tmp_path, "decoder")
    assert run(folder, kill_at={"save": 7}) == -9
    assert run(folder, resume=True) == 0
    assert not differences(whole("decoder", 0), outcome(folder))


def test_a_run_that_diverges_fails_without_a_checkpoint_of_it(tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder", "scheduler=constant", "scheduler.warmup_steps=0", "optimizer.lr=1e30")
    assert run(folder) == 1
    summary = json.loads(folder.summary.read_text())
    assert summary["status"] == "failed"
    assert "lower optimizer.lr" in summary["error"]
    assert not list(folder.checkpoints.iterdir())
