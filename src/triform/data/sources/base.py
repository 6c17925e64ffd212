"""What every source of text offers."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import datasets  # imported where rows are made: it takes seconds, and a prepared cache needs none of it

Kind = Literal["text", "pairs", "labelled"]

COLUMNS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "pairs": ("source", "target"),
    "labelled": ("text", "label"),
}


@runtime_checkable
class Source(Protocol):
    """Text from somewhere, in splits "train", "validation" and perhaps "test".

    The `kind` says what a row is: one document ("text"), a source and a target ("pairs"), or a text and its
    label ("labelled"); `COLUMNS` names the columns, all strings.
    """

    kind: Kind

    def check(self) -> None:
        """Raises ValueError, in one line, for what is seen to be wrong before anything is read in full."""

    def fingerprint(self) -> str:
        """Changes whenever `load` would return other rows: the cache of prepared data is keyed by it."""

    def load(self) -> dict[str, "datasets.Dataset"]:
        """All rows of all splits."""

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


def stable_hash(text: str) -> int:
    """64 bits that are the same in every process and on every machine, unlike `hash`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
