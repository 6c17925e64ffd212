"""What went wrong, in one line on standard error."""

import sys
import sysconfig
import traceback as tracebacks
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from triform.training.codes import BAD_INPUT, FAILED
from triform.training.secrets import hidden


class BadInput(ValueError):
    """The user's input was refused: what it was, where it stands (config key or file), what to do."""


def nearest(word: str, names: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the name closest to `word`; empty when none resembles it."""
    names = [str(name) for name in names]
    by_lower = {name.lower(): name for name in names}
    close = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.55)
    return f" (did you mean '{by_lower[close[0]]}'?)" if close else ""


def show(value: Any) -> str:
    """A value as it is typed; a text that looks like another value stands in quotes."""
    if value is None:
        return "null"
    if isinstance(value, str) and (value.lower() in ("null", "true", "false") or _is_number(value)):
        return f"'{value}'"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def one_line(error: BaseException) -> str:
    """An exception's message without its line breaks and without secrets: it is printed, and kept in files."""
    return hidden(" ".join(str(error).split())) or type(error).__name__


def place(error: BaseException) -> str | None:
    """File and line that an exception comes from: the innermost ones of triform's or the user's own code."""
    ours = str(Path(__file__).resolve().parents[1])
    theirs = [*(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")), "<"]
    frames = [
        frame
        for frame in tracebacks.extract_tb(error.__traceback__)
        if frame.filename.startswith(ours) or not frame.filename.startswith(tuple(theirs))
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def report(error: BaseException, traceback: bool = False) -> int:
    """Print `error` in one line, after its traceback where asked for, and return the exit code it means.

    A `ValueError` is bad input, as is everything that the operating system refuses for a path the user gave;
    anything else is a failure of the run.
    """
    if traceback:
        tracebacks.print_exception(error)
    bad_input = isinstance(error, ValueError)
    kind = "" if bad_input else f"{type(error).__name__}: "
    hint = "" if bad_input or traceback else " (traceback=true shows where)"
    print(f"error: {kind}{one_line(error)}{hint}", file=sys.stderr, flush=True)
    return BAD_INPUT if bad_input else FAILED
