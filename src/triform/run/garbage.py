"""When Python looks for garbage: not while much is imported, which takes a fifth less time so."""

import gc


def look_again() -> None:
    """From now on, if it was told not to; what has been imported by now is none."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
