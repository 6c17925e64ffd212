"""Text with a label from the user's own files."""

import dataclasses
from typing import ClassVar

from triform.data.sources.base import Kind
from triform.data.sources.examples import Labelled
from triform.data.sources.file_source import TableSource
from triform.data.sources.tables import Column


@dataclasses.dataclass(frozen=True)
class LabelledFiles(TableSource):
    """Tables (.tsv, .csv, .jsonl, .parquet, .arrow) with a text and a label in each row, gzipped or not. Labels are
    strings.

    Args:
        text_column: name, or number from 0 if the table has no header; None: "text", else the only one left, or 0 if
            there is no header.
        label_column: the same; None: "label", else the only one left, or 1.
        train_files, validation_files, test_files, validation_fraction, encoding: see `FileSource`, which raises.
    """

    text_column: Column
    label_column: Column

    kind: ClassVar[Kind] = "labelled"

    def reader(self) -> Labelled:
        return Labelled()
