"""Outputs that runs wrote to samples.txt, read back."""

import re
from dataclasses import dataclass
from pathlib import Path

N_SAMPLES = 8
FIELDS = ("given", "written", "expected")


@dataclass(frozen=True)
class Sample:
    """One example; `verdict` is "right", "wrong" or empty where nothing is either."""

    given: str
    written: str
    expected: str
    verdict: str


def read_samples(file: Path, limit: int = N_SAMPLES) -> list[Sample]:
    """The first samples of what `triform.analysis.report.as_text` wrote; none where there is no such file.

    A text may have blank lines in it: a sample begins where `given:` follows one.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    blocks = re.split(r"\n\n(?=given:)", text.rstrip("\n"))
    return [_sample(block) for block in blocks[:limit] if block]


def _sample(block: str) -> Sample:
    found = dict.fromkeys(FIELDS, "")
    lines = block.split("\n")
    verdict = {"right": "right", "WRONG": "wrong"}.get(lines[-1], "")
    name = ""
    for line in lines[:-1] if verdict else lines:
        start = re.match(r"(given|written|expected): {1,5}", line)
        if start and start.end() == 10 and not found[start[1]]:
            name, line = start[1], line[start.end() :]
        elif name:
            line = f"\n{line}"
        if name:
            found[name] += line
    return Sample(**found, verdict=verdict)


def aligned(samples: dict[str, list[Sample]]) -> list[str]:
    """What was given, in order, where every variant was given the same; empty where they were given different texts."""
    given = [[sample.given for sample in of] for of in samples.values()]
    n = min((len(texts) for texts in given), default=0)
    same = all(texts[:n] == given[0][:n] for texts in given)
    return given[0][:n] if n and same else []
