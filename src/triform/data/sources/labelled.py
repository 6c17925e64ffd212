"""Text with a label from the user's own files."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from triform.data.sources.base import Kind
from triform.data.sources.files import (
    Column,
    Files,
    all_files,
    check_columns,
    check_fraction,
    fingerprint,
    read_tables,
    resolve_splits,
    with_validation,
)

if TYPE_CHECKING:
    import datasets


@dataclasses.dataclass(frozen=True)
class LabelledFiles:
    """Tables (.tsv, .csv, .jsonl) with a text and a label in each row, gzipped or not. Labels are strings.

    Args:
        train_files: path, list of paths, or glob.
        validation_files: the same; None: a share of the training rows.
        test_files: the same; None: there is no test split.
        validation_fraction: that share, of distinct texts, chosen by a hash of the text.
        text_column: name, or number from 0 if the table has no header; None: "text", else the only one left, or 0 if
            there is no header.
        label_column: the same; None: "label", else the only one left, or 1.

    Raises:
        ValueError: `validation_fraction` is not between 0 and 1. `check`: a file is missing or empty, or a column is
            not there. `load`: text is not UTF-8, or a row is too short.
    """

    train_files: Files
    validation_files: Files
    test_files: Files
    validation_fraction: float
    text_column: Column
    label_column: Column

    kind: ClassVar[Kind] = "labelled"

    def __post_init__(self) -> None:
        check_fraction("LabelledFiles", self.validation_fraction)

    def check(self) -> None:
        for name, paths in self._paths().items():
            for path in paths:
                check_columns(path, f"data.{name}_files", self._columns())

    def fingerprint(self) -> str:
        return fingerprint(f"LabelledFiles {self.validation_fraction} {self._columns()}", self._paths())

    def files(self) -> list[Path]:
        return all_files(self._paths())

    def load(self) -> dict[str, "datasets.Dataset"]:
        from datasets import Dataset

        splits = {
            name: read_tables(paths, f"data.{name}_files", self._columns()) for name, paths in self._paths().items()
        }
        splits = with_validation(splits, "text", self.validation_fraction)
        return {name: Dataset.from_dict(rows) for name, rows in splits.items()}

    def _columns(self) -> dict[str, Column]:
        return {"text": self.text_column, "label": self.label_column}

    def _paths(self) -> dict[str, list[Path]]:
        return resolve_splits(self.train_files, self.validation_files, self.test_files)
