"""Checkpoints reach the disk whole or not at all, while training goes on."""

import errno
import logging
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from triform.layers.parallel import Piece
from triform.training import sharded
from triform.training.meeting import ALONE, Meeting
from triform.training.reading import BEST, LAST
from triform.training.reading import read_checkpoint as read_checkpoint
from triform.training.sealed import check, sync_folder, write_sealed
from triform.training.stop import stop

log = logging.getLogger(__name__)

PREVIOUS = "previous.ckpt"
DAMAGED = "damaged.ckpt"
"""A `last` that was found damaged when another one was gone on from."""


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


class NotSaved(RuntimeError):
    """A checkpoint could not be written. Those before it are as they were."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, syncs and renames: a crash or a full disk leaves the previous file as it was.

    What was `last` becomes `previous`, so that damage to one file leaves another to go on from. Use it as a context
    around training, which waits at its end for what is being written.

    Args:
        asynchronous: copy what is saved, in the main memory, and write it while training goes on; the copy is as large
            as the file. The next save waits for the one before, of whose failure it tells.
    """

    def __init__(self, asynchronous: bool) -> None:
        super().__init__()
        self.asynchronous = asynchronous
        self.best = False
        """Whether what is saved next is the best one so far; set before each save."""
        self._count = 0
        """Of the saves so far, the same on all ranks."""
        self._writer: ThreadPoolExecutor | None = None
        self._written: Future[None] | None = None

    def __enter__(self) -> "AtomicCheckpointIO":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self.wait()
        except NotSaved as failure:
            if error is None:
                raise
            log.warning("%s", failure)

    def save_checkpoint(self, checkpoint: Mapping[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write it, or begin to; on every rank where each of them writes its part, else on the first one.

        Raises:
            NotSaved: this one, or the one before where it was still being written.
        """
        self.wait()
        self._count += 1
        write, where = save, (Path(path), self.best)
        if sharded.parted(checkpoint):
            write = partial(save_parts, rank=dist.get_rank(), ranks=dist.get_world_size(), count=self._count)
        if not self.asynchronous:
            write(checkpoint, *where)
            return
        self._writer = self._writer or ThreadPoolExecutor(1, "checkpoint")
        self._written = self._writer.submit(write, copied(checkpoint), *where)

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> dict[str, Any]:
        self.wait()
        return read_checkpoint(Path(path))

    def wait(self) -> None:
        """Wait for what is being written.

        Raises:
            NotSaved: it could not be.
        """
        if self._written is not None:
            written = self._written
            with stop.writing():
                written.exception()  # a signal that raises here leaves it to be waited for again
            self._written = None
            written.result()

    def teardown(self) -> None:
        self.wait()


def save(checkpoint: Mapping[str, Any], target: Path, best: bool) -> None:
    """Write a checkpoint in the place of `target`; see `AtomicCheckpointIO`.

    Raises:
        NotSaved: with what the system said, and the bytes that are needed and free.
    """
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_sealed(checkpoint, aside)
            if target.name == LAST and target.exists():
                link(target, target.with_name(PREVIOUS))
            os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)
        sync_folder(target.parent)
        if best:
            link(target, target.with_name(BEST))
    except OSError as error:
        raise NotSaved(_told(error, target, n_bytes(checkpoint))) from error


def save_parts(checkpoint: Mapping[str, Any], target: Path, best: bool, rank: int, ranks: int, count: int) -> None:
    """One rank's share of writing a folder in the place of `target`; see `triform.training.sharded`.

    Raises:
        NotSaved: as `save`.
    """
    aside = target.with_name(f".{target.name}.parts.{count}")
    rest, pieces = sharded.split(checkpoint)
    try:
        aside.mkdir(parents=True, exist_ok=True)
        try:
            sharded.write_part(pieces, aside, rank)
        except OSError as error:
            sharded.tell_failure(aside, rank, error.strerror or str(error))
            raise
        if rank != 0:
            return
        folder = sharded.commit(rest, aside, ranks, checkpoint["progress"]["step"])
        if target.name == LAST and target.exists():
            link(target, target.with_name(PREVIOUS))
        sharded.point(target, folder)
        if best:
            link(target, target.with_name(BEST))
        sharded.forget(target.parent)
    except OSError as error:
        if rank == 0:
            shutil.rmtree(aside, ignore_errors=True)
        raise NotSaved(_told(error, target, n_bytes(checkpoint))) from error


def _told(error: OSError, target: Path, needed: int) -> str:
    return (
        f"{target} could not be written ({error.strerror or error}): it needs {needed:,} bytes, "
        f"{_free(target.parent)}; the checkpoints before it are kept; make room and go on with: "
        f"triform resume {target.parent.parent}"
    )


def _free(folder: Path) -> str:
    folder = folder if folder.is_dir() else folder.parent
    return f"{shutil.disk_usage(folder).free:,} bytes are free" if folder.is_dir() else "the folder is gone"


def no_room(error: BaseException, run: Path) -> NotSaved | None:
    """What is to be told of an error that says no more than that a disk takes nothing; None: it is another one."""
    if not isinstance(error, OSError) or error.errno not in NO_ROOM:
        return None
    found = NotSaved(
        f"{run} cannot be written to ({error.strerror}), {_free(run)}; its checkpoints are kept; make room and go on "
        f"with: triform resume {run}"
    )
    found.__cause__ = error
    return found


def newest(folder: Path, meeting: Meeting = ALONE) -> Path | None:
    """The checkpoint to go on from: `last`, or where that is missing or damaged `previous` or `best`; None: none yet.

    Args:
        meeting: ranks that ask together; the same is returned, or raised, on all of them.

    Raises:
        ValueError: there are checkpoints, but none can be read.
    """
    failures: list[str] = []
    for path in (folder / LAST, folder / PREVIOUS, folder / BEST):
        failure = fault(path, meeting)
        if failure is None:
            for said in failures if meeting.rank == 0 else ():
                log.warning("%s", said)
            return path
        failures += [failure] if failure else []
    if failures:
        raise ValueError(f"{failures[0]}; or start anew with: triform rerun {folder.parent}")
    return None


def fault(path: Path, meeting: Meeting) -> str | None:
    """What is wrong with a checkpoint, as ranks find together, each looking at some of its files; None: nothing.

    Empty where there is none.
    """
    found = "good"
    if not os.path.lexists(path):
        found = ""
    elif path.is_dir() or meeting.rank == 0:
        try:
            if path.is_dir():
                sharded.check_parts(path, meeting.rank, meeting.ranks)
            else:
                check(path)
        except ValueError as error:
            found = str(error)
    of_all = meeting.told(found)
    if not of_all[0]:
        return ""
    for rank, one in enumerate(of_all):
        if not one:
            return f"{path} is there on rank 0, not on rank {rank}; put paths.outputs where all machines see the same"
    return next((one for one in of_all if one != "good"), None)


def set_aside(folder: Path, start: Path) -> None:
    """Where a run goes on from another checkpoint than `last`, keep what was `last` from becoming `previous`."""
    if start.name != LAST and (folder / LAST).exists():
        os.replace(folder / LAST, folder / DAMAGED)


def sweep(folder: Path) -> None:
    """Remove what a writer that was killed left beside the checkpoints."""
    for aside in folder.glob(".*.ckpt.*"):
        if aside.is_dir() and not aside.is_symlink():
            shutil.rmtree(aside)
        else:
            aside.unlink(missing_ok=True)
    if folder.is_dir():
        sharded.forget(folder)


def copied(value: Any, known: dict[int, torch.UntypedStorage] | None = None) -> Any:
    """The same nested content on the CPU, none of whose tensors is the one given; what shares memory still does."""
    known = {} if known is None else known
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        key = storage._cdata
        if key not in known:
            known[key] = storage.clone() if storage.device.type == "cpu" else storage.cpu()
        with torch.no_grad():
            return torch.empty(0, dtype=value.dtype).set_(
                known[key], value.storage_offset(), value.size(), value.stride()
            )
    if isinstance(value, Piece):
        return replace(value, tensor=copied(value.tensor, known))
    if isinstance(value, dict):
        return type(value)((name, copied(item, known)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return type(value)(copied(item, known) for item in value)
    return value


def n_bytes(value: Any) -> int:
    """What the tensors of nested content take, each memory once."""
    sizes: dict[int, int] = {}

    def add(value: Any) -> None:
        if isinstance(value, Piece):
            value = value.tensor
        if isinstance(value, Tensor):
            sizes[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
        elif isinstance(value, Mapping):
            for item in value.values():
                add(item)
        elif isinstance(value, list | tuple):
            for item in value:
                add(item)

    add(value)
    return sum(sizes.values())


def link(source: Path, target: Path) -> None:
    """Make `target` the same file as `source`, in one step; files here are replaced, never changed."""
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    try:
        if source.is_symlink():  # to a folder of parts
            os.symlink(os.readlink(source), aside)
        else:
            os.link(source, aside)
    except OSError:  # a filesystem without hard links
        shutil.copyfile(source, aside)
    os.replace(aside, target)
    sync_folder(target.parent)
