"""Pairs of a source and a target from the user's own files."""

import dataclasses
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar

from triform.data.sources.base import Kind, Place, Row
from triform.data.sources.examples import Pair, rows
from triform.data.sources.file_source import FileSource
from triform.data.sources.files import form, read_lines
from triform.data.sources.tables import TABLES, Column, TableRow, check_columns, read_table


@dataclasses.dataclass(frozen=True)
class PairFiles(FileSource):
    """Two files whose lines correspond, source first, or tables (.tsv, .csv, .jsonl, .parquet, .arrow) with two
    columns, gzipped or not.

    A pair of which one side is blank is left out, and how many are is said.

    Args:
        source_column: of a table: name, or number from 0 if it has no header; None: "source", else the only one left,
            or 0 if there is no header.
        target_column: the same; None: "target", else the only one left, or 1.
        train_files, validation_files, test_files, validation_fraction, encoding: see `FileSource`, which raises.

    Raises:
        ValueError: `check`: files are neither two nor tables. `load`: two files differ in length.
    """

    source_column: Column
    target_column: Column

    kind: ClassVar[Kind] = "pairs"
    endings = TABLES

    def check_split(self, paths: list[Path], key: str) -> None:
        if _are_tables(paths):
            for path in paths:
                check_columns(path, key, self.columns_of(Pair()), self.encoding)
        elif len(paths) != 2:
            raise ValueError(
                f"PairFiles: {key} names {len(paths)} file(s), {paths[0]} first; "
                f"name two whose lines correspond, as in {key}=[a.en,a.de], or tables ({', '.join(TABLES)})"
            )

    def read_split(self, paths: list[Path], key: str) -> Iterator[Row]:
        if _are_tables(paths):
            for path in paths:
                yield from rows(Pair(), read_table(path, key, self.columns_of(Pair()), self.encoding))
        else:
            yield from rows(Pair(), parallel_lines(paths[0], paths[1], key, self.encoding))


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
