"""Checkpoints that each rank writes its part of: a folder, put together when it is read.

    parts-12-9f3a/
        part-00000.safetensors ...   what a rank holds of each tensor, and where that is in the whole
        rest.ckpt                    all else, with a reference in the place of each such tensor
        manifest.json                names, sizes and hashes of the files, and its own hash

`last.ckpt`, `best.ckpt` and `previous.ckpt` are links to such folders, so that a new one takes a name's place in one
step. The parts are written as `torch.distributed.checkpoint` (DCP) writes safetensors: its `HuggingFaceStorageReader`
reads them onto any mesh. Its own format is not used, as it takes pickle to read.

Ranks do not talk while they write, so that they may do it beside training: each leaves word of its part beside it, and
the first rank, when all have, writes the manifest and gives the folder its name. When a run goes on, each rank compares
some of the files with the manifest, and reads of each tensor what it holds itself.
"""

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from triform.layers.parallel import Piece
from triform.training.sealed import BLOCK, HEX, read_sealed, sync_folder, write_sealed

MANIFEST, REST = "manifest.json", "rest.ckpt"
REFERENCE = "in the parts"
"""The one key of a mapping that stands for a tensor: its name in the parts, shape and type."""
WAIT_SECONDS = 1800.0
"""Time in which all ranks must have written their parts after the first one has."""


def parted(content: Any) -> bool:
    """Whether nested content has a `Piece`."""
    if isinstance(content, Mapping):
        return any(parted(value) for value in content.values())
    if isinstance(content, list | tuple):
        return any(parted(value) for value in content)
    return isinstance(content, Piece)


def split(content: Any) -> tuple[Any, dict[str, Piece]]:
    """The content with references in the place of pieces, and the pieces by name; the same names on all ranks."""
    pieces: dict[str, Piece] = {}
    known: dict[tuple[int, int], str] = {}

    def taken(value: Any, name: str) -> Any:
        if isinstance(value, Piece):
            place = (value.tensor.untyped_storage()._cdata, int(value.tensor.storage_offset()))
            name = known.setdefault(place, name) if value.tensor.numel() else name  # tied ones once
            pieces.setdefault(name, value)
            return {REFERENCE: [name, list(value.shape), str(value.tensor.dtype).removeprefix("torch.")]}
        if isinstance(value, Mapping):
            return {key: taken(item, f"{name}.{key}" if name else str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(taken(item, f"{name}.{i}") for i, item in enumerate(value))
        return value

    return taken(content, ""), pieces


def write_part(pieces: Mapping[str, Piece], folder: Path, rank: int) -> None:
    """Write what a rank holds, and leave word of it.

    Raises:
        OSError: there is no room, or another reason.
    """
    own = {name: piece for name, piece in pieces.items() if piece.ours and piece.tensor.numel()}
    path = folder / f"part-{rank:05d}.safetensors"
    offsets = {name: {"saved_offsets": list(piece.offset)} for name, piece in own.items()}
    try:
        save_file(
            {name: piece.tensor.detach().cpu().contiguous().clone() for name, piece in own.items()},
            path,
            {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"},
        )
    except SafetensorError as error:  # it tells the system's number in its text alone
        raise _system_error(error) from error
    with path.open("rb") as file:
        os.fsync(file.fileno())
    _write(folder / f"{rank:05d}.json", json.dumps({path.name: _facts(path)}))


def _system_error(error: SafetensorError) -> OSError:
    text = str(error)
    number = text.partition("os error ")[2].partition(")")[0]
    return OSError(int(number), os.strerror(int(number))) if number.isdigit() else OSError(text)


def tell_failure(folder: Path, rank: int, reason: str) -> None:
    """Have the first rank not wait for this one's part."""
    with suppress(OSError):  # then it waits in vain
        _write(folder / f"{rank:05d}.json", json.dumps({"failure": reason}))


def commit(rest: Mapping[str, Any], folder: Path, ranks: int, step: Any, wait_seconds: float = WAIT_SECONDS) -> Path:
    """On the first rank: write all else, wait for the parts, and give the folder its name, which is returned.

    Raises:
        OSError: a rank could not write its part or has not, or there is no room.
    """
    write_sealed(rest, folder / REST)
    files = {REST: _facts(folder / REST)}
    deadline = time.monotonic() + wait_seconds
    for rank in range(ranks):
        word = folder / f"{rank:05d}.json"
        while not word.exists():
            if time.monotonic() > deadline:
                raise OSError(f"rank {rank} has not written its part in {wait_seconds:.0f} seconds")
            time.sleep(0.02)
        found = json.loads(word.read_text(encoding="utf-8"))
        if "failure" in found:
            raise OSError(f"rank {rank}: {found['failure']}")
        files |= found
        word.unlink()
    text = json.dumps({"kind": "triform parts 1", "step": step, "files": files}, indent=1)
    _write(folder / MANIFEST, text + "\n" + hashlib.sha256(text.encode()).hexdigest())
    sync_folder(folder)
    final = folder.parent / f"parts-{step}-{secrets.token_hex(4)}"
    os.rename(folder, final)
    sync_folder(final.parent)
    return final


def point(name: Path, folder: Path) -> None:
    """Have a checkpoint's name mean a folder, in one step."""
    aside = name.with_name(f".{name.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    os.symlink(folder.name, aside)
    os.replace(aside, name)
    sync_folder(name.parent)


def forget(folder: Path) -> None:
    """Remove the folders that no name means any more."""
    meant = {os.readlink(entry) for entry in folder.iterdir() if entry.is_symlink()}
    for entry in folder.glob("parts-*"):
        if entry.name not in meant:
            shutil.rmtree(entry, ignore_errors=True)


def check_parts(folder: Path, rank: int = 0, ranks: int = 1) -> None:
    """Refuse a folder that is not as it was written.

    Args:
        rank: this one of `ranks`, which look at some of the files each.

    Raises:
        ValueError: a file is missing or damaged.
    """
    for name, facts in list(manifest(folder)["files"].items())[rank::ranks]:
        path = folder / name
        if not path.is_file() or _facts(path) != facts:
            raise ValueError(
                f"{path} cannot be read: it is not what the manifest beside it says, so it is missing, damaged or cut; "
                "put a good checkpoint in its place"
            )


def manifest(folder: Path) -> dict[str, Any]:
    """What a folder's manifest says.

    Raises:
        ValueError: it is missing or damaged.
    """
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); put a good checkpoint in its place") from error
    text = data[: -HEX - 1]
    if data[-HEX - 1 :] != b"\n" + hashlib.sha256(text).hexdigest().encode():
        raise ValueError(f"{path} cannot be read: it is damaged or cut; put a good checkpoint in its place")
    found: dict[str, Any] = json.loads(text)
    if any(Path(name).name != name for name in found["files"]):
        raise ValueError(f"{path} names files outside its folder; put a good checkpoint in its place")
    return found


def read_parts(folder: Path, rank: int | None = None) -> Any:
    """What the ranks wrote, on the CPU.

    Args:
        rank: this one, which gets a `Parted` for each tensor in the parts, and has seen to it that `check_parts` was
            asked; None: all tensors are read, whole, once that has been done here.

    Raises:
        ValueError: a file is missing or damaged, or the parts do not make a whole.
    """
    if rank is None:
        check_parts(folder)
    parts = Parts(folder, rank or 0)
    known: dict[str, Any] = {}

    def made(value: Any) -> Any:
        if isinstance(value, dict) and list(value) == [REFERENCE]:
            name, shape, kind = value[REFERENCE]
            if name not in known:
                known[name] = Parted(parts, name, torch.Size(shape), _dtype(kind))
                if rank is None:
                    known[name] = known[name][tuple(slice(0, size) for size in shape)]
            return known[name]
        if isinstance(value, dict):
            return {key: made(item) for key, item in value.items()}
        return type(value)(made(item) for item in value) if isinstance(value, list | tuple) else value

    return made(read_sealed(folder / REST))


class Parts:
    """The parts in a folder, opened as they are needed.

    Args:
        first: number of the part to look into first, then those before it: what ranks of several groups hold alike is
            written by the first of them.
    """

    def __init__(self, folder: Path, first: int) -> None:
        self.folder = folder
        names = sorted(name for name in manifest(folder)["files"] if name != REST)
        first %= max(len(names), 1)
        self._names = [*names[first::-1], *names[:first:-1]]
        self._open: dict[str, tuple[Any, dict[str, Any]]] = {}

    def pieces(self, name: str) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Offset of each piece of a tensor, and the piece, of which slices can be read."""
        for file in self._names:
            if file not in self._open:
                opened = safe_open(self.folder / file, "pt")
                self._open[file] = opened, json.loads(opened.metadata()["DCP_SHARDING_INFO"])
            opened, offsets = self._open[file]
            if name in offsets:
                yield tuple(offsets[name]["saved_offsets"]), opened.get_slice(name)


@dataclass(frozen=True)
class Parted:
    """A tensor that is in several parts, read as far as it is asked for."""

    parts: Parts
    name: str
    shape: torch.Size
    dtype: torch.dtype

    def __getitem__(self, box: tuple[slice, ...]) -> Tensor:
        """A box of it, given by where it starts and stops on each axis.

        Raises:
            ValueError: the parts do not have all of it.
        """
        found = torch.empty([along.stop - along.start for along in box], dtype=self.dtype)
        missing = found.numel()
        for offset, piece in self.parts.pieces(self.name) if missing else ():
            common = [
                (max(along.start, first), min(along.stop, first + size))
                for along, first, size in zip(box, offset, piece.get_shape(), strict=True)
            ]
            if any(start >= stop for start, stop in common):
                continue
            to = tuple(slice(a - along.start, b - along.start) for (a, b), along in zip(common, box, strict=True))
            of = tuple(slice(a - first, b - first) for (a, b), first in zip(common, offset, strict=True))
            found[to] = piece[of]
            missing -= found[to].numel()
            if not missing:
                break
        if missing:
            raise ValueError(
                f"{self.parts.folder} lacks {missing:,} numbers of {self.name}; put a good checkpoint in its place"
            )
        return found


def _dtype(kind: str) -> torch.dtype:
    found = getattr(torch, kind, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{kind!r} is no type of a tensor; put a good checkpoint in its place")
    return found


def _facts(path: Path) -> dict[str, Any]:
    """Size in bytes and hash."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return {"bytes": path.stat().st_size, "sha256": found.hexdigest()}


def _write(path: Path, text: str) -> None:
    """A small file, whole or not at all."""
    aside = path.with_name(f".{path.name}")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
