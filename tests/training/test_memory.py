"""What is freed stays with the process, and is there for what comes next."""

import subprocess
import sys

import pytest

AGAIN = """
import resource, sys, torch
from triform.training.memory import keep_memory

if sys.argv[1] == "kept":
    assert keep_memory()
torch.ones(16 * 2**20)  # leaves room for what Python puts in between: of the same size, a tensor may not fit again
faults = []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(12 * 2**20)  # 48 MiB
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc")
def test_the_same_memory_is_not_asked_for_twice() -> None:
    faults = {
        how: int(subprocess.run([sys.executable, "-c", AGAIN, how], capture_output=True, text=True, check=True).stdout)
        for how in ("kept", "given back")
    }
    assert faults["kept"] < 10 < faults["given back"]  # of 24 pages, if they are of 2 MiB
