"""`triform compare`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.compare.made import make_run
from triform.commands import main
from triform.run.folder import RunFolder, write_config


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    for i, loss in enumerate((0.5, 0.3)):
        make_run(tmp_path / "dates" / str(i), loss, f"optimizer.lr={i + 1}")
    return tmp_path / "dates"


def test_it_prints_the_table_and_where_the_report_is(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(sweep)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["variant", "validation/loss"]
    assert lines[1].split()[:3] == ["lr=2", "0.3000", "-0.2000"]
    assert lines[2].split()[:3] == ["lr=1", "0.5000", "baseline"]
    assert lines[-1] == f"report: {sweep / 'report.html'}"
    assert (sweep / "report.html").is_file()


def test_metric_baseline_and_place_are_taken_from_the_command_line(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["--metric", "test/accuracy", "--baseline", "lr=2", "--out", str(out), f"{sweep}/*"]
    assert main(["compare", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["variant", "test/accuracy"]
    assert lines[1].split()[0:3:2] == ["lr=2", "baseline"]
    assert sorted(path.name for path in out.iterdir()) == [
        "plots",
        "report.html",
        "report.md",
        "table.csv",
        "table.tex",
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--metric", "los"], "error: --metric los: no run has logged it (did you mean 'loss'?); there are "),
        (["--baseline", "lr=7"], "error: --baseline lr=7: no variant is called so or has this value"),
        (["--mode", "less"], "error: triform compare: argument --mode: invalid choice: 'less'"),
        (["nowhere"], "error: nowhere: no such folder; give runs, a sweep's folder or a pattern"),
    ],
)
def test_bad_input_is_refused_in_one_line_and_writes_nothing(
    sweep: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert main(["compare", str(sweep), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(expected)
    assert error.count("\n") == 1
    assert not (sweep / "report.html").exists()


def test_weights_and_biases_gets_the_same_table(sweep: Path) -> None:
    config = RunFolder(sweep / "0").read_config()
    about = {"project": "p", "entity": None, "group": None, "tags": [], "mode": "offline"}
    write_config(
        RunFolder(sweep / "0"), config | {"logger": {"_target_": "triform.training.loggers.wandb_logger"} | about}
    )
    code = f"from triform.commands import main; raise SystemExit(main(['compare', '--wandb', {str(sweep)!r}]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=sweep, check=True)
    assert "wandb: recorded offline (as asked); upload with: wandb sync " in done.stderr
    (file,) = sweep.glob("wandb/offline-run-*/files/media/table/variants_*.json")
    table = json.loads(file.read_text())
    assert table["columns"][:3] == ["variant", "validation/loss", "difference"]
    assert [row[:3] for row in table["data"]] == [["lr=2", "0.3000", "-0.2000"], ["lr=1", "0.5000", "baseline"]]
    assert list(sweep.glob("wandb/offline-run-*/files/media/images/validation_loss_*.png"))
