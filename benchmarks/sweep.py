"""What a sweep adds to the training of its jobs: 20 tiny ones, without W&B.

A job's training is the time that its own record gives to steps and validations; its pictures and samples are not part
of it. Prints seconds in all and for each job; the aim is under 20 s beyond training for 20 jobs on a quiet machine.
Seconds of processors, of all processes together, say what it costs where other work makes each second longer (Linux).
"""

import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

N_JOBS = 20
TRAIN = Path(__file__).resolve().parents[1] / "train.py"
TINY = (
    *("data.n_train=200", "data.n_validation=20", "data.n_test=20", "data.batch_size=10"),
    *("model.d_model=16", "model.n_heads=2", "model.n_layers=1", "model.d_ff=24"),
    *("trainer.max_steps=20", "trainer.val_interval=10", "logger=csv", "hydra.launcher.jobs=1"),
)


ADOPTS = 36
"""PR_SET_CHILD_SUBREAPER of prctl: what outlives its parent, as the server of the jobs does, is ours to wait for."""


def main() -> None:
    ctypes.CDLL(None).prctl(ADOPTS, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as folder:
        words = [*TINY, f"seed=range({N_JOBS})", f"paths.outputs={folder}"]
        begun = time.perf_counter()
        done = subprocess.run([sys.executable, str(TRAIN), "-m", *words], capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - begun
        wait_for_all()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        sweep = next(Path(folder, "sweeps").iterdir())
        jobs = json.loads((sweep / "manifest.json").read_text())["jobs"]
        trained = sum(json.loads((sweep / str(job["number"]) / "summary.json").read_text())["seconds"] for job in jobs)
        running = sum(job["seconds"] for job in jobs)
    print(done.stdout.splitlines()[-1])
    print(f"{N_JOBS} jobs, one after the other: {seconds:.1f} s, of which {trained:.1f} s training")
    print(f"beyond training: {seconds - trained:.1f} s; before and after the jobs: {seconds - running:.1f} s")
    print(f"of processors, training included: {used.ru_utime + used.ru_stime:.1f} s, on {os.cpu_count()} cores")
    print(f"of each job beyond its training, its pictures and samples included: {(running - trained) / N_JOBS:.2f} s")


def wait_for_all() -> None:
    """Until no process is left: only then is its time counted."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
