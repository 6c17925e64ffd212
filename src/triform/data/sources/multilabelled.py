"""Text with any number of labels from the user's own files."""

import dataclasses
from typing import ClassVar

from triform.data.sources.base import Kind
from triform.data.sources.examples import MultiLabelled
from triform.data.sources.files import Files, OwnFiles
from triform.data.sources.table_files import TableFiles, TableSource
from triform.data.sources.tables import TABLES, Column


@dataclasses.dataclass(frozen=True)
class MultiLabelledFiles(TableSource):
    """Tables (.tsv, .csv, .jsonl, .parquet, .arrow) with a text and labels, perhaps none, in each row, gzipped or not.

    Args:
        train_files: path, list of paths, glob, or a folder of tables.
        validation_files: the same; None: a share of the training rows.
        test_files: the same; None: there is no test split.
        validation_fraction: that share, of distinct texts, chosen by a hash of the text.
        encoding: of the files.
        text_column: name, or number from 0 if the table has no header; None: "text", else the only one left, or 0 if
            there is no header.
        labels_column: the same; None: "labels", else the only one left, or 1. Its cells are lists (of JSON, Parquet and
            Arrow) or names with a separator between them.
        label_separator: that separator.

    Raises:
        ValueError: `label_separator` is empty, `validation_fraction` is not between 0 and 1, or Python knows no such
            `encoding`. `check`: a file is missing or empty, or a column is not there. `load`: text is not in the
            encoding, or a row is not as it should be.
    """

    train_files: Files
    validation_files: Files
    test_files: Files
    validation_fraction: float
    encoding: str
    text_column: Column
    labels_column: Column
    label_separator: str

    kind: ClassVar[Kind] = "multilabelled"

    def tables(self) -> TableFiles:
        own = OwnFiles(self.train_files, self.validation_files, self.test_files, self.encoding, TABLES)
        return TableFiles(own, MultiLabelled(self.label_separator), (self.text_column, self.labels_column))
