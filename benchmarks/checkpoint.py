"""What a checkpoint costs: its hash, and what training waits for.

    python benchmarks/checkpoint.py [MEGABYTES] [ROUNDS]

Printed are the medians over rounds that take turns: hashing a file of that size; writing it as torch.save does, synced;
writing it sealed; what training waits for when it is written beside it (the copy); reading it as torch.load does;
reading it checked.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from triform.training.saving import LAST, AtomicCheckpointIO, read_checkpoint
from triform.training.sealed import check


def main(megabytes: int, rounds: int) -> None:
    content = {"state_dict": {f"w{i}": torch.randn(megabytes * 12_500) for i in range(20)}, "progress": {"step": 1}}
    with tempfile.TemporaryDirectory() as folder:
        path, plain = Path(folder) / LAST, Path(folder) / "plain.pt"
        beside = AtomicCheckpointIO(asynchronous=True)

        def write_plain() -> None:
            with plain.open("wb") as file:
                torch.save(content, file)
                os.fsync(file.fileno())

        works: dict[str, Callable[[], object]] = {
            "torch.save and sync": write_plain,
            "sealed, waited for": lambda: AtomicCheckpointIO(asynchronous=False).save_checkpoint(content, path),
            "sealed, beside training": lambda: beside.save_checkpoint(content, path),
            "torch.load": lambda: torch.load(plain, weights_only=True),
            "checked and loaded": lambda: read_checkpoint(path),
            "checked": lambda: check(path),
        }
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(rounds):
            for name, work in works.items():
                began = time.perf_counter()
                work()
                seconds[name].append(time.perf_counter() - began)
                beside.wait()
        for name, found in seconds.items():
            print(f"{name:24} {statistics.median(found):6.2f} s  ({megabytes / statistics.median(found):5.0f} MB/s)")


if __name__ == "__main__":
    main(*[int(word) for word in [*sys.argv[1:], *("500", "3")[len(sys.argv) - 1 :]]])
