"""The step in which a run failed, done once more."""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triform.run.errors import BadInput
from triform.run.folder import RunFolder, write_config, write_whole
from triform.run.job import resume
from triform.training.codes import FAILED, FINISHED
from triform.training.dossier import UNTIL, Dossier

NAME = "replay"
_KEPT = ("overrides.yaml", "environment.json", "data.json", "labels.json")


def replay(folder: RunFolder, trust: Sequence[str] = ()) -> int:
    """Go on from the checkpoint before a failure, with the same data, up to the step that failed.

    It is done in a folder of its own, failure/replay in the run's, with as many ranks, and without a tracker. Returns 0
    where the same error came at the same step, 1 where none or another did.

    Args:
        trust: packages besides triform's own that the run's config may name.

    Raises:
        BadInput: the run left no dossier.
    """
    known = Dossier(folder.path).read()
    if not known:
        raise BadInput(f"{folder.path} has no failure/rank*.json: it has not failed in training; nothing to replay")
    first = first_of(folder, known)
    copy = copied(folder, int(first["step"]))
    print(f"replaying step {first['step']} of {folder.path} in {copy.path}", file=sys.stderr, flush=True)
    code = resume(copy, trust)
    again = Dossier(copy.path).read()
    same = [one for one in again if (one["error"], one["step"]) == (first["error"], first["step"])]
    if same:
        print(f"the same error in step {first['step']} again: {first['error']}")
        return FINISHED
    if again:
        print(f"another error in step {again[0]['step']}: {again[0]['error']}; before: {first['error']}")
        return FAILED
    print(f"step {first['step']} went well this time (exit code {code}); before: {first['error']}")
    return FAILED


def first_of(folder: RunFolder, known: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The set of the rank that failed first: what the others say, such as of a lost partner, follows from it."""
    rank = folder.read_summary().get("rank", 0)
    return next((one for one in known if one["rank"] == rank), known[0])


def copied(folder: RunFolder, step: int) -> RunFolder:
    """A folder that goes on where a run would, and stops after `step`."""
    copy = RunFolder(folder.dossier / NAME)
    shutil.rmtree(copy.path, ignore_errors=True)
    copy.path.mkdir(parents=True)
    for name in _KEPT:
        if (folder.path / name).exists():
            shutil.copyfile(folder.path / name, copy.path / name)
    shutil.copytree(folder.tokenizer, copy.tokenizer)
    shutil.copytree(folder.checkpoints, copy.checkpoints, symlinks=True, copy_function=_link)
    write_config(copy, {**folder.read_config(), "logger": {}})
    write_whole(copy.summary, json.dumps({"status": "preempted"}) + "\n")
    write_whole(copy.path / UNTIL, f"{step}\n")
    return copy


def _link(source: str, target: str) -> None:
    """Checkpoints are replaced, never changed: the same file in both folders takes no room."""
    try:
        os.link(source, target)
    except OSError:  # a filesystem without hard links
        shutil.copyfile(source, Path(target))
