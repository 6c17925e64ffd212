"""Data sets of the Hugging Face hub, or local folders in their layout, through `datasets`."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from triform.data.corpus import Seekable, Shard
from triform.data.sources.base import COLUMNS, Kind, Place, Row, digest
from triform.data.sources.examples import READERS, Reader, rows
from triform.data.sources.files import check_fraction, content_hash, own_code
from triform.data.sources.tables import TableRow

SETTINGS = {"multilabelled": ("label_separator",), "chat": ("template",)}
"""Kind -> the arguments of its reader."""


@dataclasses.dataclass(frozen=True)
class Hub:
    """What `datasets.load_dataset` reads, as rows of one kind: read once, as a stream, and kept in our own cache.

    Of a folder a change of any file is seen; of the hub one revision is taken never to change.

    Args:
        path: name on the hub, such as "imdb", or a folder with data files.
        config: of the data set, where it has several; None: its only one.
        revision: commit, tag or branch of a data set on the hub; None: its main branch.
        data_kind: what a row is, see `COLUMNS`.
        columns: column by what it is, such as {"text": "sentence"}; None, or one that is left out: its own name.
        train_split: name of the split to learn from.
        validation_split: of the one looked at while training; None: a share of the training rows.
        test_split: of the one for the end; None: there is none.
        validation_fraction: that share, see `triform.data.sources.base.Source`.
        label_separator: between the labels of "multilabelled" rows that are one string.
        template: of the messages of "chat".

    Raises:
        ValueError: there is no such `data_kind`, `columns` names something else than its columns, or a share is none.
            `check`: a local folder is empty. `load`: `datasets` cannot read it, or a row is not as it should be.
    """

    path: str
    config: str | None
    revision: str | None
    data_kind: str
    columns: Mapping[str, str] | None
    train_split: str
    validation_split: str | None
    test_split: str | None
    validation_fraction: float
    label_separator: str
    template: str

    def __post_init__(self) -> None:
        check_fraction("Hub", self.validation_fraction)
        if self.data_kind not in COLUMNS:
            raise ValueError(
                f"Hub: data_kind={self.data_kind} is none; set data.data_kind to one of {', '.join(COLUMNS)}"
            )
        if not self.path:
            raise ValueError("Hub: path is not set; set data.path to a name on the hub or to a folder")
        wrong = [name for name in self.columns or {} if name not in self.reader.columns]
        if wrong:
            raise ValueError(
                f"Hub: columns={dict(self.columns or {})} names {wrong[0]!r}, which {self.data_kind} has not; set "
                f"data.columns for {', '.join(self.reader.columns)}"
            )

    @classmethod
    def kind_of(cls, config: Mapping[str, Any]) -> str:
        """The kind of what a config's arguments would build."""
        return str(config["data_kind"])

    @property
    def kind(self) -> Kind:
        return self.reader.kind

    @cached_property
    def reader(self) -> Reader:
        settings = {"label_separator": "separator", "template": "template"}
        names = SETTINGS.get(self.data_kind, ())
        reader: Reader = READERS[self.data_kind](**{settings[name]: getattr(self, name) for name in names})
        return reader

    @property
    def folder(self) -> Path | None:
        path = Path(self.path).expanduser()
        return path.absolute() if path.is_dir() else None

    def check(self) -> None:
        if self.folder is not None and not self.files():
            raise ValueError(f"Hub: data.path={self.path} is a folder without files; name one that has some")
        if self.folder is None and self.path.startswith(("/", ".", "~")):
            raise ValueError(f"Hub: data.path={self.path} does not exist; name a folder, or a data set of the hub")

    def fingerprint(self) -> str:
        folder = self.folder
        parts = [repr(dataclasses.replace(self, path="folder") if folder is not None else self), own_code()]
        parts += [f"{path.relative_to(folder)} {content_hash(path)}" for path in self.files() if folder is not None]
        return digest(parts)

    def files(self) -> list[Path]:
        if self.folder is None:
            return []
        inside = (path for path in sorted(self.folder.rglob("*")) if path.is_file())
        return [
            path for path in inside if not any(part.startswith(".") for part in path.relative_to(self.folder).parts)
        ]

    def load(self) -> Mapping[str, Iterable[Row]]:
        splits = {"train": self.train_split, "validation": self.validation_split, "test": self.test_split}
        return {
            name: rows(self.reader, self._read(f"data.{name}_split", split))
            for name, split in splits.items()
            if split is not None
        }

    def shards(self) -> list[Shard | Seekable]:
        """The training split, in the files that it is stored in."""
        n_shards = self._open("data.train_split", self.train_split).num_shards
        return [Shard(partial(self._rows, self.train_split, (n_shards, i))) for i in range(n_shards)]

    def streamed_as(self) -> str:
        """What of the settings decides what the training split says."""
        return repr(dataclasses.replace(self, path="folder") if self.folder is not None else self)

    def _rows(self, split: str, shard: tuple[int, int]) -> Iterator[Row]:
        return rows(self.reader, self._read("data.train_split", split, shard))

    def _open(self, key: str, split: str) -> Any:
        import datasets

        path = self.path if self.folder is None else str(self.folder)
        try:
            return datasets.load_dataset(path, self.config, split=split, revision=self.revision, streaming=True)
        except MemoryError:
            raise
        except Exception as error:  # the library raises whatever its readers do
            raise self._broken(key, split, error) from error

    def _broken(self, key: str, split: str, error: Exception) -> ValueError:
        reason = " ".join(str(error).split()) or type(error).__name__
        return ValueError(f"Hub: {key}={split} of data.path={self.path} cannot be read ({reason[:300]})")

    def _read(self, key: str, split: str, shard: tuple[int, int] | None = None) -> Iterator[TableRow]:
        """Of the split, or of one of so many shards of it: how many, and which from 0."""
        read = self._open(key, split)
        try:
            if shard is not None:
                read = read.shard(*shard)
            names = {name: (self.columns or {}).get(name, name) for name in self.reader.columns}
            features = getattr(read, "features", None)
            for i, row in enumerate(read, 1):
                at = Place(f"{self.path} ({split})", "row", i)
                cells = {column: _cell(row, column, name, at) for name, column in names.items()}
                yield at, [_named(cell, (features or {}).get(column)) for column, cell in cells.items()]
        except (_WrongRow, MemoryError):
            raise
        except Exception as error:
            raise self._broken(key, split, error) from error


class _WrongRow(ValueError):
    pass


def _cell(row: Mapping[str, Any], column: str, name: str, place: Place) -> Any:
    if row.get(column) is None:
        what = f"has null for {column!r}" if column in row else f"has no column {column!r}, only {', '.join(row)}"
        raise _WrongRow(f"{place} {what}; set data.columns={{{name}: ...}} to one that has a value in each row")
    return row[column]


def _named(cell: Any, feature: Any) -> Any:
    """Class numbers by their names, where the data set has some; one by one in a list."""
    inner = getattr(feature, "feature", None)
    if isinstance(cell, list) and inner is not None:
        return [_named(value, inner) for value in cell]
    names = getattr(feature, "names", None)
    return names[cell] if isinstance(names, list) and isinstance(cell, int) and 0 <= cell < len(names) else cell
