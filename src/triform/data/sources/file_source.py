"""What the sources that read files of the user's own have in common."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from triform.data.sources.base import Row, digest
from triform.data.sources.examples import Reader, rows
from triform.data.sources.files import (
    Files,
    check_encoding,
    check_fraction,
    content_hash,
    form,
    own_code,
    resolve,
    say_once,
)
from triform.data.sources.tables import TABLES, Column, check_columns, read_table


@dataclasses.dataclass(frozen=True)
class FileSource(ABC):
    """Files for each split, of which a share of the training one is held out where none are named for validation.

    Args:
        train_files: path, list of paths, glob, or folder, of which all files with one of `endings` are taken by name.
        validation_files: the same; None: a share of the training rows.
        test_files: the same; None: there is no test split.
        validation_fraction: that share: of running text its last part, in characters, of all else distinct texts (the
            first column) chosen by a hash.
        encoding: of all of them, by a name that Python knows; a byte-order mark in a file goes first.

    Raises:
        ValueError: `validation_fraction` is not between 0 and 1, or Python knows no such `encoding`. `check`: a file is
            missing or empty, or a column is not there. `load`: text is not in the encoding, or a row is not as it
            should be.
    """

    train_files: Files
    validation_files: Files
    test_files: Files
    validation_fraction: float
    encoding: str

    endings: ClassVar[tuple[str, ...]]
    """Of files that such a source reads, ".gz" left out."""

    def __post_init__(self) -> None:
        check_fraction(type(self).__name__, self.validation_fraction)
        check_encoding(self.encoding)

    @abstractmethod
    def check_split(self, paths: list[Path], key: str) -> None:
        """Raises what is seen to be wrong with files before they are read in full.

        Args:
            key: that named them, such as "data.train_files".
        """

    @abstractmethod
    def read_split(self, paths: list[Path], key: str) -> Iterator[Row]: ...

    def check(self) -> None:
        for name, paths in self.splits().items():
            self.check_split(paths, f"data.{name}_files")

    def load(self) -> Mapping[str, Iterable[Row]]:
        return {name: self.read_split(paths, f"data.{name}_files") for name, paths in self.splits().items()}

    def splits(self) -> dict[str, list[Path]]:
        """The files of each split that has some; "train" must."""
        paths = {"train": resolve(self.train_files, "data.train_files", self.endings)}
        if self.validation_files:
            paths["validation"] = resolve(self.validation_files, "data.validation_files", self.endings)
        if self.test_files:
            paths["test"] = resolve(self.test_files, "data.test_files", self.endings)
        return paths

    def columns_of(self, reader: Reader) -> dict[str, Column]:
        """Where its columns are, as `text_column` and the like say."""
        return {name: getattr(self, f"{name}_column") for name in reader.columns}

    def files(self) -> list[Path]:
        """Each file once."""
        return list(dict.fromkeys(path for paths in self.splits().values() for path in paths))

    def fingerprint(self) -> str:
        """Of the settings, the content of the files, and how they are read. A file that is there twice is said."""
        files = {field.name for field in dataclasses.fields(FileSource)} - {"validation_fraction", "encoding"}
        settings = {name: value for name, value in vars(self).items() if name not in files}
        parts = [f"{type(self).__name__} {settings}", own_code()]
        met: dict[str, tuple[str, Path]] = {}
        doubles: list[str] = []
        for name, paths in self.splits().items():
            for path in paths:
                content = content_hash(path)
                parts.append(f"{name} {form(path)} {content}")
                if content not in met:
                    met[content] = name, path
                else:
                    other, first = met[content]
                    meant = "" if other == name else ", so figures of it are of text that is known from there"
                    doubles.append(f"data.{name}_files: {path} holds the same as {first} of data.{other}_files{meant}")
        if doubles:
            say_once(doubles[0] + (f" ({len(doubles)} such files)" if len(doubles) > 1 else ""))
        return digest(parts)


class TableSource(FileSource):
    """A source that reads nothing but tables."""

    endings: ClassVar[tuple[str, ...]] = TABLES

    @abstractmethod
    def reader(self) -> Reader:
        """What makes a row of the cells of its columns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reader()

    def check_split(self, paths: list[Path], key: str) -> None:
        for path in paths:
            check_columns(path, key, self.columns_of(self.reader()), self.encoding)

    def read_split(self, paths: list[Path], key: str) -> Iterator[Row]:
        reader = self.reader()
        for path in paths:
            yield from rows(reader, read_table(path, key, self.columns_of(reader), self.encoding))
