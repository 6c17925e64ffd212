"""What a checkpoint holds, for who only reads it: Lightning is not imported here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triform.training.sealed import read_sealed

LAST, BEST = "last.ckpt", "best.ckpt"


def read_checkpoint(path: Path, rank: int | None = None) -> dict[str, Any]:
    """Tensors, numbers, texts and their containers; never an object.

    Args:
        rank: this one, which reads tensors that ranks wrote apart as far as it holds them, see `sharded.read_parts`,
            of a checkpoint that ranks have found good together; None: all is read, and found good before.

    Raises:
        ValueError: the file is missing, damaged, or something else.
    """
    if path.is_dir():
        from triform.training import sharded  # which needs torch.distributed

        found: Any = sharded.read_parts(path, rank)
    else:
        found = read_sealed(path)
    if not isinstance(found, dict) or not isinstance(found.get("state_dict"), Mapping):
        raise ValueError(f"{path} is no checkpoint: it holds no state_dict; put a good checkpoint in its place")
    return found
