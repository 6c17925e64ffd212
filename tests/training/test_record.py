import csv
import json
from pathlib import Path

import pytest

from triform.training.record import Metrics, Summary


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_resumed_record_drops_later_rows_and_one_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    metrics = Metrics(path, ["train/loss"])
    for step in (10, 20, 30):
        metrics.append({"step": step, "tokens": step * 7, "seconds": 0.1, "epoch": 0.5, "train/loss": 1 / step})
    with path.open("a") as file:
        file.write("40,280")
    again = Metrics(path, ["train/loss"])
    again.keep_until(20)
    again.append({"step": 30, "tokens": 1, "seconds": 0.2, "epoch": 0.6, "train/loss": 0.25})
    assert [row["step"] for row in rows(path)] == ["10", "20", "30"]
    assert float(rows(path)[1]["train/loss"]) == 1 / 20
    assert rows(path)[2]["train/loss"] == "0.25"


def test_values_read_back_exactly_and_nan_is_blank(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.csv", ["a", "b"])
    metrics.append({"step": 1, "a": 0.1 + 0.2, "b": float("nan")})
    assert float(rows(tmp_path / "metrics.csv")[0]["a"]) == 0.1 + 0.2
    assert rows(tmp_path / "metrics.csv")[0]["b"] == ""


def test_summary_is_valid_json_after_each_change_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    Summary(path).update(status="running", mfu=float("inf"))
    Summary(path).update(status="finished")
    assert json.loads(path.read_text()) == {"status": "finished", "mfu": None}
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize("content", ["", '{"status": "run', "[1]", "\udcff"])
def test_a_damaged_summary_is_begun_anew(content: str, tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_bytes(content.encode("utf-8", errors="surrogateescape"))
    Summary(path).update(status="running")
    assert json.loads(path.read_text()) == {"status": "running"}
