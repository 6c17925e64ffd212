"""Being asked to stop by a signal, from a program's first import to its last write. Imports nothing that takes time."""

import atexit
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from triform.training.codes import PREEMPTED, SIGNALS

REACT_SECONDS = 5.0
"""Time that a library's own code gets to return in, when there is nothing to save: then the process is ended in it."""

AGAIN_SECONDS = 5.0
"""A signal that follows the first one sooner is a copy of it: schedulers and launchers send it to a process, to its
group and through its parent. Later it is meant."""


class Preempted(BaseException):
    """A signal asked to stop. Raised at a step's end, with a checkpoint, or outside training, where none is due.

    No `Exception`, as `KeyboardInterrupt` is none: libraries that go on after any error do not go on after this.
    """


class Stop:
    """What a process does when SIGTERM, SIGUSR1 or SIGINT asks it to stop; there is one, `stop`.

    The first signal raises `Preempted` where it arrives or, where work would be lost (`defer`), asks for an end.
    A second Ctrl-C ends the process at once, exit code 130. Any other second signal does so with 75, but not within
    `AGAIN_SECONDS` of the first and not while a checkpoint is written (`writing`). After `settle` only Ctrl-C counts.

    While a module is imported nothing is raised, but when it has been: libraries whose initialisation in C++ calls
    Python end the process by SIGABRT where that raises (torch.distributed does).

    Python runs handlers between two instructions of its own only. A thread therefore hears signals too, and ends the
    process where the main thread is held in a library's code (a collective without a partner, the training of a
    tokenizer) and there is nothing to save, or a second signal forces it.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        self._defer: Callable[[], None] | None = None
        self._writing = 0
        self._settled = self._elsewhere = self._importing = False
        self._heard = threading.Event()
        self._depth = 0
        self._before: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._wakeup = -1
        self.last_words: Callable[[], None] = lambda: None
        """Called, perhaps by another thread than the main one, before the process is ended with 75 where it is."""
        os.register_at_fork(after_in_child=self._forget)

    @property
    def asked(self) -> bool:
        """Whether this process has been asked to stop."""
        return self._heard.is_set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Meanwhile signals ask to stop; may be nested. Only the main thread may decide that: in others, nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        if self._depth == 0:
            self._begin()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._end()

    def defer(self, ask: Callable[[], None] | None) -> None:
        """Call `ask`, once, in place of raising; None: raise again. One that has come before is asked for at once."""
        self._defer = ask
        if ask is not None and self.asked:
            ask()

    def settle(self) -> None:
        """What was asked for is done: until the process has ended, further signals but Ctrl-C change nothing."""
        self._settled = True

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Meanwhile a second signal ends nothing, but Ctrl-C."""
        self._writing += 1
        try:
            yield
        finally:
            self._writing -= 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile a signal waits, for `check`."""
        before, self._defer = self._defer, lambda: None
        try:
            yield
        finally:
            self._defer = before

    def check(self) -> None:
        """Raise what a signal that has come would have raised, where one was held or a library went on after it."""
        if self.asked:
            raise Preempted

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Meanwhile somebody else handles signals."""
        before, self._elsewhere = self._elsewhere, True
        try:
            yield
        finally:
            self._elsewhere = before

    def wait(self, seconds: float) -> bool:
        """Whether the process is asked to stop within that time, without raising."""
        with self.held():
            return self._heard.wait(seconds)

    def _begin(self) -> None:
        self._first, self._defer, self._settled = None, None, False
        self._heard.clear()
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._ask)
        threading.Thread(target=self._listen, args=(self._pipe[0],), name="signals", daemon=True).start()

    def _end(self) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        assert self._pipe is not None
        os.close(self._pipe[1])  # which ends the thread
        if self.asked:
            atexit.register(_leave_alone)
        self._pipe, self._defer = None, None

    def _forget(self) -> None:
        """In a forked process, such as one that maps over data: its signals are its own."""
        if self._pipe is not None:
            signal.set_wakeup_fd(-1)
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            self._pipe = None

    def _ask(self, number: int, frame: Any) -> None:
        if self._heard.is_set():
            self._force(number)
            return
        self._first = self._first or time.monotonic()
        self._heard.set()
        outermost = _import(frame) if self._defer is None else None
        if outermost is None:
            self._answer()
            return
        self._importing, before = True, sys.getprofile()

        def watch(frame: Any, event: str, argument: Any) -> None:
            if event == "return" and frame is outermost:
                sys.setprofile(before)
                self._importing = False
                self._answer()

        sys.setprofile(watch)

    def _answer(self) -> None:
        if self._defer is None:
            raise Preempted
        self._defer()

    def _force(self, number: int) -> None:
        """End the process, if a signal after the first one is meant to."""
        if number == signal.SIGINT:
            os._exit(128 + number)
        late = self._first is not None and time.monotonic() - self._first >= AGAIN_SECONDS
        if late and not self._writing and not self._settled:
            self._leave()

    def _leave(self) -> None:
        """End the process, which the main thread does not."""
        with suppress(Exception):
            self.last_words()
        os._exit(PREEMPTED)

    def _listen(self, pipe: int) -> None:
        """Hear signals while the main thread may be held."""
        seen, deadline = False, float("inf")
        while True:
            left = None if deadline == float("inf") else max(deadline - time.monotonic(), 0.0)
            ready, _, _ = select.select([pipe], [], [], left)
            if not ready:
                if (not self.asked or self._importing) and not self._elsewhere:  # the main thread has not come by
                    self._leave()
                deadline = float("inf")
                continue
            numbers = os.read(pipe, 64)
            if not numbers:
                os.close(pipe)
                return
            for number in numbers:
                if number not in SIGNALS or self._elsewhere or signal.getsignal(number) != self._ask:
                    continue
                if seen:
                    self._force(number)
                elif self._defer is None:
                    deadline = time.monotonic() + REACT_SECONDS
                self._first, seen = self._first or time.monotonic(), True


def _import(frame: Any) -> Any:
    """The outermost import that a frame is in; None: there is none."""
    found = None
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            found = frame
        frame = frame.f_back
    return found


def _leave_alone() -> None:
    """Let no copy of the signal that this process ends for change its exit code while it does.

    srun sends SIGTERM to the other ranks as soon as the first one has ended.
    """
    for number in set(SIGNALS) - {signal.SIGINT}:
        signal.signal(number, signal.SIG_IGN)


stop = Stop()
