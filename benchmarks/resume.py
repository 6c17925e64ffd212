"""Runs that are killed at random points and resumed: how many end bitwise as one that was never stopped.

    python benchmarks/resume.py [RUNS] [RANKS] [KEY=VALUE ...]

SIGKILL comes at a drawn call of what a run does: at the first micro-batch of a step or a later one, before the update,
in a validation, at an epoch's edge, and while a checkpoint is saved, synced, renamed and linked, which half of the runs
do beside training. A third of them are killed once more. Compared are weights, optimizer, schedule, the best checkpoint
and every row of the record but its times. The points are the same in each call of this program. With RANKS above 1
the kill takes the first rank, and the others end with it.
"""

import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.training.runs import FAMILIES, differences, make, outcome, run

CALLS = {"step": 12, "accumulation": 12, "update": 12, "validation": 3, "save": 7, "write": 23, "rename": 30, "link": 9}
"""Places, and how often a run of 12 steps in two micro-batches each comes by."""
EDGES = {"encoder": 10, "decoder": 10, "encoder_decoder": 7}
"""Steps of the first epoch."""


def point(draw: random.Random, family: str, place: str) -> tuple[str, int]:
    """The function at whose call a run is killed, and which call."""
    if place == "epoch":
        return "micro-batch", 2 * EDGES[family] + draw.randint(0, 1)
    count = draw.randint(1, CALLS[place])
    if place in ("step", "accumulation"):
        return "micro-batch", 2 * count - (place == "step")
    return place, count


def main(n: int, ranks: int, words: list[str]) -> int:
    words = ["data.num_workers=0", f"trainer.devices={ranks}", *words]
    base = Path(tempfile.mkdtemp(prefix="triform-resume-"))
    expected = {}
    for family in FAMILIES:
        (base / family).mkdir()
        folder = make(base / family, family, *words)
        assert run(folder) == 0
        expected[family] = outcome(folder)
    draw, families, places = random.Random("resume"), list(FAMILIES), [*CALLS, "epoch"]
    equal, killed, began = Counter[str](), Counter[str](), time.perf_counter()
    for i in range(n):
        family, place = families[i % 3], places[i // 3 % len(places)]
        name, count = point(draw, family, place)
        beside, again = draw.random() < 0.5, draw.random() < 1 / 3
        (base / str(i)).mkdir()
        folder = make(base / str(i), family, *words, f"trainer.async_save={str(beside).lower()}")
        code = run(folder, kill_at={name: count})
        killed[place] += code != 0
        if again:
            code = run(folder, resume=True, kill_at={"micro-batch": draw.randint(1, 4)})
        if code != 0:
            code = run(folder, resume=True)
        found = [f"exit code {code}"] if code else differences(expected[family], outcome(folder))
        equal[place] += not found
        if found:
            where = f"{family}, killed at {name} {count}, async_save={beside}"
            print(f"{i}: {where}: {found[0][:60]}; see {folder.path}", flush=True)
        if (i + 1) % 30 == 0:
            print(f"{sum(equal.values())} of {i + 1}, {time.perf_counter() - began:.0f} s", flush=True)
    for place in killed:
        print(f"{place:12}  {equal[place]} equal, {killed[place]} killed")
    print(f"{sum(equal.values())} of {n} runs end bitwise equal")
    return sum(equal.values()) != n


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    n, ranks = [*numbers, *(300, 1)[len(numbers) :]]
    sys.exit(main(n, ranks, [word for word in sys.argv[1:] if not word.isdigit()]))
