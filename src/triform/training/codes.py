"""How a run ends, and what asks it to. Imports nothing that takes time."""

import signal

FINISHED, FAILED, BAD_INPUT, PREEMPTED = 0, 1, 2, 75
"""Exit codes; 75 is EX_TEMPFAIL of sysexits.h: the same run can go on."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""They ask a run to save a checkpoint and end."""

POLICIES = ("stop", "skip")
"""What a run may do about a step whose numbers are not finite."""

FIRST_ERROR = ".failure"
"""File in a run's folder: the error that comes first, while the run is not resumed."""

DOSSIER = "failure"
"""Folder in a run's folder: what there is to know about a failure."""
