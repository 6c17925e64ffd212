"""What going on far into a stream costs, in processor seconds, so that a busy machine does not change it.

    RAYON_NUM_THREADS=1 python benchmarks/streaming.py [MEGABYTES [FILE ...]]

The text is the files' (default: the standard library's code) over and over, each line with its number, written to a
temporary folder: plain, which can be read from anywhere, and a tenth of it by gzip, which cannot.
"""

import gzip
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TypeVar

from triform.data.corpus import MB, Position
from triform.data.sources.stdlib import python_files
from triform.data.sources.streamed import Streamed
from triform.data.sources.text import TextFiles
from triform.data.streaming import tokenised
from triform.data.tokenizers import BPE

WINDOW = 8 * MB
Result = TypeVar("Result")


def timed(what: str, make: Callable[[], Result]) -> Result:
    start = time.process_time()
    result = make()
    print(f"{what}: {time.process_time() - start:.3f} s", flush=True)
    return result


def write(path: Path, n_bytes: int, files: list[str]) -> None:
    packed = [Path(name).read_bytes() for name in files]
    texts = [gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data for data in packed]
    lines = b"".join(texts or [text.encode() for text in python_files().values()]).split(b"\n")
    number, left = count(), n_bytes
    with path.open("wb") as file:
        while left > 0:
            left -= file.write(b"".join(b"%d %s\n" % (next(number), line) for line in lines))


def source(path: Path) -> Streamed:
    return Streamed(TextFiles(str(path), str(path), None, 0.1, "utf-8", None), 1)


def main(megabytes: float, files: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        plain, packed = Path(name) / "x.txt", Path(name) / "x.txt.gz"
        write(plain, int(megabytes * MB), files)
        timed(f"{megabytes:g} MB of plain text are known again", source(plain).fingerprint)
        corpus = timed("opened", lambda: source(plain).corpus(WINDOW, 3))
        window = next(corpus.windows(Position(2, 0, 0)))
        middle = Position(2, 0, int(megabytes * MB / WINDOW) // 2)
        passages = timed(
            "a window in the middle of epoch 2 found and read", lambda: next(corpus.windows(middle)).read()
        )
        tokenizer = BPE(4096, lowercase=False).train(iter([passage.text for passage in passages[:8]]))
        tokens = timed("a window of 8 MB tokenised (BPE of 4096)", lambda: tokenised(window, tokenizer)).tokens
        print(f"of {len(tokens):,} tokens")
        with plain.open("rb") as file, gzip.open(packed, "wb", 1) as out:
            out.write(file.read(int(megabytes * MB / 10)))
        last = Position(0, 0, max(int(megabytes * MB / 10 / WINDOW) - 2, 0))
        timed(
            f"gzip: a window after {last.window * WINDOW / MB:g} MB found",
            lambda: next(source(packed).corpus(WINDOW, 3).windows(last)),
        )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 100, sys.argv[2:])
