"""Text with any number of labels from the user's own files."""

import dataclasses
from typing import ClassVar

from triform.data.sources.base import Kind
from triform.data.sources.examples import MultiLabelled
from triform.data.sources.file_source import TableSource
from triform.data.sources.tables import Column


@dataclasses.dataclass(frozen=True)
class MultiLabelledFiles(TableSource):
    """Tables (.tsv, .csv, .jsonl, .parquet, .arrow) with a text and labels, perhaps none, in each row, gzipped or not.

    Args:
        text_column: name, or number from 0 if the table has no header; None: "text", else the only one left, or 0 if
            there is no header.
        labels_column: the same; None: "labels", else the only one left, or 1. Its cells are lists (of JSON, Parquet and
            Arrow) or names with a separator between them.
        label_separator: that separator.
        train_files, validation_files, test_files, validation_fraction, encoding: see `FileSource`, which raises.

    Raises:
        ValueError: `label_separator` is empty.
    """

    text_column: Column
    labels_column: Column
    label_separator: str

    kind: ClassVar[Kind] = "multilabelled"

    def reader(self) -> MultiLabelled:
        return MultiLabelled(self.label_separator)
