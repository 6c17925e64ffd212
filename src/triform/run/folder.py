"""The folder of a run: everything needed to repeat or use it."""

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from triform.run.errors import BadInput, nearest
from triform.training.codes import DOSSIER, FIRST_ERROR

Finish = Callable[["RunFolder", Sequence[str]], None]
"""What the first rank does with a finished run's folder (and the packages that its config may name): pictures, samples,
the printed report. An importable function."""

_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml reads a config in 2 ms, Python alone in 30


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps what; every path is inside `path`."""

    path: Path

    @property
    def config(self) -> Path:
        """The fully resolved config."""
        return self.path / "config.yaml"

    @property
    def overrides(self) -> Path:
        """What the user typed, one argument an item."""
        return self.path / "overrides.yaml"

    @property
    def environment(self) -> Path:
        """Versions, git commit, hardware, threads, seed."""
        return self.path / "environment.json"

    @property
    def tokenizer(self) -> Path:
        """Folder that the tokenizer's own library loads."""
        return self.path / "tokenizer"

    @property
    def labels(self) -> Path:
        """Names of the classes by number, where the data has classes."""
        return self.path / "labels.json"

    @property
    def data(self) -> Path:
        """What the data was made from: hashes of files, tokenizer, versions."""
        return self.path / "data.json"

    @property
    def failure(self) -> Path:
        """The first error of a run that has failed, while it is not resumed."""
        return self.path / FIRST_ERROR

    @property
    def dossier(self) -> Path:
        """Folder of what there is to know about a failure, see `triform.training.dossier`."""
        return self.path / DOSSIER

    @property
    def checkpoints(self) -> Path:
        """Folder of `last.ckpt`, `previous.ckpt` and `best.ckpt`."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """Every logged value by step, tokens and seconds."""
        return self.path / "metrics.csv"

    @property
    def summary(self) -> Path:
        """Status, sizes, speed, best and last metrics."""
        return self.path / "summary.json"

    def log(self, rank: int) -> Path:
        """What a rank of the run said."""
        return self.path / (f"log.rank{rank}.txt" if rank else "log.txt")

    @property
    def lock(self) -> Path:
        """Locked by the process that trains the run."""
        return self.path / ".lock"

    @property
    def plots(self) -> Path:
        """Folder of pictures."""
        return self.path / "plots"

    @property
    def samples(self) -> Path:
        """Examples of what the model makes."""
        return self.path / "samples.txt"

    @property
    def wandb_id(self) -> Path:
        """The id under which W&B knows this run."""
        return self.path / "wandb_id"

    def read_config(self) -> dict[str, Any]:
        """The resolved config as plain dicts and lists."""
        return read_mapping(self.config)

    def read_summary(self) -> dict[str, Any]:
        """What the run has written about itself; empty where there is nothing yet, or nothing that can be read."""
        try:
            summary = json.loads(self.summary.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return summary if isinstance(summary, dict) else {}


def read_mapping(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping.

    Raises:
        BadInput: it is missing, is no YAML, or holds something else.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_YAML)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    except RecursionError:
        raise BadInput(f"{path} cannot be read: it is nested too deeply; put it back as it was written") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path} holds no config")
    return content


def read_labels(folder: RunFolder) -> list[str] | None:
    """Names of a run's classes by number; None: its data has none.

    Raises:
        BadInput: the file is broken.
    """
    if not folder.labels.exists():
        return None
    try:
        labels = json.loads(folder.labels.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder.labels} cannot be read: {error}; put it back as the run wrote it") from error
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise BadInput(f"{folder.labels} is no list of labels; put it back as the run wrote it")
    return labels


def read_overrides(folder: RunFolder) -> list[str]:
    """What was typed for a run.

    Raises:
        BadInput: the file is missing or broken.
    """
    try:
        typed = yaml.load(folder.overrides.read_text(encoding="utf-8"), Loader=_YAML) or []
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInput(f"{folder.overrides} cannot be read: {error}; put it back as the run wrote it") from error
    if not isinstance(typed, list) or not all(isinstance(word, str) for word in typed):
        raise BadInput(f"{folder.overrides} is no list of what was typed; put it back as the run wrote it")
    return typed


def write_whole(path: Path, text: str) -> None:
    """Write a file so that no reader ever sees half of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


def write_config(folder: RunFolder, config: Mapping[str, Any]) -> None:
    """Write the resolved config, keys in their own order."""
    write_whole(folder.config, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))


def create(parent: Path, config: Mapping[str, Any], overrides: Sequence[str], name: str = "") -> RunFolder:
    """Make a run's folder under `parent`, never one that exists.

    Args:
        name: the folder's own name, which may be there, empty; none: date, time and four random hexadecimal digits.

    Raises:
        BadInput: `parent` cannot be written to, or a folder of this name is there.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for _ in range(100):
            path = parent / (name or time.strftime("%Y-%m-%d_%H-%M-%S_") + secrets.token_hex(2))
            try:
                path.mkdir()
                break
            except FileExistsError:
                if name and any(path.iterdir()):
                    raise
                if name:  # kept free for this run
                    break
        else:
            raise FileExistsError(f"no free folder name in {parent}")
        folder = RunFolder(path.resolve())
        folder.checkpoints.mkdir()
        write_whole(folder.overrides, yaml.safe_dump(list(overrides), sort_keys=False, allow_unicode=True))
        write_config(folder, config)
    except OSError as error:
        raise BadInput(f"paths.outputs: cannot make the run folder in {parent}: {error.strerror or error}") from error
    return folder


def check_inside(folder: Path, outputs: Path) -> None:
    """Refuse a folder that a link leads out of `paths.outputs`.

    Raises:
        BadInput: it does.
    """
    if not folder.resolve().is_relative_to(outputs.resolve()):
        raise BadInput(
            f"{folder} leads to {folder.resolve()}, out of paths.outputs={outputs}; remove the link, or choose "
            "another name"
        )


def resolve_run(run: str | Path) -> RunFolder:
    """The folder of a run, given itself, a file or folder in it (its best checkpoint, say) or a folder of runs.

    Raises:
        BadInput: there is no run.
    """
    path = Path(run).expanduser()
    for candidate in (path, *path.parents):
        if (candidate / "config.yaml").is_file() and (path.exists() or path.parent.name == "checkpoints"):
            return RunFolder(candidate.resolve())
        if candidate.parent == candidate:
            break
    if not path.exists():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise BadInput(f"{run}: no such run{nearest(path.name, siblings)}; give the folder printed as `run: FOLDER`")
    inside = sorted(entry.parent for entry in path.glob("*/config.yaml"))
    hint = f"; it holds {len(inside)} runs, the latest is {inside[-1]}" if inside else ""
    raise BadInput(f"{run} is no run's folder: it has no config.yaml{hint}")
