"""How long one waits: for the help page, and for the first training step of a small run.

    python benchmarks/start.py [ROUNDS]

Each is a fresh process; what it reads from disk has been read before. The run is `train.py` with its defaults, W&B
offline, on a model of width 16 and 200 dates; data are prepared anew, as for a first run. Medians over rounds.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
TINY = (
    *("data.n_train=200", "data.n_validation=20", "data.n_test=20", "data.batch_size=10"),
    *("model.d_model=16", "model.n_heads=2", "model.n_layers=1", "model.d_ff=24"),
    *("trainer.max_steps=2", "trainer.log_interval=1"),
)


def help_page() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, str(TRAIN), "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def first_step() -> float:
    """Seconds until the first step stands in the run's record."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, str(TRAIN), *TINY, f"paths.outputs={folder}"],
            env=os.environ | {"WANDB_MODE": "offline"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        found = 0.0
        while process.poll() is None:
            records = [file.read_text().count("\n") for file in Path(folder).glob("*/*/metrics.csv")]
            if not found and records and records[0] > 1:
                found = time.perf_counter() - begun
            time.sleep(0.01)
        assert process.returncode == 0
        assert found
    return found


def main(rounds: int) -> None:
    print(f"train.py --help: {statistics.median(help_page() for _ in range(rounds)):.2f} s")
    print(f"first training step: {statistics.median(first_step() for _ in range(rounds)):.1f} s", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
