"""Several sources as one."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from triform.data.sources.base import COLUMNS, Kind, Row, Source, digest, stable_hash

Read = Callable[[], Iterable[Row]]
"""Reads rows from their beginning."""


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Sources of one kind, after each other; how often each is read is the loader's business (`data.weights`).

    Each is held out from by itself. Where it has no validation split but a `validation_fraction`, that is the last part
    of its running text, counted in characters, for which its text is read three times instead of once; of all else the
    rows whose first column has a hash in the lowest `validation_fraction` of all hashes.

    Args:
        sources: name -> source.

    Raises:
        ValueError: fewer than two sources, or they are of several kinds. `check`, `load`: what a source refuses, with
            the key that it has here.
    """

    sources: Mapping[str, Source]

    def __post_init__(self) -> None:
        if len(self.sources) < 2:
            raise ValueError(
                f"Mixture: sources={list(self.sources)} are fewer than two; add some, such as "
                "+data@data.sources.NAME=text data.sources.NAME.train_files=FILE"
            )
        kinds = {name: source.kind for name, source in self.sources.items()}
        if len(set(kinds.values())) > 1:
            found = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
            raise ValueError(f"Mixture: sources are of several kinds ({found}); set data.sources to data of one kind")

    @classmethod
    def kind_of(cls, config: Mapping[str, Any]) -> str:
        """The kind of what a config's arguments would build: that of its first source."""
        for node in config["sources"].values():
            source = resolve_name(node["_target_"])
            return str(source.kind_of(node) if hasattr(source, "kind_of") else source.kind)
        return "text"  # of nothing, which the constructor refuses

    @property
    def kind(self) -> Kind:
        return next(iter(self.sources.values())).kind

    @property
    def parts(self) -> list[str]:
        """The names of the sources, in the order of their rows."""
        return list(self.sources)

    def check(self) -> None:
        for name, source in self.sources.items():
            with self._told_where(name):
                source.check()

    def fingerprint(self) -> str:
        return digest(["Mixture", *(source.fingerprint() for source in self.sources.values())])

    def files(self) -> list[Path]:
        return [path for source in self.sources.values() for path in source.files()]

    def load(self) -> Mapping[str, Iterable[Row]]:
        """Each row says under "part" the number of its source."""
        readers: dict[str, list[Read]] = {"train": [], "validation": [], "test": []}
        for number, (name, source) in enumerate(self.sources.items()):
            for split, read in self._readers(name, source).items():
                readers[split].append(self._numbered(number, name, read))
        return {split: _after_each_other(found) for split, found in readers.items() if found}

    def _readers(self, name: str, source: Source) -> dict[str, Read]:
        with self._told_where(name):
            splits = list(source.load())
        readers: dict[str, Read] = {split: partial(_loaded, source, split) for split in splits}
        fraction = getattr(source, "validation_fraction", None)
        if "validation" not in splits and fraction is not None:
            train = readers["train"]
            halves = _cut_text(train, 1 - fraction) if self.kind == "text" else _by_hash(train, self.kind, fraction)
            readers["train"], readers["validation"] = halves
        return readers

    def _numbered(self, number: int, name: str, read: Read) -> Read:
        def rows() -> Iterator[Row]:
            with self._told_where(name):
                for row in read():
                    yield {**row, "part": number}

        return rows

    @contextmanager
    def _told_where(self, name: str) -> Iterator[None]:
        """A refusal names the source's keys as they are here."""
        try:
            yield
        except ValueError as error:
            fields = "|".join(vars(self.sources[name])) or "$^"
            text = re.sub(rf"\bdata\.(?=(?:{fields})\b)", f"data.sources.{name}.", str(error))
            raise ValueError(text) from error


def _loaded(source: Source, split: str) -> Iterable[Row]:
    return source.load()[split]


def _after_each_other(readers: Sequence[Read]) -> Iterator[Row]:
    for read in readers:
        yield from read()


def _by_hash(read: Read, kind: str, fraction: float) -> tuple[Read, Read]:
    limit, column = int(fraction * 2**64), COLUMNS[kind][0]

    def half(is_held: bool) -> Iterator[Row]:
        return (row for row in read() if (stable_hash(repr(row[column])) < limit) == is_held)

    return lambda: half(False), lambda: half(True)


def _cut_text(read: Read, share: float) -> tuple[Read, Read]:
    count: list[int] = []

    def place() -> int:
        if not count:
            count.append(int(share * sum(len(piece) for row in read() for piece in _pieces(row))))
        return count[0]

    return lambda: _between(read(), 0, place()), lambda: _between(read(), place(), None)


def _pieces(row: Row) -> Iterable[str]:
    return [row["text"]] if isinstance(row["text"], str) else row["text"]


def _between(rows: Iterable[Row], start: int, stop: int | None) -> Iterator[Row]:
    """The documents from character `start` to before `stop` of all their text; a document is read before the next."""
    passed = 0
    for row in rows:
        if stop is not None and passed >= stop:
            return
        pieces = iter(_pieces(row))
        for piece in pieces:
            passed += len(piece)
            if passed > start:
                break
        else:
            continue
        first = piece[len(piece) - (passed - start) :] if passed - len(piece) < start else piece

        def rest(first: str = first, pieces: Iterator[str] = pieces) -> Iterator[str]:
            nonlocal passed
            yield first if stop is None else first[: len(first) - max(passed - stop, 0)]
            for piece in pieces:
                if stop is not None and passed + len(piece) >= stop:
                    yield piece[: stop - passed]
                    passed = stop
                    return
                passed += len(piece)
                yield piece

        yield {**row, "text": rest()}
