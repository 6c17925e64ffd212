"""`triform train ...`, the same as `python train.py ...`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from triform.run import main as run

if TYPE_CHECKING:
    from triform.run.folder import RunFolder


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what `arguments` (default: this process's own) say, and report; returns the exit code."""
    return run(arguments, finish)


def finish(folder: "RunFolder", trust: Sequence[str]) -> None:
    """See `triform.analysis.finish`, which is imported when there is something to report."""
    from triform.analysis.finish import finish

    finish(folder, trust)
