"""Pairs of a source and a target from the user's own files."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar

from triform.data.sources.base import Kind, Place, Row
from triform.data.sources.examples import Pair, rows
from triform.data.sources.files import Files, OwnFiles, check_fraction, form, read_lines
from triform.data.sources.tables import TABLES, Column, TableRow, check_columns, read_table


@dataclasses.dataclass(frozen=True)
class PairFiles:
    """Two files whose lines correspond, source first, or tables (.tsv, .csv, .jsonl, .parquet, .arrow) with two
    columns, gzipped or not.

    A pair of which one side is blank is left out, and how many are is said.

    Args:
        train_files: path, list of paths, glob, or a folder of tables.
        validation_files: the same; None: a share of the training pairs.
        test_files: the same; None: there is no test split.
        validation_fraction: that share, of distinct sources, chosen by a hash of the source.
        encoding: of the files.
        source_column: of a table: name, or number from 0 if it has no header; None: "source", else the only one left,
            or 0 if there is no header.
        target_column: the same; None: "target", else the only one left, or 1.

    Raises:
        ValueError: `validation_fraction` is not between 0 and 1, or Python knows no such `encoding`. `check`: a file is
            missing or empty, a column is not there, or files are neither two nor tables. `load`: text is not in the
            encoding, a table is broken, or two files differ in length.
    """

    train_files: Files
    validation_files: Files
    test_files: Files
    validation_fraction: float
    encoding: str
    source_column: Column
    target_column: Column

    kind: ClassVar[Kind] = "pairs"

    def __post_init__(self) -> None:
        check_fraction("PairFiles", self.validation_fraction)
        self._files()

    def check(self) -> None:
        for name, paths in self._files().splits().items():
            key = f"data.{name}_files"
            if _are_tables(paths):
                for path in paths:
                    check_columns(path, key, self._columns(), self.encoding)
            elif len(paths) != 2:
                raise ValueError(
                    f"PairFiles: {key} names {len(paths)} file(s), {paths[0]} first; "
                    f"name two whose lines correspond, as in {key}=[a.en,a.de], or tables ({', '.join(TABLES)})"
                )

    def fingerprint(self) -> str:
        return self._files().fingerprint(f"PairFiles {self.validation_fraction} {self._columns()}")

    def files(self) -> list[Path]:
        return self._files().all()

    def load(self) -> Mapping[str, Iterable[Row]]:
        return {name: self._read(paths, f"data.{name}_files") for name, paths in self._files().splits().items()}

    def _read(self, paths: list[Path], key: str) -> Iterator[Row]:
        if _are_tables(paths):
            for path in paths:
                yield from rows(Pair(), read_table(path, key, self._columns(), self.encoding))
        else:
            yield from rows(Pair(), parallel_lines(paths[0], paths[1], key, self.encoding))

    def _files(self) -> OwnFiles:
        return OwnFiles(self.train_files, self.validation_files, self.test_files, self.encoding, TABLES)

    def _columns(self) -> dict[str, Column]:
        return {"source": self.source_column, "target": self.target_column}


def parallel_lines(source: Path, target: Path, key: str, encoding: str) -> Iterator[TableRow]:
    """The lines of two files side by side.

    Raises:
        ValueError: one has more than the other.
    """
    numbers = [0, 0]
    for pair in zip_longest(read_lines(source, key, encoding), read_lines(target, key, encoding)):
        numbers = [number + (line is not None) for number, line in zip(numbers, pair, strict=True)]
        if numbers[0] == numbers[1]:
            yield Place(str(source), "line", numbers[0]), list(pair)
    if numbers[0] != numbers[1]:
        raise ValueError(
            f"{key}: {source} has {numbers[0]} lines and {target} {numbers[1]}; give files whose lines correspond"
        )


def _are_tables(paths: list[Path]) -> bool:
    return all(form(path) in TABLES for path in paths)
