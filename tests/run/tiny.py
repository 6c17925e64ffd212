"""A run that takes seconds, started as a user starts it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TRAIN = Path(__file__).parents[2] / "train.py"
TINY = (
    *("data.n_train=60", "data.n_validation=9", "data.n_test=7", "data.batch_size=4"),
    *("model.d_model=16", "model.n_heads=2", "model.n_layers=1", "model.d_ff=24", "logger=csv"),
    *("trainer.max_steps=8", "trainer.val_interval=4", "trainer.save_interval=4", "trainer.log_interval=1"),
)
COMMAND = (sys.executable, "-c", "import sys; from triform.commands import main; sys.exit(main(sys.argv[1:]))")


def train(cwd: Path, *words: str, command: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """`python train.py` with a tiny model, or another command line of the same program."""
    line = command or (sys.executable, str(TRAIN), *TINY, *words)
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd, env=environment(), timeout=200)


def start(cwd: Path, *words: str) -> subprocess.Popen[str]:
    """The same, not waited for."""
    line = (sys.executable, str(TRAIN), *TINY, *words)
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=environment())


def triform(cwd: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """`triform WORDS`."""
    line = (*COMMAND, *words)
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd, env=environment(), timeout=200, input=stdin)


def environment() -> dict[str, str]:
    """One thread, and no launcher's variables."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def folder_of(done: subprocess.CompletedProcess[str]) -> Path:
    """The folder that a run's last line names."""
    last = done.stdout.splitlines()[-1]
    assert last.startswith("run: "), done.stdout + done.stderr
    return Path(last.removeprefix("run: "))


def stop_at(process: subprocess.Popen[str], metrics_of: Path, step: int, number: int = signal.SIGTERM) -> None:
    """Send a signal when the record has reached a step."""
    deadline = time.monotonic() + 150
    while process.poll() is None and time.monotonic() < deadline:
        files = list(metrics_of.rglob("metrics.csv"))
        rows = files[0].read_text().splitlines()[1:] if files else []
        if any(int(row.split(",")[0]) >= step for row in rows if row.split(",")[0].isdigit()):
            process.send_signal(number)
            return
        time.sleep(0.02)
    raise AssertionError("the run ended before it could be stopped")
