"""Reading run folders, whole ones and what a kill leaves."""

from pathlib import Path

import numpy as np
import pytest

from triform.analysis.runs import read_metrics, read_run, read_summary, series

METRICS = "step,tokens,train/loss,validation/loss\n10,1000,2.5,\n20,2000,1.5,\n20,2000,,1.75\n"


def test_read_run_gives_config_summary_and_metrics(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {d_model: 24}\n")
    (tmp_path / "summary.json").write_text('{"status": "finished", "tokens": 2000}')
    (tmp_path / "metrics.csv").write_text(METRICS)
    run = read_run(tmp_path)
    assert run.config == {"model": {"d_model": 24}}
    assert run.status == "finished"
    assert run.summary["tokens"] == 2000
    np.testing.assert_array_equal(run.metrics["train/loss"], [2.5, 1.5, np.nan])


def test_a_run_that_did_not_get_far_is_readable(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    run = read_run(tmp_path)
    assert (run.status, run.summary, run.metrics) == ("unknown", {}, {})


def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a run folder: it has no config\.yaml; give one that a run printed$"):
        read_run(tmp_path)


@pytest.mark.parametrize("text", ["", '{"status": "run', "[1, 2]"])
def test_a_torn_summary_is_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    assert read_summary(tmp_path / "summary.json") == {}


def test_a_last_line_without_its_end_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text(METRICS + "30,3000,0.12")  # of 0.125: half a number is still a number
    assert read_metrics(file)["step"].tolist() == [10, 20, 20]


def test_rows_of_another_length_and_words_are_blanks(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("step,train/loss\n1\n2,oops\n3,nan\n4,inf\n5,0.5,9\n")
    metrics = read_metrics(file)
    assert metrics["step"].tolist() == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal(metrics["train/loss"], [np.nan, np.nan, np.nan, np.inf, 0.5])


def test_series_skips_blanks_and_takes_another_axis(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text(METRICS)
    metrics = read_metrics(file)
    steps, losses = series(metrics, "train/loss")
    assert (steps.tolist(), losses.tolist()) == ([10, 20], [2.5, 1.5])
    tokens, validation = series(metrics, "validation/loss", along="tokens")
    assert (tokens.tolist(), validation.tolist()) == ([2000], [1.75])
    assert series(metrics, "absent")[0].size == 0
