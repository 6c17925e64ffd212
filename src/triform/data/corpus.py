"""Text that is read piece by piece while a model learns from it, and never held as a whole.

An epoch reads everything once, in *windows*: some megabytes of text each, which are in memory together. Which text a
window holds is a pure function of the seed and its `Position`, so that reading may begin at any window. Where all files
allow it (`Seekable`) a window is blocks from all over them, found without reading anything else; elsewhere it is what
follows in one file after another.
"""

import codecs
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, runtime_checkable

import numpy as np

from triform.data.order import epoch_order
from triform.data.sources.base import Place, Row

BLOCKS = 64
"""Blocks in a window: so many places of the corpus a batch is drawn from."""
LOOK = 64
"""Bytes in which a line end or a blank is looked for where a block ends, so at least those of a block."""
MB = 10**6


class Passage(NamedTuple):
    """Text without a gap, and whether a document ends with it."""

    text: str
    is_end: bool


class Position(NamedTuple):
    """Where a window is.

    Args:
        epoch: counted from 0.
        part: of the epoch, in its order; 0 where all files are one.
        window: of the part.
    """

    epoch: int
    part: int
    window: int


BEGINNING = Position(0, 0, 0)


class Window(NamedTuple):
    """Text that is in memory together.

    Args:
        after: a position from which the next window is found.
        read: its passages, in order.
    """

    position: Position
    after: Position
    read: Callable[[], Sequence[Passage]]


@runtime_checkable
class Corpus(Protocol):
    """What is learned from, window by window."""

    n_bytes: int | None
    """Of all its text; None: not known."""

    def windows(self, start: Position) -> Iterator[Window]:
        """From a position on, one epoch after the other, without an end."""

    def held_out(self) -> Iterator[Row]:
        """The documents at the beginning, or parts of them, that no window holds."""

    def sample(self, n_bytes: int) -> Iterator[Row]:
        """About so much of the text, from many places."""


class Shard(NamedTuple):
    """A file, or another part of a source, that is read from its beginning.

    Args:
        rows: gives its documents in order; see `triform.data.sources.base.Source`.
    """

    rows: Callable[[], Iterator[Row]]


@runtime_checkable
class Seekable(Protocol):
    """A file that can be read from anywhere, in blocks of bytes.

    Blocks that follow each other hold everything once, however they are chosen, as long as each has `LOOK` bytes.
    """

    size: int
    """Bytes."""
    rows: Callable[[], Iterator[Row]]
    """Of all of it, as those of a `Shard`."""

    def between(self, start: int, end: int) -> list[Passage]:
        """What begins in these bytes, each of which is moved on to where text may be cut."""


class Blocks:
    """Blocks of all files, in an order drawn anew in each epoch.

    Args:
        window: bytes that are in memory together.
        held_out: bytes at the beginning of the first files that no window holds.

    Raises:
        ValueError: nothing is left to learn from.
    """

    def __init__(self, files: Sequence[Seekable], window: int, seed: int, held_out: int) -> None:
        self.files, self.window, self.seed = files, window, seed
        self.block = max(window // BLOCKS, LOOK)
        sizes = np.array([file.size for file in files], dtype=np.int64)
        self.first = np.clip(held_out - (np.cumsum(sizes) - sizes), 0, sizes)
        """Bytes of each file that are held out."""
        counts = -(-(sizes - self.first) // self.block)
        if counts.sum() == 0:
            raise nothing_left(held_out)
        self.file = np.repeat(np.arange(len(files)), counts)
        place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        self.start = self.first[self.file] + place * self.block
        self.end = np.minimum(self.start + self.block, sizes[self.file])
        self.n_bytes: int | None = int((sizes - self.first).sum())
        self._memory: tuple[int, np.ndarray, np.ndarray] = (-1, self.file, self.file)

    def windows(self, start: Position) -> Iterator[Window]:
        epoch, _, first = start
        while True:
            order, before = self._order(epoch)
            for number in range(first, int(before[-1]) // self.window + 1):
                low, high = np.searchsorted(before, [number * self.window, (number + 1) * self.window])
                yield Window(
                    Position(epoch, 0, number),
                    Position(epoch, 0, number + 1),
                    lambda chosen=order[low:high]: self._read(chosen),  # type: ignore[misc]
                )
            epoch, first = epoch + 1, 0

    def held_out(self) -> Iterator[Row]:
        for file, end in zip(self.files, self.first.tolist(), strict=True):
            for start in range(0, end, self.window):
                passages = file.between(start, min(start + self.window, end))
                yield from ({"text": passage.text} for passage in passages)

    def sample(self, n_bytes: int) -> Iterator[Row]:
        every = max(1, math.ceil(len(self.file) * self.block / n_bytes))
        yield from ({"text": passage.text} for passage in self._read(np.arange(0, len(self.file), every)))

    def _order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The blocks as an epoch reads them, and how many bytes come before each."""
        if self._memory[0] != epoch:
            order = epoch_order(len(self.file), self.seed, epoch)
            sizes = (self.end - self.start)[order]
            self._memory = (epoch, order, np.cumsum(sizes) - sizes)
        return self._memory[1:]

    def _read(self, chosen: np.ndarray) -> list[Passage]:
        found = zip(self.file[chosen].tolist(), self.start[chosen].tolist(), self.end[chosen].tolist(), strict=True)
        return [passage for file, start, end in found for passage in self.files[file].between(start, end)]


class Parts:
    """Shards that are read from their beginnings, one after the other, in an order drawn anew in each epoch.

    To find a window its shard is read up to it.

    Args:
        window: bytes that are in memory together; a shard's last window has fewer.
        held_out: bytes at the beginning of the first shard that no window holds, rounded up to whole documents or, of
            a file that is one document, to whole lines.
    """

    def __init__(self, shards: Sequence[Shard | Seekable], window: int, seed: int, held_out: int) -> None:
        self.shards, self.window, self.seed, self.n_held_out = shards, window, seed, held_out
        self.n_bytes: int | None = None

    def windows(self, start: Position) -> Iterator[Window]:
        epoch, first_part, first = start
        while True:
            order, is_empty = epoch_order(len(self.shards), self.seed, epoch).tolist(), start.epoch != epoch
            for part in range(first_part, len(order)):
                for number, passages in enumerate(self._windows_of(order[part])):
                    is_empty = False
                    if number >= first:
                        position = Position(epoch, part, number)
                        after = Position(epoch, part, number + 1)
                        yield Window(position, after, lambda passages=passages: passages)  # type: ignore[misc]
                first = 0
            if is_empty:
                raise nothing_left(self.n_held_out)
            epoch, first_part = epoch + 1, 0

    def held_out(self) -> Iterator[Row]:
        for text, _, is_held in self._documents(0):
            if not is_held:
                break
            yield {"text": text}

    def sample(self, n_bytes: int) -> Iterator[Row]:
        n_shards = min(len(self.shards), BLOCKS)
        for i in range(n_shards):
            left = n_bytes // n_shards
            for text, _ in self._training(i * len(self.shards) // n_shards):
                yield {"text": text}
                left -= len(text.encode())
                if left <= 0:
                    break

    def _training(self, shard: int) -> Iterator[tuple[str, bool]]:
        yield from ((text, is_end) for text, is_end, is_held in self._documents(shard) if not is_held)

    def _documents(self, shard: int) -> Iterator[tuple[str, bool, bool]]:
        """The text of all documents, long ones in pieces, whether it ends one, and whether it is held out."""
        left = self.n_held_out if shard == 0 else 0
        for row in self.shards[shard].rows():
            for text, is_end in _pieces(row):
                cut = len(text)
                if 0 < left < cut and not isinstance(row["text"], str):
                    cut = text.find("\n", left) + 1 or max(text.find(" ", left), 0) or cut
                if cut < len(text):
                    yield text[:cut], False, True
                    yield text[cut:], is_end, False
                else:
                    yield text, is_end, left > 0
                left -= len(text.encode())

    def _windows_of(self, shard: int) -> Iterator[list[Passage]]:
        passages: list[Passage] = []
        pieces: list[str] = []  # of a document that has not ended
        size = 0
        for text, is_end in self._training(shard):
            pieces.append(text)
            size += len(text.encode())
            if is_end:
                passages.append(Passage("".join(pieces), True))
                pieces = []
            if size >= self.window:
                rest = ""
                if pieces:
                    whole = "".join(pieces)
                    cut = whole.rfind("\n") + 1 or max(whole.rfind(" "), 0) or len(whole)
                    passages.append(Passage(whole[:cut], False))
                    rest = whole[cut:]
                yield passages
                passages, pieces, size = [], [rest] if rest else [], len(rest.encode())
        if pieces:
            passages.append(Passage("".join(pieces), True))
        if passages:
            yield passages


def nothing_left(held_out: int) -> ValueError:
    return ValueError(
        f"Corpus: nothing is left to learn from beside the {held_out / MB:g} MB that are held out; lower "
        "data.validation_mb or name data.validation_files"
    )


def _pieces(row: Row) -> Iterator[tuple[str, bool]]:
    """The text of a document, a long one in pieces, and whether it ends there."""
    before = None
    for piece in [row["text"]] if isinstance(row["text"], str) else row["text"]:
        if before is not None:
            yield before, False
        before = piece
    if before is not None:
        yield before, True


def corpus(shards: Sequence[Shard | Seekable], window: int, seed: int, held_out: int) -> Corpus:
    """Of blocks where every shard can be read from anywhere."""
    if all(isinstance(shard, Seekable) for shard in shards):
        return Blocks(shards, window, seed, held_out)  # type: ignore[arg-type]
    return Parts(shards, window, seed, held_out)


# Files that can be read from anywhere


class PlainBlocks:
    """A file of UTF-8 that is one document, cut after line ends, else before blanks, where any are."""

    def __init__(self, path: Path, key: str, rows: Callable[[], Iterator[Row]]) -> None:
        self.path, self.key, self.rows, self.size = path, key, rows, path.stat().st_size

    def between(self, start: int, end: int) -> list[Passage]:
        with opened(self.path, self.key) as file:
            first, last = self._cut(file, start), self._cut(file, end)
            file.seek(first)
            text = text_of(file.read(last - first), self.path, self.key, first)
        return [Passage(text, last == self.size)] if text.strip() else []

    def _cut(self, file: BinaryIO, place: int) -> int:
        """Where text may be cut that is not before `place`."""
        if place >= self.size:
            return self.size
        if place <= 0:
            return len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
        file.seek(place - 1)
        data = file.read(LOOK + 1)
        line_end, blank = data.find(b"\n"), data.find(b" ", 1)
        if line_end >= 0:
            return place + line_end
        if blank > 0:
            return place - 1 + blank
        return place + next((i for i, byte in enumerate(data[1:]) if byte & 0xC0 != 0x80), 0)


class LineBlocks:
    """A file of UTF-8 with a document in each line.

    Args:
        document: what a line, which is from a place, says; None: nothing.
    """

    def __init__(
        self,
        path: Path,
        key: str,
        rows: Callable[[], Iterator[Row]],
        document: Callable[[Place, str], str | None],
    ) -> None:
        self.path, self.key, self.rows, self.document = path, key, rows, document
        self.size = path.stat().st_size

    def between(self, start: int, end: int) -> list[Passage]:
        found = []
        with opened(self.path, self.key) as file:
            place = max(start, 0)
            if place > 0:
                file.seek(place - 1)
                place += len(file.readline()) - 1  # of a line that began before
            while place < end and (line := file.readline()):
                data = line.removeprefix(codecs.BOM_UTF8) if place == 0 else line
                text = text_of(data, self.path, self.key, place)
                document = self.document(Place(str(self.path), "byte", place), text) if text.strip() else None
                if document is not None:
                    found.append(Passage(document, True))
                place += len(line)
        return found


def opened(path: Path, key: str) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise ValueError(f"{key}: {path} cannot be read ({error.strerror}); check the file, or copy it again") from None


def text_of(data: bytes, path: Path, key: str, start: int) -> str:
    """Raises ValueError: the bytes, from `start` on in their file, are not UTF-8, or hold a NUL character."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{key}: {path}, byte {start + error.start} is not UTF-8 ({data[error.start]:#04x}); set data.encoding to "
            "what it is, such as latin-1, or convert the file"
        ) from None
    if "\0" in text:
        raise ValueError(
            f"{key}: {path}, byte {start + data.index(0)} is a NUL character; if it is text in another encoding, such "
            "as utf-16-le, set data.encoding to it, else take NUL out"
        )
    return text
