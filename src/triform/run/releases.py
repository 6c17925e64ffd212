"""Releases of libraries that triform does not start with."""

import importlib.metadata
from functools import cache

from triform.run.errors import BadInput

NEEDED = ("torch", "lightning", "hydra-core", "omegaconf", "safetensors", "datasets", "tokenizers", "huggingface-hub")
"""What reads files of others, or runs on what it finds in them; how new it must be, pyproject.toml says."""

HARMFUL = {
    "lightning": ("2.6.2", "2.6.3"),
    "pytorch-lightning": ("2.6.2", "2.6.3"),
}
"""Releases that ran somebody else's code when they were imported."""


@cache
def check_releases() -> None:
    """Refuse libraries that are known to do harm, and those older than what triform was written for.

    It imports none of them.

    Raises:
        BadInput: names the library, its version, and how to get another.
    """
    for name, versions in HARMFUL.items():
        there = installed(name)
        if there in versions:
            raise BadInput(
                f"{name} {there} is a release that runs somebody else's code when it is imported; take this machine's "
                f"keys for stolen, and pip install -U 'lightning>=2.6.6'"
            )
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires("triform") or []
    except importlib.metadata.PackageNotFoundError:  # run from its source
        lines = []
    for line in lines:
        needed = Requirement(line)
        if needed.name not in NEEDED or (needed.marker is not None and not needed.marker.evaluate({"extra": ""})):
            continue
        there = installed(needed.name)
        if there is not None and not needed.specifier.contains(there, prereleases=True):
            raise BadInput(
                f"{needed.name} {there} is installed, and triform needs {needed.name}{needed.specifier}; "
                f"pip install '{needed.name}{needed.specifier}'"
            )


def installed(name: str) -> str | None:
    """The version of a package; None: it is not there."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
