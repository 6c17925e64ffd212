"""Being asked to stop: by any signal, in any phase, on any rank."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import Callback

from tests.run.tiny import COMMAND, TINY, TRAIN, environment
from tests.training.runs import make, outcome
from triform.run.folder import RunFolder
from triform.run.job import resume, start
from triform.run.parts import own_data
from triform.run.ranks import start_all
from triform.training.hardware import rank
from triform.training.saving import read_checkpoint

WAIT = 60.0
"""Seconds that a busy machine gets; the run itself takes a few."""


def do(lines: str, *sent: tuple[str, float]) -> int:
    """Exit code of a program that listens and prints when it is ready, and is sent signals after so many seconds."""
    program = f"import os, signal, sys, time\nfrom triform.training import stop as module\n{lines}"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for name, seconds in sent:
            time.sleep(seconds)
            process.send_signal(signal.Signals[f"SIG{name}"])
        return process.wait(WAIT)


LISTEN = """
stop = module.stop
try:
    with stop.listening():
        {body}
except module.Preempted:
    sys.exit(75)
"""
SLEEP = "print('ready', flush=True); time.sleep(50)"
HELD = (  # a mutex that nobody opens; unlike a sleep, no signal ends the wait for it
    "import ctypes; module.REACT_SECONDS = 0.3; mutex = ctypes.create_string_buffer(64); library = ctypes.CDLL(None);"
    "print('ready', flush=True); [library.pthread_mutex_lock(mutex) for _ in '12']"
)


@pytest.mark.parametrize("name", ["TERM", "USR1", "INT"])
def test_a_signal_raises_where_nothing_is_lost(name: str) -> None:
    assert do(LISTEN.format(body=SLEEP), (name, 0)) == 75


def test_a_signal_ends_a_library_call_that_does_not_return() -> None:
    assert do(LISTEN.format(body=HELD), ("TERM", 0)) == 75


def test_a_process_that_is_ended_has_last_words(tmp_path: Path) -> None:
    body = f"import pathlib; stop.last_words = pathlib.Path({str(tmp_path / 'said')!r}).touch; {HELD}"
    assert do(LISTEN.format(body=body), ("TERM", 0.6)) == 75
    assert (tmp_path / "said").exists()


def test_a_library_that_goes_on_after_any_error_does_not_go_on() -> None:
    body = "\n        ".join(["try:", f"    {SLEEP}", "except Exception: pass", "time.sleep(50)"])
    assert do(LISTEN.format(body=body), ("TERM", 0)) == 75


DEFERRED = "stop.defer(lambda: None); {before}; print('ready', flush=True); time.sleep({seconds}); os._exit(9)"


@pytest.mark.parametrize(
    ("before", "sent", "code"),
    [
        ("pass", [("TERM", 0)], 9),
        ("pass", [("TERM", 0), ("TERM", 0.2), ("USR1", 0.1)], 9),
        ("pass", [("TERM", 0), ("INT", 0.2)], 130),
        ("module.AGAIN_SECONDS = 0.1", [("TERM", 0), ("TERM", 0.4)], 75),
        ("module.AGAIN_SECONDS = 0.1; kept = stop.writing(); kept.__enter__()", [("TERM", 0), ("TERM", 0.4)], 9),
        ("module.AGAIN_SECONDS = 0.1; kept = stop.writing(); kept.__enter__()", [("TERM", 0), ("INT", 0.4)], 130),
        ("module.AGAIN_SECONDS = 0.1; stop.settle()", [("TERM", 0), ("USR1", 0.4)], 9),
    ],
    ids=["one", "copies", "Ctrl-C", "later", "while writing", "Ctrl-C while writing", "settled"],
)
def test_what_a_second_signal_does(before: str, sent: Sequence[tuple[str, float]], code: int) -> None:
    seconds = 1.5 if code == 9 else 50
    assert do(LISTEN.format(body=DEFERRED.format(before=before, seconds=seconds)), *sent) == code


def test_a_second_signal_ends_a_collective_without_a_partner() -> None:
    """The first one has only asked for a checkpoint: the main thread has not come to its handler yet."""
    body = f"stop.defer(lambda: None); module.AGAIN_SECONDS = 0.2; {HELD}"
    assert do(LISTEN.format(body=body), ("TERM", 0.1), ("TERM", 0.6)) == 75


def test_signals_to_a_forked_process_are_its_own() -> None:
    body = "\n        ".join(
        [
            "module.REACT_SECONDS = 0.2",
            "child = os.fork()",
            "if child == 0: time.sleep(50); os._exit(0)",
            "time.sleep(0.3); os.kill(child, signal.SIGTERM)",
            "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM",
            "print('ready', flush=True); time.sleep(0.6)",
            "sys.exit(8 if not stop.asked else 7)",
        ]
    )
    assert do(LISTEN.format(body=body)) == 8


def test_handlers_are_given_back() -> None:
    from triform.training.stop import stop

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]
    with stop.listening(), stop.listening():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)] == before
    assert not stop.asked


# Whole programs


def begin(folder: Path, *line: str) -> subprocess.Popen[str]:
    """Start a program in a process group of its own."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        line, cwd=folder, env=environment(), stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def listens(process: subprocess.Popen[str]) -> bool:
    """Whether a process handles SIGTERM."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def until(condition: Any, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 2 * WAIT
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def left(session: int) -> list[str]:
    """Command lines of the processes of a session that live."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except (OSError, ValueError):
            continue
    return found


def ended(process: subprocess.Popen[str], within: float) -> tuple[int, str]:
    """Exit code and standard error; nothing that it started is left, nor a half file."""
    began = time.monotonic()
    _, error = process.communicate(timeout=WAIT)
    assert time.monotonic() - began < within
    deadline = time.monotonic() + 10
    while left(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left(process.pid), "orphans"
    return process.returncode, error


def half_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.is_file() and path.name not in (".lock", ".failure")]


@pytest.mark.parametrize("name", ["TERM", "INT", pytest.param("USR1", marks=pytest.mark.slow)])
def test_a_signal_among_the_first_imports_ends_with_75(tmp_path: Path, name: str) -> None:
    process = begin(tmp_path, *COMMAND, "train", *TINY)
    until(lambda: listens(process), process)
    process.send_signal(signal.Signals[f"SIG{name}"])
    code, error = ended(process, 20)
    assert (code, error) == (75, "stopped before the run began\n")
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("fails", ["", "raise ImportError"])
def test_a_signal_within_an_import_raises_when_that_is_over(tmp_path: Path, fails: str) -> None:
    """C++ that a module begins with may end the process where Python raises."""
    (tmp_path / "inner.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nbehind = True\n")
    (tmp_path / "outer.py").write_text(f"import sys, inner\nsys.behind = inner.behind\n{fails}\n")
    (tmp_path / "program.py").write_text(
        "import sys\nfrom triform.training.stop import Preempted, stop\n"
        "try:\n    with stop.listening():\n        import outer\n        sys.exit(1)\n"
        "except Preempted:\n    sys.exit(3 if sys.behind and sys.getprofile() is None else 2)\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 3, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1, 2, 4, 6, 8, 10])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_signal_at_any_time_of_the_start(tmp_path: Path, seconds: float, devices: int) -> None:
    line = (sys.executable, str(TRAIN), *TINY, f"trainer.devices={devices}", "trainer.max_steps=100000")
    process = begin(tmp_path, *line, "trainer.save_interval=100000", "trainer.val_interval=null")
    until(lambda: listens(process), process)
    time.sleep(seconds)
    process.send_signal(signal.SIGTERM)
    code, error = ended(process, 20)
    assert code == 75, error
    assert "Traceback" not in error
    runs = list((tmp_path / "outputs").rglob("config.yaml"))
    for config in runs:
        assert json.loads((config.parent / "summary.json").read_text())["status"] == "preempted"
    assert not half_files(tmp_path)


# Phases of training


class Ask(Callback):
    """Sends this process a signal in a phase, on one rank or all (-1), but not when the run goes on."""

    def __init__(self, rank: int, place: str, count: int, signal: str) -> None:
        self.rank, self.place, self.left, self.signal = rank, place, count, signal
        self.resumed = False

    def _come(self, place: str) -> None:
        if place != self.place or self.rank not in (-1, rank()) or self.resumed:
            return
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.Signals[f"SIG{self.signal}"])

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._come("setup")

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        self.resumed = True

    def on_train_batch_start(self, *args: Any) -> None:
        self._come("step")

    def on_validation_batch_start(self, *args: Any, **keywords: Any) -> None:
        self._come("validation")

    def on_save_checkpoint(self, *args: Any) -> None:
        self._come("save")

    def on_test_batch_start(self, *args: Any, **keywords: Any) -> None:
        self._come("test")


def train(folder: RunFolder, again: bool = False) -> int:
    if again:
        return resume(folder, ["tests"])
    config = {**folder.read_config(), "trust": ["tests"]}
    return start(folder, config, own_data(folder, config), False, None)


def asked(tmp_path: Path, devices: int, rank: int, place: str, count: int, name: str) -> RunFolder:
    callback = (
        f"+callbacks.ask={{_target_: {__name__}.Ask, rank: {rank}, place: {place}, count: {count}, signal: {name}}}"
    )
    return make(tmp_path, "decoder", "trust=[tests]", f"trainer.devices={devices}", callback, "data.num_workers=0")


def step_of(folder: RunFolder) -> int | None:
    last = folder.checkpoints / "last.ckpt"
    return int(read_checkpoint(last)["progress"]["step"]) if last.exists() else None


CASES = [  # devices, rank, place, count, signal; steps at which there may be a checkpoint
    (1, 0, "setup", 1, "TERM", [None]),
    (1, 0, "step", 1, "INT", [None]),
    (1, 0, "validation", 2, "USR1", [5]),
    (1, 0, "save", 2, "TERM", [6, 5]),  # a validation follows step 5; that of step 3 is the first save
    (1, 0, "test", 1, "TERM", [12]),
    (2, 1, "setup", 1, "TERM", [None]),
    (2, 0, "step", 1, "TERM", [None]),
    (2, 1, "step", 9, "USR1", [5]),
    (2, 1, "validation", 1, "TERM", [5]),
    (2, 0, "save", 2, "INT", [5, 6]),
    (2, 1, "test", 1, "TERM", [12]),
    (2, -1, "validation", 2, "TERM", [5]),
]
FAST = {(1, "setup"), (1, "validation"), (2, "setup"), (2, "validation"), (2, "test")}


@pytest.mark.parametrize(
    ("devices", "rank", "place", "count", "name", "steps"),
    [
        pytest.param(*case, marks=[] if (case[0], case[2]) in FAST and case[1] != -1 else [pytest.mark.slow])
        for case in CASES
    ],
)
def test_a_signal_in_any_phase_on_any_rank(
    tmp_path: Path,
    devices: int,
    rank: int,
    place: str,
    count: int,
    name: str,
    steps: list[int | None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = asked(tmp_path, devices, rank, place, count, name)
    began = time.monotonic()
    assert start_all([{}], train, (folder,)) == 75
    assert time.monotonic() - began < 2 * WAIT
    said = capfd.readouterr().err
    assert "error" not in said
    assert "Traceback" not in said
    assert json.loads(folder.summary.read_text())["status"] == "preempted"
    assert step_of(folder) in steps
    assert not half_files(folder.path)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "place"), [(1, "step"), (0, "validation"), (1, "save")])
def test_two_ranks_of_which_one_was_asked_go_on_bitwise(tmp_path: Path, rank: int, place: str) -> None:
    from tests.training.runs import differences

    (tmp_path / "asked").mkdir()
    (tmp_path / "whole").mkdir()
    folder = asked(tmp_path / "asked", 2, rank, place, 3, "TERM")
    assert start_all([{}], train, (folder,)) == 75
    assert start_all([{}], train, (folder, True)) == 0
    whole = asked(tmp_path / "whole", 2, rank, "nowhere", 3, "TERM")
    assert start_all([{}], train, (whole,)) == 0
    assert json.loads(folder.summary.read_text())["status"] == "finished"
    assert not differences(outcome(whole), outcome(folder))


# torchrun


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["torchrun", "rank"])
@pytest.mark.parametrize("step", [0, 3])
def test_under_torchrun(tmp_path: Path, whom: str, step: int) -> None:
    command = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", str(TRAIN))
    process = begin(tmp_path, *command, *TINY, "trainer.max_steps=100000", "trainer.save_interval=100000")

    def reached() -> bool:
        rows = [row for file in tmp_path.rglob("metrics.csv") for row in file.read_text().splitlines()[1:]]
        return bool(list(tmp_path.rglob("config.yaml"))) if step == 0 else len(rows) >= step

    until(reached, process)
    if whom == "torchrun":
        process.send_signal(signal.SIGTERM)
    else:
        ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(ranks[-1]), signal.SIGTERM)
    code, error = ended(process, 50)
    assert code != 0
    (summary,) = tmp_path.rglob("summary.json")
    assert json.loads(summary.read_text())["status"] == "preempted", error
    assert bool(list(tmp_path.rglob("last.ckpt"))) or step == 0
    assert not half_files(tmp_path)
