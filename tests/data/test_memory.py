"""What preparing a text costs in memory does not grow with the text."""

import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20
ROOM = 70
"""MiB that are left of 500 beside what a run imports before it prepares its data: 366, 430 where there is SciPy."""

PREPARE = """
import sys
from pathlib import Path
from triform.data.prepare import prepare
from triform.data.sources.text import TextFiles
from triform.data.tokenizers import BPE

def peak() -> int:
    return next(int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))

path, before = Path(sys.argv[1]), peak()
source = TextFiles(str(path), None, None, 0.05, "utf-8", None)
prepared = prepare(source, BPE(1024, lowercase=False), path.parent / "cache", False)
assert sum(split.n_bytes for split in prepared.splits.values()) == path.stat().st_size
assert not {"datasets", "pyarrow", "torch"} & set(sys.modules)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory as Linux tells it")
def test_memory_of_a_large_text(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    with path.open("w", encoding="utf-8") as file:
        for i in range(32 * MIB // 1000):  # more than a tokenizer is trained on
            words = " ".join(f"w{i * n % 9973} of é{n}" for n in range(1, 81))
            file.write(words[:990] + "\n")
    found = subprocess.run([sys.executable, "-c", PREPARE, str(path)], capture_output=True, text=True, check=True)
    assert int(found.stdout) < ROOM
