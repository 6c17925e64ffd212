"""Trackers against a real W&B client: without a network, with a dead server, with one that refuses."""

import http.server
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from lightning.pytorch.loggers import CSVLogger, Logger

from triform.training.loggers import Background, sweep_of, tensorboard_logger, wandb_id, wandb_logger

RECORD = """
import sys
from pathlib import Path
from triform.training.loggers import wandb_logger

logger = wandb_logger("triform", None, None, [], sys.argv[2], Path(sys.argv[1]), {"model": {"d_model": 24}})
for step in range(3):
    logger.log_metrics({"train/loss": 1 / (step + 1)}, step)
logger.log_summary({"final/exact_match": 0.5})
logger.close()
print("run: over")
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home, so that nobody is logged in and what is written there shows."""
    home = tmp_path / "home"
    home.mkdir()
    return home


def record(
    folder: Path, home: Path, mode: str = "auto", before: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Record three steps in a process of its own; whoever asks on standard input is refused an answer."""
    folder.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return subprocess.run(
        [sys.executable, "-c", before + RECORD, str(folder), mode],
        env=kept | {"HOME": str(home)} | variables,
        cwd=folder.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )


def test_wandb_without_login_records_offline_and_says_how_to_upload(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "run"
    first = record(folder, home)
    assert first.stdout == "run: over\n"
    advice = "wandb: recorded offline (not logged in); upload with: wandb sync run/wandb/offline-run-*\n"
    assert first.stderr == advice
    assert [path for path in home.rglob("*") if "wandb" in path.name] == [], "written outside the run folder"
    assert sorted(file.name for file in folder.iterdir()) == ["wandb", "wandb_id"]
    id = (folder / "wandb_id").read_text().strip()
    assert re.fullmatch(r"[a-z0-9]{8}", id)

    record(folder, home)  # a resumed run continues the same W&B run
    records = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert [file.name for file in records] == [f"run-{id}.wandb"] * 2


def test_wandb_is_not_told_whose_machine_it_is(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "run"
    code = "import socket; socket.gethostname = lambda: 'private-name-of-a-machine'\n"
    sent = record(folder, home, "offline", before=code)
    assert "offline" in sent.stderr
    written = [path.read_bytes() for path in (folder / "wandb").glob("offline-run-*/**/*") if path.is_file()]
    assert any(b"train/loss" in content for content in written)
    assert not any(b"private-name-of-a-machine" in content for content in written)
    assert not list((folder / "wandb").rglob("wandb-metadata.json"))


def test_wandb_with_an_unreachable_server_records_offline_within_seconds(tmp_path: Path, home: Path) -> None:
    began = time.monotonic()
    done = record(tmp_path / "run", home, WANDB_API_KEY="0" * 40, WANDB_BASE_URL="http://127.0.0.1:9")
    assert time.monotonic() - began < 45
    assert done.stderr.startswith("wandb: recorded offline (the server did not accept the login in time); upload")
    assert done.stderr.count("\n") == 1
    assert "0" * 40 not in done.stderr
    assert len(list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["refuse", "hang"])
def test_wandb_with_a_server_that_misbehaves_records_offline(tmp_path: Path, home: Path, answer: str) -> None:
    with serve(answer) as url:
        done = record(tmp_path / "run", home, WANDB_API_KEY="0" * 40, WANDB_BASE_URL=url)
    assert "wandb: recorded offline (the server did not accept the login in time)" in done.stderr
    assert len(list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))) == 1


@pytest.mark.parametrize(("mode", "variable"), [("disabled", "online"), ("auto", "disabled")])
def test_wandb_disabled_records_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], mode: str, variable: str
) -> None:
    monkeypatch.setenv("WANDB_MODE", variable)
    logger = wandb_logger("triform", None, None, [], mode, tmp_path, {})
    logger.log_metrics({"train/loss": 1.0}, 1)
    logger.close()
    assert capfd.readouterr().err == ""
    assert list(tmp_path.rglob("*.wandb")) == []


def test_wandb_refuses_an_unknown_mode(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mode='on' is not known; set logger\.mode to one of auto, online, offline"):
        wandb_logger("triform", None, None, [], "on", tmp_path, {})


def test_wandb_id_stays_and_an_empty_one_is_made_anew(tmp_path: Path) -> None:
    id = wandb_id(tmp_path)
    assert wandb_id(tmp_path) == id
    (tmp_path / "wandb_id").write_text("")  # as a kill while writing leaves it
    assert re.fullmatch(r"[a-z0-9]{8}", wandb_id(tmp_path))


def test_tensorboard_writes_into_the_run_folder(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = tensorboard_logger(tmp_path, {})
    for step in (5, 10):
        logger.log_metrics({"train/loss": 1 / step}, step)
    logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, pytest.approx(event.value)) for event in events.Scalars("train/loss")] == [(5, 0.2), (10, 0.1)]


def test_logging_never_waits_for_a_slow_tracker(tmp_path: Path) -> None:
    ready = threading.Event()

    def start() -> tuple[Logger, None]:
        ready.wait(30)
        return CSVLogger(tmp_path, name="", version=""), None

    began = time.monotonic()
    logger = Background("slow", start)
    logger.log_metrics({"loss": 0.5}, 1)
    assert time.monotonic() - began < 1
    assert not (tmp_path / "metrics.csv").exists()
    ready.set()
    logger.close()
    assert "0.5,1" in (tmp_path / "metrics.csv").read_text()


def test_a_tracker_that_cannot_start_is_one_warning(capfd: pytest.CaptureFixture[str]) -> None:
    def start() -> tuple[Logger, None]:
        raise OSError("no space\nleft on device")

    logger = Background("tracker", start)
    logger.log_metrics({"loss": 1.0}, 1)
    logger.close()
    logger.log_metrics({"loss": 1.0}, 2)
    assert capfd.readouterr().err == (
        "warning: tracker stopped recording (OSError: no space left on device); the run folder has the full record\n"
    )


def test_a_tracker_that_breaks_midway_is_one_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logger = Background("tracker", lambda: (CSVLogger(tmp_path / "log", name="", version=""), None))
    for step in range(50):
        logger.log_metrics({"loss": 1.0}, step)
    (tmp_path / "log" / "metrics.csv").mkdir(parents=True)  # the file cannot be written now
    logger.close()
    assert capfd.readouterr().err.count("warning: tracker stopped recording") == 1


def test_other_ranks_record_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    logger = tensorboard_logger(tmp_path, {})
    logger.log_metrics({"loss": 1.0}, 1)
    logger.close()
    assert list(tmp_path.iterdir()) == []


class serve:
    """A local server that refuses every request, or never answers one."""

    def __init__(self, answer: str) -> None:
        over = self.over = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                if answer == "hang":
                    over.wait(60)
                self.send_response(401)
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *args: object) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


def test_runs_of_a_sweep_belong_together(tmp_path: Path) -> None:
    folder = tmp_path / "dates-abc123" / "7"
    folder.mkdir(parents=True)
    assert sweep_of(folder) is None
    (tmp_path / "dates-abc123" / "manifest.json").touch()
    assert sweep_of(folder) == "dates-abc123"
