"""A run that makes no progress ends, and says where each of its ranks was."""

import faulthandler
import json
import os
import sys
import sysconfig
import threading
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from triform.training.codes import DOSSIER, FAILED, FIRST_ERROR
from triform.training.hardware import rank
from triform.training.record import Summary
from triform.training.spans import spans

STUCK = "stuck"
"""File in failure/ by which a rank that makes no progress has the others write down where they are, too."""

GATHER_SECONDS = 10.0
"""Time in which the stacks of all ranks come together before the first one ends, which ends the others."""

HELD_SECONDS = 30.0
"""Time beyond the limit after which a rank is ended whose interpreter itself does not run."""


AFTER_SECONDS = 60.0
"""Time beyond the limit after which ranks give up waiting for each other: the watchdog comes first, and says more."""


def patience(timeout: float | None) -> timedelta:
    """How long ranks wait in a collective; torch's own 10 minutes of NCCL would end a run before `trainer.timeout`.

    Args:
        timeout: of the watchdog in seconds; None: there is none, and they wait for a month.
    """
    return timedelta(days=30) if timeout is None else timedelta(seconds=timeout + AFTER_SECONDS)


class Watchdog(Callback):
    """Ends the run's processes when a rank has finished no batch for so long, with the Python stack of every rank.

    The stacks are in failure/stack.rank0.txt and so on in the run's folder. All ranks of a run share that folder; the
    one that is stuck holds the others, so that all would notice at about the same time. Compiling, loading and saving
    count as no progress while they last.

    Args:
        folder: of the run.
        timeout: seconds, above 0.

    Raises:
        ValueError: `timeout` is not above 0.
    """

    def __init__(self, folder: Path, timeout: float) -> None:
        if not timeout > 0:
            raise ValueError(f"Watchdog: timeout={timeout} is not above 0; set trainer.timeout to seconds, or null")
        self.folder, self.timeout = folder / DOSSIER, timeout
        self._progress, self._what = time.monotonic(), "its start"
        self._main = threading.main_thread().ident
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Watchdog":
        (self.folder / STUCK).unlink(missing_ok=True)
        self._progress = time.monotonic()
        self._over.clear()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def progress(self, what: str) -> None:
        """The process has done something."""
        self._progress, self._what = time.monotonic(), what

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.progress(f"step {trainer.global_step}")

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **keywords: Any) -> None:
        self.progress(f"validation after step {trainer.global_step}")

    def on_test_batch_end(self, trainer: Trainer, *args: Any, **keywords: Any) -> None:
        self.progress("the test")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.progress(f"step {trainer.global_step}, while saving")

    def _watch(self) -> None:
        poll = min(self.timeout / 4, 5.0)
        log = self._stack_file()
        with log.open("w", encoding="utf-8") as held:
            try:
                while not self._over.wait(poll):
                    # A thread of the system's that needs no interpreter; put off as long as this one runs.
                    faulthandler.dump_traceback_later(self.timeout + HELD_SECONDS, file=held, exit=True)
                    passed = time.monotonic() - self._progress
                    told = (self.folder / STUCK).exists()
                    if passed >= self.timeout or told:
                        self._end(held, passed, told)
            finally:
                faulthandler.cancel_dump_traceback_later()
        log.unlink(missing_ok=True)
        with suppress(OSError):  # another rank's file, or one about a failure, is in it
            self.folder.rmdir()

    def _stack_file(self) -> Path:
        self.folder.mkdir(exist_ok=True)
        return self.folder / f"stack.rank{rank()}.txt"

    def _end(self, file: Any, passed: float, told: bool) -> None:
        where = place(sys._current_frames().get(self._main or 0))
        file.write(f"rank {rank()}, {passed:.0f} s after {self._what}, is at {where}\n\n")
        file.flush()
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.flush()
        os.fsync(file.fileno())
        try:
            (self.folder / STUCK).touch(exist_ok=told)
            first = not told
        except FileExistsError:  # another rank has noticed at the same time
            first = False
        world = int(os.environ.get("WORLD_SIZE", "1"))
        deadline = time.monotonic() + (GATHER_SECONDS if world > 1 else 0)
        while time.monotonic() < deadline and len(self._places()) < world:
            time.sleep(0.1)
        if first:
            error = (
                f"no progress for {passed:.0f} s (trainer.timeout={self.timeout:g}) after {self._what}: {self._said()}"
            )
            known = self.folder.parent / FIRST_ERROR  # before the others lose a partner and say so
            known.write_text(json.dumps({"error": error, "rank": rank()}), encoding="utf-8")
            Summary(self.folder.parent / "summary.json", status="failed", error=error)
            print(f"error: {error}; stacks in {self.folder}", file=sys.stderr, flush=True)
        os._exit(FAILED)

    def _places(self) -> dict[int, str]:
        """Where the ranks are that have written it down."""
        found = {}
        for file in self.folder.glob("stack.rank*.txt"):
            line = file.read_text(encoding="utf-8").partition("\n")[0]
            if line.startswith("rank "):
                found[int(line.split()[1].rstrip(","))] = line.partition(" is at ")[2]
        return found

    def _said(self) -> str:
        """Places with their ranks, the rarest first: most wait where they are for the one that is stuck elsewhere."""
        ranks: dict[str, list[int]] = {}
        for number, where in sorted(self._places().items()):
            ranks.setdefault(where, []).append(number)
        rare = sorted(ranks.items(), key=lambda one: len(one[1]))[:3]
        return ", ".join(f"rank {spans(numbers)} at {where}" for where, numbers in rare)


def place(frame: FrameType | None) -> str:
    """File, line and function of the innermost frame that is neither Python's nor a package's own."""
    if frame is None:
        return "an unknown place"
    ours = str(Path(__file__).resolve().parents[1])
    theirs = (*(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")), "<")
    stack = traceback.extract_stack(frame)
    known = [one for one in stack if one.filename.startswith(ours) or not one.filename.startswith(theirs)]
    last = (known or stack)[-1]
    return f"{last.filename}:{last.lineno} ({last.name})"
