"""What preparing a large text costs: memory, speed beside the tokenizer alone, and the second start.

    python benchmarks/prepare.py [MEGABYTES] [ROUNDS]

The text is the standard library's code over and over. The tokenizer alone encodes the same pieces in one batch; it and
`write_tokens` take turns, so that a busy machine slows both. Targets: at most 500 MB with what a run imports, at least
90 % of the tokenizer's speed, at most 2 seconds for the second start.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lightning.pytorch  # noqa: F401  a run has it in memory, too
import numpy as np

from triform.data.prepare import Prepared, prepare
from triform.data.sources.files import RACY
from triform.data.sources.text import TextFiles
from triform.data.tokenise import cut, write_tokens
from triform.data.tokenizers import BPE

VOCABULARY = 4096
N_BYTES = 4_000_000  # that are encoded in turns
WRITE = """
import sys
from triform.data.sources.stdlib import python_files

left, texts = int(sys.argv[2]) * 10**6, [text.encode() for text in python_files().values()]
with open(sys.argv[1], "wb") as file:
    while left > 0:
        for text in texts:
            left -= file.write(text) if left > 0 else 0
"""


def peak() -> float:
    """Most memory that this process has had, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def timed(path: Path, cache: Path) -> tuple[Prepared, float]:
    start = time.perf_counter()
    prepared = prepare(
        TextFiles(str(path), None, None, 0.05, "utf-8", None), BPE(VOCABULARY), cache, sys.stderr.isatty()
    )
    return prepared, time.perf_counter() - start


def share_of_speed(prepared: Prepared, folder: Path, rounds: int) -> float:
    """The tokenizer's seconds over those of `write_tokens`."""
    text = bytes(prepared.splits["train"].utf8["text"].flat[:N_BYTES]).decode(errors="ignore").encode()
    (folder / "x.utf8").write_bytes(text)
    np.array([len(text)], dtype=np.int64).tofile(folder / "x.utf8_ends")
    pieces = [piece.text for piece in cut(folder / "x.utf8")]
    alone, written = 0.0, 0.0
    for _ in range(rounds):
        start = time.perf_counter()
        prepared.tokenizer.backend.encode_batch_fast(pieces, add_special_tokens=False)
        alone += time.perf_counter() - start
        start = time.perf_counter()
        write_tokens(folder / "x", prepared.tokenizer, "uint16", True, lambda n: None)
        written += time.perf_counter() - start
    return alone / written


def main(megabytes: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "large.txt"
        # By another process: what it takes to make the text is no cost of preparing it.
        subprocess.run([sys.executable, "-c", WRITE, str(path), str(megabytes)], check=True)
        time.sleep(RACY)
        before = peak()
        prepared, seconds = timed(path, folder / "cache")
        print(f"{megabytes} MB of text: {seconds:.0f} s, {megabytes / seconds:.2f} MB/s on {os.cpu_count()} cores")
        print(f"memory: at most {peak():.0f} MB, {peak() - before:.0f} MB more than before")
        print(f"second start: {timed(path, folder / 'cache')[1]:.2f} s")
        print(f"tokens are written at {share_of_speed(prepared, folder, rounds):.0%} of the tokenizer's own speed")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]), *(64, 5)[len(sys.argv) - 1 :])
