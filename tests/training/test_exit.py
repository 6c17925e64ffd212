"""The end of a process that was asked to stop."""

import signal
import subprocess
import sys

PROGRAM = """
import atexit, os, signal, sys, time
from triform.training.stop import Preempted, stop

def late():
    print("ends", flush=True)
    time.sleep(1)

atexit.register(late)
try:
    with stop.listening():
        os.kill(os.getpid(), signal.{name})
        time.sleep(50)
except Preempted:
    sys.exit(75)
"""


def test_a_copy_of_the_signal_does_not_change_how_it_ends() -> None:
    """As srun sends it to a rank that ends after another one."""
    for name in ("SIGUSR1", "SIGTERM"):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format(name=name)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ends\n"
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=30)
        assert (process.returncode, error) == (75, "")
