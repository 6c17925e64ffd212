"""The figures of README.md, measured here, as Markdown: `make bench`.

    python benchmarks/table.py [PART ...]

Runs each benchmark in short form, one after the other, and prints what it says under the command that repeats it; at
its head the machine. Rounds are few: figures that are near a bound want the benchmark itself, with more of them. Parts
are the names below; without any, all. One that fails is named, and the exit code is 1.
"""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

PARTS = {
    "speed": ("--rounds", "2", "--seconds", "1"),
    "generation": ("--rounds", "1"),
    "overhead": ("3",),
    "start": ("2",),
    "sweep": (),
    "data": ("8", "bpe"),
}


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main(names: list[str]) -> int:
    begun = time.perf_counter()
    print(
        f"Measured on {processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads; "
        f"Python {platform.python_version()}, torch {torch.__version__}.",
        flush=True,
    )
    failed = []
    for name in names or PARTS:
        command = [str(Path("benchmarks", f"{name}.py")), *PARTS[name]]
        print(f"\n`python {' '.join(command)}`\n", flush=True)
        done = subprocess.run(
            [sys.executable, *command], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True
        )
        for line in done.stdout.splitlines():
            is_own = not line or line.startswith("|")  # a table is one as it stands; of other lines each is an item
            print(line if is_own else f"- {line.strip()}", flush=True)
        if done.returncode:
            failed.append(name)
    print(f"\n{time.perf_counter() - begun:.0f} s in all" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
