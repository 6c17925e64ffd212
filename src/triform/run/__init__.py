"""One run: compose its config, check it, give it a folder, start its ranks."""

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triform.run.folder import Finish


def main(arguments: Sequence[str] | None = None, finish: "Finish | None" = None) -> int:
    """Do what `python train.py ARGUMENTS` says (default: this process's own) and return the exit code.

    0 finished, 1 failed, 2 bad input, 75 preempted.

    Args:
        finish: called with the folder of a run that has finished.
    """
    from triform.run.cli import main

    collects = gc.isenabled()
    gc.disable()  # until training begins: a fifth of the time of importing goes into looking for garbage
    try:
        return main(arguments, finish)
    finally:
        if collects:
            gc.enable()
