"""Running text from the user's own files."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar

from triform.data.corpus import LineBlocks, PlainBlocks, Seekable, Shard
from triform.data.sources.base import Kind, Place, Row
from triform.data.sources.examples import Reader, Text, rows
from triform.data.sources.file_source import FileSource
from triform.data.sources.files import form, is_plain_utf8, read_pieces
from triform.data.sources.tables import TABLES, Column, check_columns, json_rows, read_table

ENDINGS = (".txt", ".text", ".md", ".rst", ".html", ".xml", ".tex", ".py", *TABLES)


@dataclasses.dataclass(frozen=True)
class TextFiles(FileSource):
    """Plain text, each file a document, or tables (.tsv, .csv, .jsonl, .parquet, .arrow), each row one; gzipped or not.

    Args:
        text_column: of a table: name, or number from 0 if it has no header; None: "text".
        train_files, validation_files, test_files, validation_fraction, encoding: see `FileSource`, which raises.

    Raises:
        ValueError: `load`: a file is broken, or blank.
    """

    text_column: Column

    kind: ClassVar[Kind] = "text"
    endings = ENDINGS

    def check_split(self, paths: list[Path], key: str) -> None:
        for path in paths:
            if form(path) in TABLES:
                check_columns(path, key, self.columns_of(Text()), self.encoding)

    def read_split(self, paths: list[Path], key: str) -> Iterator[Row]:
        for path in paths:
            if form(path) in TABLES:
                yield from rows(Text(), read_table(path, key, self.columns_of(Text()), self.encoding))
            else:
                yield {"text": _document(path, key, self.encoding), "place": Place(str(path), "line", 1)}

    def shards(self) -> list[Shard | Seekable]:
        """The training files, each on its own."""
        key = "data.train_files"
        return [self._shard(path, key, partial(self.read_split, [path], key)) for path in self.splits()["train"]]

    def streamed_as(self) -> str:
        """What of the settings decides what the training files say."""
        return f"TextFiles {self.encoding} {self.text_column}"

    def _shard(self, path: Path, key: str, read: Callable[[], Iterator[Row]]) -> Shard | Seekable:
        if not is_plain_utf8(path, key, self.encoding):
            return Shard(read)
        if form(path) == ".jsonl":
            return LineBlocks(path, key, read, partial(_document_of_line, self.columns_of(Text())))
        return Shard(read) if form(path) in TABLES else PlainBlocks(path, key, read)

    def columns_of(self, reader: Reader) -> dict[str, Column]:
        # By its name where it is not given: one of several columns is not guessed at.
        return {name: name if column is None else column for name, column in super().columns_of(reader).items()}


def _document_of_line(columns: dict[str, Column], place: Place, line: str) -> str | None:
    for at, cells in json_rows([(place, line)], columns):
        row = Text().row(cells, at)
        return None if row is None else row["text"]
    return None


def _document(path: Path, key: str, encoding: str) -> Iterator[str]:
    is_blank = True
    for piece in read_pieces(path, key, encoding):
        is_blank = is_blank and not piece.strip()
        yield piece
    if is_blank:
        raise ValueError(f"{key}={path} holds nothing but blanks; name a file that has text")
