"""What every source of text offers."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

Kind = Literal["text", "pairs", "labelled", "multilabelled", "scored", "tagged", "chat", "images"]

COLUMNS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "pairs": ("source", "target"),
    "labelled": ("text", "label"),
    "multilabelled": ("text", "labels"),
    "scored": ("text", "score"),
    "tagged": ("tokens", "tags"),
    "chat": ("turns",),
}
"""Kind -> what a row holds. "label" is a string, "labels" a list of strings, "score" a number, "tokens" and "tags" are
lists of strings of one length, "turns" is a list of (text, whether it is learned); all others are texts. Rows of kind
"images" come from no table: "pixels" is an array of whole numbers from 0 to 255, (channels, height, width), "label" a
string."""

Row = Mapping[str, Any]


class Place(NamedTuple):
    """Where a row is from, for messages."""

    path: str
    unit: str
    number: int

    def __str__(self) -> str:
        return f"{self.path}, {self.unit} {self.number}"


@runtime_checkable
class Source(Protocol):
    """Text from somewhere, in splits "train", perhaps "validation" and "test".

    The `kind` says what a row is; `COLUMNS` names what it holds. A row may hold a `Place`, too, under "place". The text
    of a document (kind "text") may be an iterable of pieces, so that it need not fit into memory.

    Where there is no "validation", the source has a `validation_fraction`, of the training split: of running text its
    last part, of all else a share of distinct texts (the first column) chosen by a hash.
    """

    kind: Kind

    def check(self) -> None:
        """Raises ValueError, in one line, for what is seen to be wrong before anything is read in full."""

    def fingerprint(self) -> str:
        """Changes whenever `load` would return other rows: the cache of prepared data is keyed by it."""

    def load(self) -> Mapping[str, Iterable[Row]]:
        """The rows of each split, "train" first; each is read once, in that order."""

    def files(self) -> list[Path]:
        """The user's files among what is read, so that a change of one can be named."""


def digest(parts: Iterable[str | bytes]) -> str:
    """A hash of the parts in order, in 32 hexadecimal digits."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))  # so that ["ab", "c"] differs from ["a", "bc"]
        state.update(data)
    return state.hexdigest()


def stable_hash(text: str | bytes) -> int:
    """64 bits that are the same in every process and on every machine, unlike `hash`."""
    data = text.encode() if isinstance(text, str) else text
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
