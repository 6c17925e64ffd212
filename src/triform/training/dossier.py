"""What a failed run leaves for whoever looks into it: the folder failure/ of the run."""

import json
import platform
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from triform.training.codes import DOSSIER
from triform.training.secrets import hidden

UNTIL = ".until"
"""File in the folder of a run that replays another one's failure: the number of its last step."""


class Dossier:
    """Files about a failure, one set for each rank that has one.

    `rank0.json`: error, step, phase, shapes and examples of the batch, versions, the command that replays it;
    `rank0.traceback.txt`; `rank0.rng.pt`: state of torch's random numbers on the host when it failed. No values of
    variables, no environment: a run's folder may be shared.

    Args:
        run: folder of the run.
    """

    def __init__(self, run: Path) -> None:
        self.run, self.folder = run, run / DOSSIER

    def write(self, rank: int, error: BaseException, facts: Mapping[str, Any]) -> None:
        """Write a rank's set. A failure to do so changes nothing: there is one already."""
        found = {
            "error": hidden(f"{type(error).__name__}: {' '.join(str(error).split())}"),
            "rank": rank,
            **facts,
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "command": f"triform replay {self.run}",
        }
        try:
            self.folder.mkdir(exist_ok=True)
            (self.folder / f"rank{rank}.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
            lines = hidden("".join(traceback.format_exception(error)))
            (self.folder / f"rank{rank}.traceback.txt").write_text(lines, encoding="utf-8")
            torch.save(torch.get_rng_state(), self.folder / f"rank{rank}.rng.pt")
        except OSError:
            return

    def add(self, name: str, line: str) -> None:
        """Add a line to a file of the folder."""
        self.folder.mkdir(exist_ok=True)
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(line)

    def read(self) -> list[dict[str, Any]]:
        """The sets that there are, by rank."""
        found = [json.loads(file.read_text(encoding="utf-8")) for file in self.folder.glob("rank*.json")]
        return sorted(found, key=lambda one: int(one["rank"]))


def replay_until(run: Path) -> int | None:
    """The step after which a run stops because it replays a failure; None: it is no replay."""
    try:
        return int((run / UNTIL).read_text())
    except FileNotFoundError:
        return None
