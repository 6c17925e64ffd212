"""Conversations from the user's own files."""

import dataclasses
from typing import ClassVar

from triform.data.sources.base import Kind
from triform.data.sources.examples import Chat
from triform.data.sources.files import Files, OwnFiles
from triform.data.sources.table_files import TableFiles, TableSource
from triform.data.sources.tables import Column

ENDINGS = (".jsonl", ".parquet", ".arrow")


@dataclasses.dataclass(frozen=True)
class ChatFiles(TableSource):
    """Tables (.jsonl, .parquet, .arrow) with the messages of a conversation in each row, gzipped or not.

    A message is {"role": ..., "content": ...} or {"from": ..., "value": ...}, where "human" is the user and "gpt" the
    assistant. A conversation is text as `template` writes it; the assistant's turns are learned.

    Args:
        train_files: path, list of paths, glob, or a folder of tables.
        validation_files: the same; None: a share of the training rows.
        test_files: the same; None: there is no test split.
        validation_fraction: that share, of distinct conversations, chosen by a hash of their text.
        encoding: of the files.
        messages_column: name of the column; None: "messages", else the only one.
        template: of a message, see `triform.data.sources.examples.Chat`.

    Raises:
        ValueError: `template` lacks {role} or {content}, `validation_fraction` is not between 0 and 1, or Python knows
            no such `encoding`. `check`: a file is missing or empty, or a column is not there. `load`: text is not in
            the encoding, or a row is not as it should be.
    """

    train_files: Files
    validation_files: Files
    test_files: Files
    validation_fraction: float
    encoding: str
    messages_column: Column
    template: str

    kind: ClassVar[Kind] = "chat"

    def tables(self) -> TableFiles:
        own = OwnFiles(self.train_files, self.validation_files, self.test_files, self.encoding, ENDINGS)
        return TableFiles(own, Chat(self.template), (self.messages_column,))
