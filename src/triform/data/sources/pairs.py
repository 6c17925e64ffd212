"""Pairs of a source and a target from the user's own files."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from triform.data.sources.base import Kind
from triform.data.sources.files import (
    TABLES,
    Column,
    Files,
    Rows,
    all_files,
    check_columns,
    check_fraction,
    fingerprint,
    form,
    lines,
    read_tables,
    read_text,
    resolve_splits,
    with_validation,
)

if TYPE_CHECKING:
    import datasets


@dataclasses.dataclass(frozen=True)
class PairFiles:
    """Two files whose lines correspond, source first, or tables (.tsv, .csv, .jsonl) with two columns; gzipped or not.

    Args:
        train_files: path, list of paths, or glob.
        validation_files: the same; None: a share of the training pairs.
        test_files: the same; None: there is no test split.
        validation_fraction: that share, of distinct sources, chosen by a hash of the source.
        source_column: of a table: name, or number from 0 if it has no header; None: "source", else the only one left,
            or 0 if there is no header.
        target_column: the same; None: "target", else the only one left, or 1.

    Raises:
        ValueError: `validation_fraction` is not between 0 and 1. `check`: a file is missing or empty, a column is not
            there, or files are neither two nor tables. `load`: text is not UTF-8, or two files differ in length.
    """

    train_files: Files
    validation_files: Files
    test_files: Files
    validation_fraction: float
    source_column: Column
    target_column: Column

    kind: ClassVar[Kind] = "pairs"

    def __post_init__(self) -> None:
        check_fraction("PairFiles", self.validation_fraction)

    def check(self) -> None:
        for name, paths in self._paths().items():
            key = f"data.{name}_files"
            if _are_tables(paths):
                for path in paths:
                    check_columns(path, key, self._columns())
            elif len(paths) != 2:
                raise ValueError(
                    f"PairFiles: {key} names {len(paths)} file(s), {paths[0]} first; "
                    f"name two whose lines correspond, as in {key}=[a.en,a.de], or tables ({', '.join(TABLES)})"
                )

    def fingerprint(self) -> str:
        return fingerprint(f"PairFiles {self.validation_fraction} {self._columns()}", self._paths())

    def files(self) -> list[Path]:
        return all_files(self._paths())

    def load(self) -> dict[str, "datasets.Dataset"]:
        from datasets import Dataset

        splits = {name: self._read(paths, f"data.{name}_files") for name, paths in self._paths().items()}
        splits = with_validation(splits, "source", self.validation_fraction)
        return {name: Dataset.from_dict(rows) for name, rows in splits.items()}

    def _read(self, paths: list[Path], key: str) -> Rows:
        if _are_tables(paths):
            return read_tables(paths, key, self._columns())
        source, target = (lines(read_text(path, key)) for path in paths)
        if len(source) != len(target):
            raise ValueError(
                f"{key}: {paths[0]} has {len(source)} lines and {paths[1]} {len(target)}; "
                "give files whose lines correspond"
            )
        return {"source": source, "target": target}

    def _columns(self) -> dict[str, Column]:
        return {"source": self.source_column, "target": self.target_column}

    def _paths(self) -> dict[str, list[Path]]:
        return resolve_splits(self.train_files, self.validation_files, self.test_files)


def _are_tables(paths: list[Path]) -> bool:
    return all(form(path) in TABLES for path in paths)
