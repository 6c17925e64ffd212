"""What a large text costs, from the file to the batches: memory, speed, the second start, going on far into it.

    python benchmarks/data.py [MEGABYTES [TOKENIZER [FILE ...]]]

The text is the files' (default: the standard library's code) over and over, each line with its number, so that no two
are equal; it is written to a temporary folder, as is what is prepared of it. Each figure is of a process of its own.
Memory is that of a process and all that it starts (proportional set size, so that shared pages count once). Tokenizer
alone and `write_tokens` take turns on the same pieces, as do the loader and steps of the default model, so that a busy
machine slows both.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WRITE = """
import gzip, itertools, sys
from pathlib import Path
from triform.data.sources.stdlib import python_files

path, left, *names = sys.argv[1:]
packed = [Path(name).read_bytes() for name in names]
texts = [gzip.decompress(data) if data[:2] == b"\\x1f\\x8b" else data for data in packed]
lines = b"".join(texts or [text.encode() for text in python_files().values()]).split(b"\\n")
left, number = int(float(left) * 10**6), itertools.count()
with open(path, "wb") as file:
    while left > 0:
        left -= file.write(b"".join(b"%d %s\\n" % (next(number), line) for line in lines)[:left])
"""

IMPORT = """
import time
import lightning.pytorch
from triform.data.prepare import prepare
from triform.data.tokenizers import BPE
time.sleep(2)
"""

PREPARE = """
import json, sys, time
from pathlib import Path
import lightning.pytorch
from triform.data.prepare import prepare
from triform.data.sources.text import TextFiles
from triform.data.tokenizers import BPE, Byte

path, name = sys.argv[1:]
start = time.perf_counter()
source = TextFiles(path, None, None, 0.001, "utf-8", None)
made = prepare(source, {"bpe": BPE(4096, lowercase=False), "byte": Byte()}[name], Path(path).parent / "cache", False)
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "tokens": len(made.splits["train"].tokens), "folder": str(made.folder)}))
"""

OPEN = """
import json, sys, time
from pathlib import Path
import numpy as np
from triform.data.module import DataModule
from triform.data.order import Order
from triform.data.prepare import Prepared

def collate(examples, keys):
    return {"keys": keys}

prepared = Prepared.open(Path(sys.argv[1]))
start = time.perf_counter()
data = DataModule(prepared, collate, 128, 32, None, 0, 1, 1)
opened = time.perf_counter() - start
step = 10_000_000 // 32
data.total_steps = step + 10
data.trainer = type("At", (), {"global_step": step, "distributed_sampler_kwargs": None})()
start = time.perf_counter()
next(iter(data.train_dataloader()))
gone_on = time.perf_counter() - start
start = time.perf_counter()
Order(np.broadcast_to(np.int64(128), (12_000_000, 1)), 32, None, 1).batch(step)
far = time.perf_counter() - start
print(json.dumps({"open": opened, "go on": gone_on, "far": far, "rows": data.order.n_rows}))
"""

SPEED = """
import json, sys, tempfile, time
from pathlib import Path
import numpy as np
from triform.data.prepare import Prepared
from triform.data.tokenise import cut, write_tokens

prepared, rounds = Prepared.open(Path(sys.argv[1])), 5
text = bytes(prepared.splits["train"].utf8["text"].flat[:4_000_000]).decode(errors="ignore").encode()
with tempfile.TemporaryDirectory() as name:
    stem = Path(name) / "x"
    Path(f"{stem}.utf8").write_bytes(text)
    np.array([len(text)], dtype=np.int64).tofile(f"{stem}.utf8_ends")
    pieces = [piece.text for piece in cut(Path(f"{stem}.utf8"))]
    alone = written = 0.0
    for _ in range(rounds):
        start = time.perf_counter()
        prepared.tokenizer.backend.encode_batch(pieces, add_special_tokens=False)
        alone += time.perf_counter() - start
        start = time.perf_counter()
        write_tokens(stem, prepared.tokenizer, "uint16", True, lambda n: None)
        written += time.perf_counter() - start
print(json.dumps({"share": alone / written, "MB/s": len(text) * rounds / written / 1e6}))
"""

LOADER = """
import json, sys, time
import torch
from triform.run.compose import compose
from triform.run.job import checked, settled
from triform.run.parts import parts

config = settled(compose(sys.argv[1:]))
made = parts(config, checked(config))
made.data.total_steps = 10**6
batches, model, n = iter(made.data.train_dataloader()), made.model_factory(), 20
model.initialise(0)
loading = stepping = 0.0
for i in range(n + 1):
    start = time.perf_counter()
    batch = next(batches)
    loading += (time.perf_counter() - start) * (i > 0)
    start = time.perf_counter()
    made.objective.loss(model, batch).backward()
    stepping += (time.perf_counter() - start) * (i > 0)
print(json.dumps({"ratio": stepping / loading, "tokens/s": n * batch["n_tokens"] / loading}))
"""


def child(code: str, *words: str) -> dict[str, Any]:
    out = subprocess.run([sys.executable, "-c", code, *words], check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(out.splitlines()[-1]) if out.strip() else {}
    return found


def memory(pid: int) -> float:
    """Of a process and all that it has started, MB; 0 when it has ended."""
    total, left = 0, [pid]
    while left:
        place = Path(f"/proc/{left.pop()}")
        try:
            rollup = (place / "smaps_rollup").read_text()
            total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
            for task in (place / "task").iterdir():
                left += map(int, (task / "children").read_text().split())
        except (OSError, StopIteration):
            continue
    return total * 1024 / 1e6


def watched(words: list[str], cwd: Path) -> tuple[float, float]:
    """Most memory of a command and all its processes, MB, and its seconds."""
    start = time.perf_counter()
    process = subprocess.Popen(words, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, memory(process.pid))
        time.sleep(0.5)
    assert process.returncode == 0, words
    return peak, time.perf_counter() - start


def run_words(path: Path, tokenizer: str) -> list[str]:
    return [
        *(
            sys.executable,
            str(Path(__file__).parents[1] / "train.py"),
            "data=text",
            f"data.train_files={path}",
            f"tokenizer={tokenizer}",
        ),
        *("data.validation_fraction=0.001", "trainer.max_steps=3", "data.num_workers=2", "logger=csv"),
        *("model.d_model=32", "model.n_layers=1", "model.n_heads=2", "model.d_ff=64"),
        *(f"paths.cache={path.parent / 'cache'}", f"paths.outputs={path.parent / 'outputs'}"),
    ]


def main(megabytes: float, tokenizer: str, files: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        large = folder / "large.txt"
        subprocess.run([sys.executable, "-c", WRITE, str(large), str(megabytes), *files], check=True)
        time.sleep(3)  # so that the file's time of change is of the past, and its hash is kept
        print(f"{megabytes:g} MB of text, tokenizer={tokenizer}, {os.cpu_count()} cores", flush=True)
        imports, _ = watched([sys.executable, "-c", IMPORT], folder)
        peak, seconds = watched([sys.executable, "-c", PREPARE, str(large), tokenizer], folder)
        print(
            f"prepared in {seconds:.0f} s; at most {peak:.0f} MB, {peak - imports:.0f} MB beside the imports",
            flush=True,
        )
        again = child(PREPARE, str(large), tokenizer)
        print(f"second start: {again['seconds']:.2f} s beside the imports, {again['tokens']:,} tokens", flush=True)
        opened = child(OPEN, again["folder"])
        print(f"loaders of {opened['rows']:,} rows: {opened['open']:.2f} s; first batch at example 10 million: "
              f"{opened['go on']:.2f} s; rows of 12 million: {opened['far'] * 1e3:.1f} ms", flush=True)  # fmt: skip
        peak, seconds = watched(run_words(large, tokenizer), folder)
        print(
            f"a run of 3 steps with 2 loader workers: {seconds:.0f} s, {peak:.0f} MB in all its processes", flush=True
        )
        speed = child(SPEED, again["folder"])
        print(f"tokenised at {speed['MB/s']:.2f} MB/s, {speed['share']:.0%} of the tokenizer's own speed", flush=True)
        for changes in ([], ["data.streaming=true"]):
            words = [word for word in run_words(large, tokenizer)[2:] if not word.startswith(("model.", "data.num"))]
            found = child(LOADER, *words, *changes)
            print(f"loader {' '.join(changes) or 'of prepared text'}: {found['tokens/s']:,.0f} tokens/s, "
                  f"{found['ratio']:.0f} times what the default model reads", flush=True)  # fmt: skip


if __name__ == "__main__":
    given = sys.argv[1:]
    main(float(given[0]) if given else 64, given[1] if len(given) > 1 else "bpe", given[2:])
