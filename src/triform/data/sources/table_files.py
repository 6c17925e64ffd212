"""What the sources that read tables of the user's own have in common."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from triform.data.sources.base import Row
from triform.data.sources.examples import Reader, rows
from triform.data.sources.files import OwnFiles, check_fraction
from triform.data.sources.tables import Column, check_columns, read_table


@dataclasses.dataclass(frozen=True)
class TableFiles:
    """Tables whose rows are examples of one kind.

    Args:
        own: the files.
        reader: makes a row of the cells of its columns.
        columns: where they are: a column's name or number, or None, in the order of `reader.columns`.
    """

    own: OwnFiles
    reader: Reader
    columns: tuple[Column, ...]

    def check(self) -> None:
        for name, paths in self.own.splits().items():
            for path in paths:
                check_columns(path, f"data.{name}_files", self._named(), self.own.encoding)

    def fingerprint(self, validation_fraction: float) -> str:
        return self.own.fingerprint(f"{self.reader!r} {validation_fraction} {self.columns}")

    def load(self) -> Mapping[str, Iterable[Row]]:
        return {name: self._read(paths, f"data.{name}_files") for name, paths in self.own.splits().items()}

    def _read(self, paths: list[Path], key: str) -> Iterator[Row]:
        for path in paths:
            yield from rows(self.reader, read_table(path, key, self._named(), self.own.encoding))

    def _named(self) -> dict[str, Column]:
        return dict(zip(self.reader.columns, self.columns, strict=True))


class TableSource(ABC):
    """A source that reads nothing but tables, and holds a share of them out where no files for validation are named."""

    validation_fraction: float

    @abstractmethod
    def tables(self) -> TableFiles:
        """What it reads; raises what its arguments have wrong."""

    def __post_init__(self) -> None:
        check_fraction(type(self).__name__, self.validation_fraction)
        self.tables()

    def check(self) -> None:
        self.tables().check()

    def fingerprint(self) -> str:
        return self.tables().fingerprint(self.validation_fraction)

    def files(self) -> list[Path]:
        return self.tables().own.all()

    def load(self) -> Mapping[str, Iterable[Row]]:
        return self.tables().load()
