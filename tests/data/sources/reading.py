"""What a source's splits hold, once read."""

from pathlib import Path
from typing import Any

from triform.data.prepare import prepare
from triform.data.sources.base import Source
from triform.data.tokenizers import Byte


def rows_of(source: Source) -> dict[str, list[dict[str, Any]]]:
    """The rows as the source gives them, without their places; texts whole."""
    source.check()
    return {
        name: [
            {key: "".join(value) if key == "text" else value for key, value in row.items() if key != "place"}
            for row in rows
        ]
        for name, rows in source.load().items()
    }


def splits_of(source: Source, tmp_path: Path) -> dict[str, list[Any]]:
    """The texts of each split when prepared: strings, or tuples of (source, target)."""
    prepared = prepare(source, Byte(), tmp_path / "cache", progress=False)
    found = {}
    for name, split in prepared.splits.items():
        texts = [tuple(split.texts(i).values()) for i in range(len(split))]
        found[name] = [text[0] if len(text) == 1 else text for text in texts]
    return found
