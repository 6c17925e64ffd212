"""Text with a label from the user's own files."""

import dataclasses
from typing import ClassVar

from triform.data.sources.base import Kind
from triform.data.sources.examples import Labelled
from triform.data.sources.files import Files, OwnFiles
from triform.data.sources.table_files import TableFiles, TableSource
from triform.data.sources.tables import TABLES, Column


@dataclasses.dataclass(frozen=True)
class LabelledFiles(TableSource):
    """Tables (.tsv, .csv, .jsonl, .parquet, .arrow) with a text and a label in each row, gzipped or not. Labels are
    strings.

    Args:
        train_files: path, list of paths, glob, or a folder of tables.
        validation_files: the same; None: a share of the training rows.
        test_files: the same; None: there is no test split.
        validation_fraction: that share, of distinct texts, chosen by a hash of the text.
        encoding: of the files.
        text_column: name, or number from 0 if the table has no header; None: "text", else the only one left, or 0 if
            there is no header.
        label_column: the same; None: "label", else the only one left, or 1.

    Raises:
        ValueError: `validation_fraction` is not between 0 and 1, or Python knows no such `encoding`. `check`: a file is
            missing or empty, or a column is not there. `load`: text is not in the encoding, or a row is not as it
            should be.
    """

    train_files: Files
    validation_files: Files
    test_files: Files
    validation_fraction: float
    encoding: str
    text_column: Column
    label_column: Column

    kind: ClassVar[Kind] = "labelled"

    def tables(self) -> TableFiles:
        own = OwnFiles(self.train_files, self.validation_files, self.test_files, self.encoding, TABLES)
        return TableFiles(own, Labelled(), (self.text_column, self.label_column))
