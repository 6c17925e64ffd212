"""The rows of a source as flat files, read once and in pieces: no split need fit into memory.

For each split and text column: `train.source.utf8`, all texts after each other, and `train.source.utf8_ends`, where
each ends. Beside them, by kind: `train.labels` (class numbers; "labelled"), with `train.labels_ends` ("multilabelled"),
`train.scores` ("scored"), and `train.parts` with `train.parts_ends`: the pieces that a text is tokenised in, each with
its length in bytes and its value, the number of a word's tag ("tagged") or whether it is learned ("chat"). Of "images"
`train.pixels` and `train.pixels_ends`, in place of text.
"""

import logging
import os
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from triform.data.sources.base import Kind, Row, stable_hash

log = logging.getLogger(__name__)

TEXTS: dict[str, tuple[str, ...]] = {"pairs": ("source", "target"), "images": ()}
"""Kind -> its text columns; of all others it is ("text",)."""
LABELS = ("labelled", "multilabelled", "tagged", "images")
"""Kinds whose values are names of classes."""
BLOCK = 1 << 18  # bytes copied at a time


def texts_of(kind: Kind) -> tuple[str, ...]:
    return TEXTS.get(kind, ("text",))


def files_of(kind: Kind) -> tuple[str, ...]:
    """Endings of the files that hold what is learned from, the first of which tells equal examples."""
    return ("pixels",) if kind == "images" else tuple(f"{column}.utf8" for column in texts_of(kind))


class Labels:
    """Numbers of class names: as they come, until `sort` puts them in order."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.is_complete = False
        """Whether the training split has been read: it alone says which classes there are."""

    def number(self, name: str, split: str, place: Any) -> int:
        found = self.numbers.get(name)
        if found is None:
            if self.is_complete:
                where = f" ({place})" if place is not None else ""
                raise ValueError(
                    f"prepare: label {name!r} of the split {split}{where} does not occur in training, which has "
                    f"{', '.join(sorted(self.numbers, key=numbers_first)[:10])}; mend it, or check data.{split}_files "
                    f"and the column of labels"
                )
            found = self.numbers[name] = len(self.numbers)
        return found

    def sort(self, folder: Path, kind: Kind, splits: Iterable[str]) -> list[str]:
        """The names in order, whose places are the numbers in the files from now on."""
        names = sorted(self.numbers, key=numbers_first)
        final = np.empty(len(names), dtype=np.int64)
        final[[self.numbers[name] for name in names]] = np.arange(len(names))
        for split in splits:
            path = folder / f"{split}.{'parts' if kind == 'tagged' else 'labels'}"
            if path.stat().st_size == 0:  # which cannot be mapped
                continue
            whole = np.memmap(path, dtype=np.int64, mode="r+")
            values = whole[1::2] if kind == "tagged" else whole
            for start in range(0, len(values), BLOCK):
                values[start : start + BLOCK] = final[values[start : start + BLOCK]]
        return names


def numbers_first(label: str) -> tuple[int, int, str]:
    return (0, int(label), label) if label.isdecimal() else (1, 0, label)  # 2 before 10


class Numbers:
    """A file of numbers that is written by and by."""

    def __init__(self, path: Path, code: str) -> None:
        self.file, self.values = path.open("wb"), array(code)

    def add(self, *values: float) -> None:
        self.values.extend(values)  # type: ignore[arg-type]
        if len(self.values) >= 1 << 13:
            self.flush()

    def flush(self) -> None:
        self.values.tofile(self.file)
        del self.values[:]

    def close(self) -> None:
        self.flush()
        self.file.close()


class Rows:
    """A ragged file that is written row by row: the values, and where each row ends."""

    def __init__(self, path: Path) -> None:
        self.file, self.ends, self.total = path.open("wb"), Numbers(path.with_name(f"{path.name}_ends"), "q"), 0

    def add(self, data: bytes, length: int) -> None:
        """Values of the row at hand, `length` of them."""
        self.file.write(data)
        self.total += length

    def end(self) -> None:
        self.ends.add(self.total)

    def extend(self, values: np.ndarray, ends: np.ndarray) -> None:
        """Values of any number of rows, and where among them those rows end that do."""
        self.ends.add(*(self.total + ends).tolist())
        self.add(values.tobytes(), len(values))

    def close(self) -> None:
        self.file.close()
        self.ends.close()


class Spool:
    """Writes the rows of one split."""

    def __init__(self, folder: Path, split: str, kind: Kind, labels: Labels) -> None:
        self.split, self.kind, self.labels = split, kind, labels
        self.n_rows, self.n_characters = 0, 0
        self.texts = {column: Rows(folder / f"{split}.{column}.utf8") for column in texts_of(kind)}
        self.names = Rows(folder / f"{split}.labels") if kind == "multilabelled" else None
        self.parts = Rows(folder / f"{split}.parts") if kind in ("tagged", "chat") else None
        self.pixels = Rows(folder / f"{split}.pixels") if kind == "images" else None
        codes = {"labelled": ("labels", "q"), "images": ("labels", "q"), "scored": ("scores", "d")}
        name, code = codes.get(kind, ("", ""))
        self.numbers = Numbers(folder / f"{split}.{name}", code) if name else None

    def __enter__(self) -> "Spool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in (*self.texts.values(), self.names, self.parts, self.pixels, self.numbers):
            if file is not None:
                file.close()

    def add(self, row: Row) -> int:
        """Returns the bytes of text, or of pixels, in it."""
        place = row.get("place")
        self.n_rows += 1
        if self.kind == "tagged":
            words = [word if i == 0 else f" {word}" for i, word in enumerate(row["tokens"])]
            tags = [self.labels.number(tag, self.split, place) for tag in row["tags"]]
            return self._add_parts(zip(words, tags, strict=True), place)
        if self.kind == "chat":
            return self._add_parts(((text, int(is_learned)) for text, is_learned in row["turns"]), place)
        if self.numbers is not None:
            value = row["score"] if self.kind == "scored" else self.labels.number(row["label"], self.split, place)
            self.numbers.add(value)
        if self.names is not None:
            numbers = [self.labels.number(name, self.split, place) for name in row["labels"]]
            self.names.add(np.array(numbers, dtype=np.int64).tobytes(), len(numbers))
            self.names.end()
        if self.pixels is not None:
            data = row["pixels"].tobytes()
            self.pixels.add(data, len(data))
            self.pixels.end()
            return len(data)
        return sum(self._add_text(rows, row[column], place) for column, rows in self.texts.items())

    def _add_text(self, rows: Rows, text: str | Iterable[str], place: Any) -> int:
        before = rows.total
        for piece in [text] if isinstance(text, str) else text:
            data = encoded(piece, place)
            rows.add(data, len(data))
            self.n_characters += len(piece)
        rows.end()
        return rows.total - before

    def _add_parts(self, parts: Iterable[tuple[str, int]], place: Any) -> int:
        assert self.parts is not None
        rows = self.texts["text"]
        before = rows.total
        for text, value in parts:
            data = encoded(text, place)
            rows.add(data, len(data))
            self.n_characters += len(text)
            self.parts.add(np.array([len(data), value], dtype=np.int64).tobytes(), 1)
        if rows.total == before:
            raise ValueError(f"{place if place is not None else 'a row'} has no text; take it out")
        rows.end()
        self.parts.end()
        return rows.total - before


def encoded(text: str, place: Any) -> bytes:
    """Raises ValueError: half a surrogate pair, which JSON can write and UTF-8 cannot."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        where = f"{place} holds" if place is not None else "a text holds"
        raise ValueError(
            f"{where} {text[error.start]!a}, one half of a surrogate pair and no character; mend the text"
        ) from None


def hold_out(folder: Path, kind: Kind, spool: Spool, fraction: float) -> None:
    """Move a share of the split "train" to "validation".

    Of running text the last part, in characters. Of all else the rows whose text (the first column) has the smallest
    hashes, `fraction` of the distinct texts: equal ones stay together, so that none is both learnt and tested, and the
    order of rows has no say. At least one text is held out, at least one is not, and none without which a label would
    be missing in training.

    Raises:
        ValueError: that leaves nothing to hold out.
    """
    if kind == "text":
        _cut_text(folder, int(spool.n_characters * (1 - fraction)))
        return
    hashes = _hashes(folder / f"train.{files_of(kind)[0]}")
    distinct = np.unique(hashes)
    count = min(max(1, round(len(distinct) * fraction)), len(distinct) - 1)
    held = hashes <= distinct[count - 1] if count > 0 else np.zeros(len(hashes), dtype=bool)
    if kind in LABELS:
        held = _without_only_examples(folder, kind, hashes, held)
    if not held.any():
        raise ValueError(
            f"prepare: of {len(hashes)} training example(s), {len(distinct)} of them distinct, none can be held out "
            "for validation without taking it from training; name data.validation_files, or add examples"
        )
    for name in files_of(kind):
        _divide_rows(folder, name, held, 1)
    if kind in ("labelled", "images", "scored"):
        name, dtype = ("scores", "float64") if kind == "scored" else ("labels", "int64")
        values = np.fromfile(folder / f"train.{name}", dtype=dtype)
        values[held].tofile(folder / f"validation.{name}")
        values[~held].tofile(folder / f"train.{name}")
    if kind == "multilabelled":
        _divide_rows(folder, "labels", held, 8)
    if kind in ("tagged", "chat"):
        _divide_rows(folder, "parts", held, 16)


def _hashes(path: Path) -> np.ndarray:
    lengths = np.diff(np.fromfile(path.with_name(f"{path.name}_ends"), dtype=np.int64), prepend=0)
    with path.open("rb") as file:
        return np.fromiter((stable_hash(file.read(n)) for n in lengths.tolist()), dtype=np.uint64, count=len(lengths))


def _without_only_examples(folder: Path, kind: Kind, hashes: np.ndarray, held: np.ndarray) -> np.ndarray:
    if kind in ("labelled", "images"):
        values, rows = np.fromfile(folder / "train.labels", dtype=np.int64), np.arange(len(held))
    else:
        name = "parts" if kind == "tagged" else "labels"
        values = np.fromfile(folder / f"train.{name}", dtype=np.int64)
        values = values[1::2] if kind == "tagged" else values
        ends = np.fromfile(folder / f"train.{name}_ends", dtype=np.int64)
        rows = np.searchsorted(ends, np.arange(len(values)), side="right")
    only = np.setdiff1d(values[held[rows]], values[~held[rows]])
    if len(only) == 0:
        return held
    kept = np.isin(hashes, hashes[rows[np.isin(values, only) & held[rows]]])
    log.warning(
        "%d label(s) would be missing in training; the %d example(s) that have them are not held out",
        len(only),
        (held & kept).sum(),
    )
    return held & ~kept


def _divide_rows(folder: Path, name: str, held: np.ndarray, size: int) -> None:
    """Of a ragged file with values of `size` bytes: the rows `held` become those of "validation"."""
    path, ends_path = folder / f"train.{name}", folder / f"train.{name}_ends"
    lengths = np.diff(np.fromfile(ends_path, dtype=np.int64), prepend=0)
    # Neighbours of one fate are copied together.
    bounds = np.concatenate([np.flatnonzero(np.diff(held)) + 1, [len(held)]])
    ends = np.concatenate([[0], np.cumsum(lengths)])[bounds] * size
    rest = folder / f"train.{name}.rest"
    start, fate = 0, bool(held[0])
    with path.open("rb") as file, rest.open("wb") as train, (folder / f"validation.{name}").open("wb") as validation:
        for end in ends.tolist():
            copy(file, validation if fate else train, end - start)
            start, fate = end, not fate
    os.replace(rest, path)
    np.cumsum(lengths[held]).tofile(folder / f"validation.{name}_ends")
    np.cumsum(lengths[~held]).tofile(ends_path)


def copy(source: BinaryIO, target: BinaryIO, length: int) -> None:
    while length > 0:
        data = source.read(min(length, BLOCK))
        target.write(data)
        length -= len(data)


def _cut_text(folder: Path, n_characters: int) -> None:
    """Keep so many characters of the training text; what follows becomes that of "validation"."""
    path, held = folder / "train.text.utf8", folder / "validation.text.utf8"
    place = _byte_of(path, n_characters)
    ends = np.fromfile(folder / "train.text.utf8_ends", dtype=np.int64)
    with path.open("r+b") as file, held.open("wb") as out:
        file.seek(place)
        copy(file, out, int(ends[-1]) - place if len(ends) else 0)
        file.truncate(place)
    _cut_ends(ends, place, folder)


def _cut_ends(ends: Sequence[int] | np.ndarray, place: int, folder: Path) -> None:
    before = np.minimum(ends, place)
    kept = before[np.diff(before, prepend=0) > 0]
    after = np.maximum(ends, place) - place
    held = after[np.diff(after, prepend=0) > 0]
    kept.astype(np.int64).tofile(folder / "train.text.utf8_ends")
    held.astype(np.int64).tofile(folder / "validation.text.utf8_ends")


def _byte_of(path: Path, n_characters: int) -> int:
    """Where the character of that number begins in a file of UTF-8."""
    passed, place = 0, 0
    with path.open("rb") as file:
        while data := file.read(BLOCK):
            begins = np.flatnonzero((np.frombuffer(data, dtype=np.uint8) & 0xC0) != 0x80)
            if passed + len(begins) > n_characters:
                return place + int(begins[n_characters - passed])
            passed, place = passed + len(begins), place + len(data)
    return place
