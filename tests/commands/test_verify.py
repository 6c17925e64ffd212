"""The whole of it over a recipe of the user's own: record, run again, see a change."""

from pathlib import Path

import pytest

from tests.run.tiny import triform
from triform.commands import main

RECIPE = """# @package _global_
# Dates, a little.
defaults:
  - override /model: encoder_decoder
  - override /data: dates
  - override /tokenizer: char
  - override /task: seq2seq
model:
  d_model: 24
  n_heads: 3
  n_layers: 1
data:
  n_train: 60
  n_validation: 9
  n_test: 7
  batch_size: 5
trainer:
  max_epochs: null
  max_steps: 6
  log_interval: 1
  val_interval: null
"""


@pytest.fixture
def mine(tmp_path: Path) -> list[str]:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(RECIPE)
    return ["verify", "mine", f"--config-dir={tmp_path}", f"paths.outputs={tmp_path / 'outputs'}"]


def test_a_recipe_is_recorded_run_again_and_a_change_is_found(mine: list[str], tmp_path: Path) -> None:
    made = triform(tmp_path, *mine, "--record", "3", "trainer.max_steps=7")
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[-1] == f"{tmp_path / 'experiment' / 'mine.json'}: 3 seeds recorded"

    same = triform(tmp_path, *mine)
    assert same.returncode == 0, same.stderr
    assert same.stdout.splitlines()[-1] == "mine: as recorded, bit for bit (seed 0)"

    other = triform(tmp_path, *mine, "optimizer.lr=1.0", "scheduler.warmup_steps=1")
    assert other.returncode == 1, other.stderr
    said = [line for line in other.stdout.splitlines() if line.startswith("differs: ")]
    assert said == [
        "differs: optimizer.lr=1.0, recorded with 0.001",
        "differs: scheduler.warmup_steps=1, recorded with 400",
    ]
    assert other.stdout.splitlines()[-1].endswith("of the curve lie outside the recorded band")


def test_what_cannot_be_run_is_refused_in_one_line(
    mine: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, fragment in (
        ([], "no run of this recipe is recorded"),
        (["--record", "2"], "--record 2"),
        (["--record", "3", "model.n_heads=5"], "n_heads=5"),
    ):
        assert main([*mine, *words]) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith("error: ")
        assert printed.err.count("\n") == 1
        assert fragment in printed.err
    assert not (tmp_path / "experiment" / "mine.json").exists()


def test_without_a_name_the_recorded_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 0
    assert "dates" in capsys.readouterr().out.splitlines()
