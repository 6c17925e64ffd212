"""One run as a job of a cluster under SLURM."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import OmegaConf

from triform.analysis.cluster import cut_of
from triform.run.check import check
from triform.run.cli import config_folders, parsed
from triform.run.compose import composed
from triform.run.errors import BadInput
from triform.run.folder import RunFolder, resolve_run, write_whole
from triform.run.job import checked, created
from triform.run.jobs import jobs
from triform.run.match import matched
from triform.run.recipe import CONFIG_NAME
from triform.run.sketch import sketch
from triform.sweeps import sbatch
from triform.sweeps.compose import config_of
from triform.sweeps.sbatch import LOG, Batch
from triform.sweeps.slurm import as_if_here, check_slurm, shape

RECORD = "slurm.json"
"""File in a run's folder that says as which job it was submitted last, and from which config."""

SCRIPT = "slurm.sbatch"
"""File in a run's folder with what was given to sbatch."""


@dataclass(frozen=True)
class Asked:
    """A run that may be submitted.

    Args:
        folder: of the run; None: it will be made, in `parent`.
        config: of a run whose folder will be made.
        key: of its config: the same command has the same one.
        typed: overrides of the run.
        launcher: overrides of how it is submitted.
        device: "cpu" or "cuda".
        devices: ranks on each machine.
    """

    parent: Path
    folder: RunFolder | None
    config: Mapping[str, Any]
    key: str
    typed: tuple[str, ...]
    launcher: tuple[str, ...]
    batch: Batch
    device: str
    devices: int
    nodes: int
    trust: tuple[str, ...]

    def script(self, folder: Path) -> str:
        """What is given to sbatch for the run in `folder`."""
        name = f"triform-{folder.parent.name}"
        return self.batch.script(name, str(folder), self.device, self.devices, self.nodes, self.trust, None)


def of_overrides(words: Sequence[str]) -> Asked:
    """The run that train.py would start with these words, checked but for its data; the folder of one that the same
    words have begun and that has not come to its end.

    Raises:
        BadInput: it cannot run, or there are several.
    """
    if len(jobs([word for word in parsed(words).overrides if not _is_launchers(word)], True)) > 1:
        raise BadInput(
            "several values of a key make a sweep, which submits its own jobs: python train.py -m ... "
            "hydra/launcher=slurm"
        )
    own = [word for word in words if not _is_launchers(word)]
    launcher = [word for word in words if _is_launchers(word)]
    config = config_of(own)
    check(as_if_here(config))
    _, devices, _ = shape(config)
    cut = cut_of(config["trainer"], devices, config["trainer"]["precision"])
    cut.share(sketch(config, None, None).model(config))  # heads may not divide
    same = {name: value for name, value in config.items() if name != "traceback"}
    key = hashlib.blake2b(json.dumps(same, sort_keys=True).encode(), digest_size=8).hexdigest()
    parent = Path(config["paths"]["outputs"]) / config["name"]
    return Asked(
        parent=parent,
        folder=_begun(parent, key),
        config=config,
        key=key,
        typed=tuple(own),
        launcher=tuple(launcher),
        batch=_batch(launcher, config_folders(words)),
        **_shape(config),
        trust=tuple(config["trust"]),
    )


def of_run(run: str | Path, words: Sequence[str], trust: Sequence[str]) -> Asked:
    """A run that has begun.

    Args:
        words: overrides of how it is submitted; others stay as they were, where it was submitted before.

    Raises:
        BadInput: it is none, or has finished.
    """
    folder = resolve_run(run)
    status = folder.read_summary().get("status")
    if status in ("finished", "pruned"):
        raise BadInput(f"{folder.path} has {status}; with a change: triform rerun {folder.path} key=value")
    config, known = folder.read_config(), _record(folder)
    launcher = [*known.get("launcher", []), *words]
    return Asked(
        parent=folder.path.parent,
        folder=folder,
        config=config,
        key=str(known.get("key", "")),
        typed=(),
        launcher=tuple(launcher),
        batch=_batch(launcher, ()),
        **_shape(config),
        trust=tuple(trust),
    )


def submit(asked: Asked) -> tuple[str, RunFolder]:
    """Prepare the run's data and folder, where that has not been done, and give it to SLURM; returns the job's id.

    Raises:
        BadInput: it is in the queue already, it trains, its data is wrong, or SLURM refuses it.
    """
    check_slurm("triform submit")
    folder = prepared(asked)
    id = sbatch.submit(folder.path / SCRIPT, asked.script(folder.path))
    record = {"job": id, "key": asked.key, "launcher": list(asked.launcher)}
    write_whole(folder.path / RECORD, json.dumps(record, indent=2) + "\n")
    return id, folder


def prepared(asked: Asked) -> RunFolder:
    """The folder of the run, with all that its ranks read; it is made where it is not there.

    Raises:
        BadInput: it is in the queue already, it trains, or its data is wrong.
    """
    if asked.folder is not None:
        _check_free(asked.folder)
        return asked.folder
    config = matched(dict(asked.config), asked.typed)
    return created(config, asked.typed, checked(as_if_here(config)))


def log_of(folder: RunFolder) -> Path:
    """What the job of a run says."""
    return folder.path / LOG


def _check_free(folder: RunFolder) -> None:
    """Refuse to submit what runs or waits already."""
    job = _record(folder).get("job")
    if job is not None:
        waiting = sbatch.queued()
        if isinstance(waiting, str):
            raise BadInput(f"squeue: {waiting}: nobody knows whether this run is in the queue; try again later")
        if job in waiting:
            raise BadInput(
                f"{folder.path} is in the queue already, as job {job}; watch it with squeue --jobs={job}, or end it "
                f"with scancel {job}"
            )
    try:
        with FileLock(folder.lock).acquire(timeout=0):
            pass
    except Timeout as error:
        raise BadInput(f"{folder.path}: another process is training this run; wait for it or end it") from error


def _begun(parent: Path, key: str) -> RunFolder | None:
    """The latest run of the same config that was submitted, unless it has come to its end."""
    for file in sorted(parent.glob(f"*/{RECORD}"), reverse=True):
        folder = RunFolder(file.parent)
        if _record(folder).get("key") == key:
            return None if folder.read_summary().get("status") in ("finished", "pruned", "failed") else folder
    return None


def _record(folder: RunFolder) -> dict[str, Any]:
    try:
        found = json.loads((folder.path / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _shape(config: Mapping[str, Any]) -> dict[str, Any]:
    device, devices, nodes = shape(config)
    return {"device": device, "devices": devices, "nodes": nodes}


def _batch(words: Sequence[str], folders: Sequence[Path]) -> Batch:
    """How a job is asked for."""
    node = composed(["hydra/launcher=slurm", *words], folders, CONFIG_NAME).hydra.launcher
    settings = OmegaConf.to_container(node, resolve=True)
    assert isinstance(settings, dict)
    return Batch.of({str(name): value for name, value in settings.items()})


def _is_launchers(word: str) -> bool:
    return word.lstrip("+~").startswith(("hydra.launcher", "hydra/launcher"))
