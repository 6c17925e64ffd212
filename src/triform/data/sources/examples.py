"""What a row of each kind is made of: from the cells of a table to the row that a source gives."""

import dataclasses
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from triform.data.sources.base import Kind, Place, Row
from triform.data.sources.tables import TableRow, as_text

log = logging.getLogger(__name__)


@runtime_checkable
class Reader(Protocol):
    """Makes rows of one kind from the cells of its `columns`."""

    kind: ClassVar[Kind]

    @property
    def columns(self) -> tuple[str, ...]:
        """The cells that it reads, by the names of the keys that choose them: "text" for data.text_column."""

    def row(self, cells: Sequence[Any], place: Place) -> Row | None:
        """None where the row has no text and is left out.

        Raises:
            ValueError: a cell is not what this kind needs; the message names the place.
        """


def rows(reader: Reader, table: Iterable[TableRow]) -> Iterator[Row]:
    """The rows of a table; how many have no text and are left out is said at the end."""
    n_rows, empty = 0, []
    for place, cells in table:
        n_rows += 1
        row = reader.row(cells, place)
        if row is None:
            empty.append(place)
        else:
            yield {**row, "place": place}
    say_left_out(empty, n_rows)


def say_left_out(empty: Sequence[Place], n_rows: int) -> None:
    if empty:
        log.warning("%d of %d rows have no text and are left out; the first is %s", len(empty), n_rows, empty[0])


@dataclasses.dataclass(frozen=True)
class Text:
    """A document."""

    kind: ClassVar[Kind] = "text"
    columns: ClassVar[tuple[str, ...]] = ("text",)

    def row(self, cells: Sequence[Any], place: Place) -> Row | None:
        text = as_text(cells[0], place, "text")
        return {"text": text} if text.strip() else None


@dataclasses.dataclass(frozen=True)
class Pair:
    """A source and a target; a pair of which one side is blank is left out."""

    kind: ClassVar[Kind] = "pairs"
    columns: ClassVar[tuple[str, ...]] = ("source", "target")

    def row(self, cells: Sequence[Any], place: Place) -> Row | None:
        source, target = as_text(cells[0], place, "source"), as_text(cells[1], place, "target")
        return {"source": source, "target": target} if source.strip() and target.strip() else None


@dataclasses.dataclass(frozen=True)
class Labelled:
    """A text and the name of its class, without blanks around it."""

    kind: ClassVar[Kind] = "labelled"
    columns: ClassVar[tuple[str, ...]] = ("text", "label")

    def row(self, cells: Sequence[Any], place: Place) -> Row | None:
        text, label = as_text(cells[0], place, "text"), as_text(cells[1], place, "label").strip()
        if not label:
            raise ValueError(f"{place} has no label; write one or take the row out (data.label_column)")
        return {"text": text, "label": label} if text.strip() else None


@dataclasses.dataclass(frozen=True)
class MultiLabelled:
    """A text and the names of its classes, perhaps none.

    Args:
        separator: between the names where they are one string.
    """

    separator: str

    kind: ClassVar[Kind] = "multilabelled"
    columns: ClassVar[tuple[str, ...]] = ("text", "labels")

    def __post_init__(self) -> None:
        if not self.separator:
            raise ValueError(
                "MultiLabelled: label_separator='' separates nothing; set data.label_separator to what stands between "
                "labels, such as ','"
            )

    def row(self, cells: Sequence[Any], place: Place) -> Row | None:
        text, names = as_text(cells[0], place, "text"), cells[1]
        names = names if isinstance(names, list) else as_text(names, place, "labels").split(self.separator)
        labels = [as_text(name, place, "labels").strip() for name in names]
        return {"text": text, "labels": list(dict.fromkeys(filter(None, labels)))} if text.strip() else None


@dataclasses.dataclass(frozen=True)
class Scored:
    """A text and a number."""

    kind: ClassVar[Kind] = "scored"
    columns: ClassVar[tuple[str, ...]] = ("text", "score")

    def row(self, cells: Sequence[Any], place: Place) -> Row | None:
        text, score = as_text(cells[0], place, "text"), cells[1]
        try:
            number = math.nan if isinstance(score, bool) else float(score)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(
                f"{place} has the score {str(score)[:30]!r}, which is no finite number; mend it, or set "
                "data.score_column"
            )
        return {"text": text, "score": number} if text.strip() else None


@dataclasses.dataclass(frozen=True)
class Tagged:
    """The words of a sentence and a tag for each, without blanks around it."""

    kind: ClassVar[Kind] = "tagged"
    columns: ClassVar[tuple[str, ...]] = ("tokens", "tags")

    def row(self, cells: Sequence[Any], place: Place) -> Row | None:
        tokens, tags = (_strings(cell, place, name) for cell, name in zip(cells, self.columns, strict=True))
        if len(tokens) != len(tags):
            raise ValueError(
                f"{place} has {len(tokens)} words and {len(tags)} tags; give each word one (data.tokens_column, "
                "data.tags_column)"
            )
        for name, values in (("word", tokens), ("tag", tags)):
            if not all(value.strip() for value in values):
                blank = next(i for i, value in enumerate(values) if not value.strip())
                raise ValueError(f"{place} has a blank {name}, the {blank + 1}. of {len(values)}; mend the line")
        return {"tokens": tokens, "tags": [tag.strip() for tag in tags]} if tokens else None


def _strings(cell: Any, place: Place, name: str) -> list[str]:
    if not isinstance(cell, list):
        raise ValueError(
            f"{place}: data.{name}_column holds a {type(cell).__name__}, no list; choose a column of lists of words"
        )
    return [as_text(value, place, name) for value in cell]


ASSISTANT = "assistant"
ROLES = {"human": "user", "gpt": ASSISTANT}
"""Names of roles in other people's files."""


@dataclasses.dataclass(frozen=True)
class Chat:
    """A conversation, as the texts that a template makes of its messages one after the other.

    Of an assistant's message its content is learned and what the template writes after it, the mark that ends a turn.
    Texts are tokenised apart, so that no token is half learned.

    Args:
        template: of a message, with {role} and, once, {content}; anything else in it is taken as it stands.

    Raises:
        ValueError: the template lacks {content}, has it twice, or has {role} not before it.
    """

    template: str

    kind: ClassVar[Kind] = "chat"
    columns: ClassVar[tuple[str, ...]] = ("messages",)

    def __post_init__(self) -> None:
        before, *after = self.template.split("{content}")
        if len(after) != 1 or "{role}" not in before:
            raise ValueError(
                f"Chat: template={self.template!r} needs {{role}} and after it, once, {{content}}; set data.template, "
                "for example to '<|{role}|>\\n{content}<|end|>\\n'"
            )

    def row(self, cells: Sequence[Any], place: Place) -> Row | None:
        messages = cells[0]
        if not isinstance(messages, list):
            raise ValueError(
                f"{place}: data.messages_column holds a {type(messages).__name__}, no list of messages; choose a "
                'column of lists such as [{"role": "user", "content": "Hello"}]'
            )
        if not messages:
            return None
        spoken = [_message(message, place, i) for i, message in enumerate(messages, 1)]
        if not any(role == ASSISTANT for role, _ in spoken):
            raise ValueError(
                f"{place} has no message of the role {ASSISTANT}, so nothing to learn; it has "
                f"{', '.join(dict.fromkeys(role for role, _ in spoken))}"
            )
        return {"turns": [turn for role, content in spoken for turn in self.turns(role, content)]}

    def turns(self, role: str, content: str) -> list[tuple[str, bool]]:
        """What is written for one message, and whether it is learned."""
        before, after = self.template.split("{content}")
        learned = role == ASSISTANT
        pieces = ((before, False), (content, learned), (after, learned))
        # A content is never searched for {role}.
        written = [
            (text if text is content else text.replace("{role}", role), is_learned) for text, is_learned in pieces
        ]
        return [(text, is_learned) for text, is_learned in written if text]


def _message(message: Any, place: Place, number: int) -> tuple[str, str]:
    names = ("role", "content")
    if isinstance(message, Mapping) and "from" in message and "role" not in message:
        names = ("from", "value")
    if not isinstance(message, Mapping) or not all(isinstance(message.get(name), str) for name in names):
        shown = json.dumps(message, ensure_ascii=False, default=str)
        raise ValueError(
            f"{place}, message {number} is not {{{names[0]!r}: a text, {names[1]!r}: a text}} but "
            f"{shown[:60]}{'...' if len(shown) > 60 else ''}; mend it"
        )
    role, content = (message[name] for name in names)
    return ROLES.get(role, role), content


READERS: dict[str, type[Any]] = {
    reader.kind: reader for reader in (Text, Pair, Labelled, MultiLabelled, Scored, Tagged, Chat)
}
