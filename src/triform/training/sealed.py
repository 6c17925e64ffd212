"""Checkpoint files that tell whether they are whole.

A file is what `torch.save` writes, a zip archive, whose comment says what it is and ends with the SHA-256 of all bytes
before. Being a comment, it leaves the file readable by `torch.load`; being in the file, it is there or not with it.
Any flipped bit and any cut, inside tensors too, which `torch.load` does not notice, makes the hash another one.
"""

import hashlib
import json
import os
import pickle
from collections.abc import Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import torch

KIND = "triform checkpoint 1"
HEX = 2 * hashlib.sha256().digest_size
BLOCK = 1 << 22  # bytes that are hashed at once: more is not faster


class Seal:
    """A stream to a file that hashes what goes by. Keeps the error of a write, which torch reports as another one."""

    def __init__(self, file: BufferedIOBase) -> None:
        self.file, self.hash, self.held = file, hashlib.sha256(), b""
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """The last two bytes are held back: in the end they become the length of the comment."""
        view = memoryview(data).cast("B")
        if len(view) < 2:
            self.held += bytes(view)
            self._put(memoryview(self.held)[:-2])
            self.held = self.held[-2:]
        else:
            self._put(memoryview(self.held))
            self._put(view[:-2])
            self.held = bytes(view[-2:])
        return len(view)

    def flush(self) -> None:
        self.file.flush()

    def close(self, manifest: Mapping[str, Any]) -> None:
        """End the file with its manifest and hash."""
        assert self.held == b"\0\0", "a zip archive without a comment"
        comment = f"{KIND} {json.dumps(dict(manifest))} ".encode()
        self._put(memoryview((len(comment) + HEX).to_bytes(2, "little") + comment))
        self.file.write(self.hash.hexdigest().encode())
        self.file.flush()

    def _put(self, view: memoryview) -> None:
        try:
            self.file.write(view)
        except OSError as error:
            self.error = error
            raise
        self.hash.update(view)


def write_sealed(content: Mapping[str, Any], path: Path) -> None:
    """Write a file, and make it survive a power cut.

    Raises:
        OSError: there is no room, or another reason; half a file may be there.
    """
    with path.open("wb") as file:
        seal = Seal(file)
        try:
            torch.save(dict(content), seal)  # type: ignore[arg-type]  # it writes and flushes, no more
        except RuntimeError as error:  # torch's own, in place of the stream's
            raise seal.error or error from None
        seal.close({"step": content.get("progress", {}).get("step")})
        os.fsync(file.fileno())


def read_sealed(path: Path) -> Any:
    """What `write_sealed` wrote: tensors, numbers, texts and their containers, on the CPU; never an object.

    Raises:
        ValueError: the file is missing or damaged, or holds something else.
    """
    try:
        with path.open("rb") as file:  # one file, even if another one takes its name meanwhile
            check_seal(file, path)
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; the run stopped before its first checkpoint") from None
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} cannot be read: it holds more than weights and numbers") from error
    except (RuntimeError, OSError, EOFError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} cannot be read ({reason}); put a good checkpoint in its place") from error


def check(path: Path) -> None:
    """Refuse a file that is not as it was written, without reading it into memory.

    Raises:
        ValueError: it is damaged, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            check_seal(file, path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); put a good checkpoint in its place") from error


def check_seal(file: BufferedIOBase, path: Path) -> None:
    """Compare a file with its hash.

    Raises:
        ValueError: they differ, or there is none.
    """
    left = file.seek(0, os.SEEK_END) - HEX
    file.seek(0)
    found = hashlib.sha256()
    while left > 0 and (block := file.read(min(BLOCK, left))):
        found.update(block)
        left -= len(block)
    if file.read() != found.hexdigest().encode():
        raise ValueError(
            f"{path} cannot be read: its content is not what its hash says, so it is damaged, cut or no checkpoint of "
            "triform; put a good checkpoint in its place"
        )


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
