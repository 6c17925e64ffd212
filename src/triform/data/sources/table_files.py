"""What the sources that read tables of the user's own have in common."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from triform.data.sources.base import Row
from triform.data.sources.examples import Reader, rows
from triform.data.sources.files import OwnFiles
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
