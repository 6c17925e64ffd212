"""Conversations from the user's own files."""

import dataclasses
from typing import ClassVar

from triform.data.sources.base import Kind
from triform.data.sources.examples import Chat
from triform.data.sources.file_source import TableSource
from triform.data.sources.tables import Column


@dataclasses.dataclass(frozen=True)
class ChatFiles(TableSource):
    """Tables (.jsonl, .parquet, .arrow) with the messages of a conversation in each row, gzipped or not.

    A message is {"role": ..., "content": ...} or {"from": ..., "value": ...}, where "human" is the user and "gpt" the
    assistant. A conversation is text as `template` writes it; the assistant's turns are learned.

    Args:
        messages_column: name of the column; None: "messages", else the only one.
        template: of a message, see `triform.data.sources.examples.Chat`.
        train_files, validation_files, test_files, validation_fraction, encoding: see `FileSource`, which raises.

    Raises:
        ValueError: `template` lacks {role} or {content}.
    """

    messages_column: Column
    template: str

    kind: ClassVar[Kind] = "chat"
    endings = (".jsonl", ".parquet", ".arrow")

    def reader(self) -> Chat:
        return Chat(self.template)
