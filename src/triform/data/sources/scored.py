"""Text with a number from the user's own files: regression."""

import dataclasses
from typing import ClassVar

from triform.data.sources.base import Kind
from triform.data.sources.examples import Scored
from triform.data.sources.file_source import TableSource
from triform.data.sources.tables import Column


@dataclasses.dataclass(frozen=True)
class ScoredFiles(TableSource):
    """Tables (.tsv, .csv, .jsonl, .parquet, .arrow) with a text and a number in each row, gzipped or not.

    Args:
        text_column: name, or number from 0 if the table has no header; None: "text", else the only one left, or 0 if
            there is no header.
        score_column: the same; None: "score", else the only one left, or 1.
        train_files, validation_files, test_files, validation_fraction, encoding: see `FileSource`, which raises.
    """

    text_column: Column
    score_column: Column

    kind: ClassVar[Kind] = "scored"

    def reader(self) -> Scored:
        return Scored()
