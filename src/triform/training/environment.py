"""What a run ran on: enough to explain a difference, nothing that is private."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

PACKAGES = (
    "triform",
    "torch",
    "lightning",
    "hydra-core",
    "omegaconf",
    "datasets",
    "tokenizers",
    "torchmetrics",
    "numpy",
    "wandb",
)


def environment(seed: int) -> dict[str, Any]:
    """Versions, source revision, hardware and threads of this process, as plain JSON values.

    Left out on purpose: environment variables, user and host names, network addresses, command
    lines, remotes of the repository; a run folder may be shared.

    `memory_bytes` is the machine's, `cores` those that this process may use. A figure that the
    system does not tell is None.
    """
    return {
        "seed": seed,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in PACKAGES},
        "git": git(Path.cwd()),
        "hardware": {
            "cpu": _cpu_model(),
            "cores": _cores(),
            "memory_bytes": _memory_bytes(),
            "gpus": _gpus(),
            "cuda": torch.version.cuda,
        },
        "threads": {"torch": torch.get_num_threads(), "interop": torch.get_num_interop_threads()},
    }


def git(folder: Path) -> dict[str, Any] | None:
    """Commit of the repository around `folder` and whether tracked files differ from it.

    None outside a repository, before its first commit, or without the git program.
    """
    commit = _run("git", "-C", str(folder), "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _run("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def _run(*command: str) -> str | None:
    # GIT_OPTIONAL_LOCKS=0: reading the state of a repository must not write to it.
    variables = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, env=variables, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or None


def _cores() -> int | None:
    if hasattr(os, "sched_getaffinity"):  # Linux: a container or a job may own fewer than exist
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _gpus() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append({"name": properties.name, "memory_bytes": properties.total_memory})
    return found
