"""Text to tokens, once: train the tokenizer, tokenise every split, read the result by memory mapping.

A prepared folder holds `meta.json`, `tokenizer/`, and for each split and column two flat files, all values
after each other and where each row ends, for the tokens (`train.source.ids`, `train.source.ends`) and for the
text in UTF-8 (`train.source.utf8`, `train.source.utf8_ends`); of labelled text one more, `train.labels`.
"""

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from filelock import FileLock

from triform.data.sources.base import COLUMNS, Kind, Source, digest
from triform.data.sources.files import content_hash
from triform.data.tokenizers import Recipe, Tokenizer

FORMAT = 2  # raise it when the files below change their meaning
PIECE = 1 << 16  # characters tokenised at a time: long documents cost neither memory nor the use of all cores


class Ragged:
    """Rows of different lengths in one memory-mapped file. Pickles as its path."""

    def __init__(self, path: Path, ends_path: Path, dtype: str) -> None:
        self.path, self.ends_path, self.dtype = path, ends_path, dtype

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> np.ndarray:
        start = self.ends[i - 1] if i > 0 else 0
        return self.flat[start : self.ends[i]]

    @cached_property
    def flat(self) -> np.ndarray:
        return _map(self.path, self.dtype)

    @cached_property
    def ends(self) -> np.ndarray:
        return _map(self.ends_path, "int64")

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)

    def __reduce__(self) -> tuple[Any, ...]:
        return Ragged, (self.path, self.ends_path, self.dtype)


def _map(path: Path, dtype: str) -> np.ndarray:
    if path.stat().st_size == 0:  # which cannot be mapped
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")


class Split:
    """The examples of one split, tokenised, on disk. Pickles as its paths.

    Args:
        labels_path: of a "labelled" split: the file of `labels`.
    """

    def __init__(self, kind: Kind, ids: dict[str, Ragged], utf8: dict[str, Ragged], labels_path: Path | None) -> None:
        self.kind, self.ids, self.utf8, self.labels_path = kind, ids, utf8, labels_path

    def __reduce__(self) -> tuple[Any, ...]:
        return Split, (self.kind, self.ids, self.utf8, self.labels_path)

    @cached_property
    def labels(self) -> np.ndarray | None:
        """The label of each example of a "labelled" split as an index into `Prepared.labels`."""
        return None if self.labels_path is None else _map(self.labels_path, "int64")

    def __len__(self) -> int:
        return len(next(iter(self.ids.values())))

    def __getitem__(self, i: int) -> dict[str, Any]:
        """`ids`, `label` (labelled); `source_ids`, `target_ids` (pairs); `ids` of a document (text)."""
        if self.kind == "pairs":
            return {f"{column}_ids": rows[i].astype(np.int64) for column, rows in self.ids.items()}
        example: dict[str, Any] = {"ids": self.ids["text"][i].astype(np.int64)}
        if self.labels is not None:
            example["label"] = int(self.labels[i])
        return example

    def texts(self, i: int) -> dict[str, str]:
        """What example i was before it was tokenised, by column: references for metrics and samples."""
        return {column: rows[i].tobytes().decode() for column, rows in self.utf8.items()}

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example: (examples, 2) for pairs (source, target), else (examples, 1)."""
        return np.stack([rows.lengths for rows in self.ids.values()], axis=1)

    @property
    def tokens(self) -> np.ndarray:
        """All documents of a "text" split after each other, each ended by [EOS]."""
        return self.ids["text"].flat

    @property
    def document_ends(self) -> np.ndarray:
        """Where each document of a "text" split ends in `tokens`, its [EOS] included."""
        return self.ids["text"].ends

    @property
    def n_bytes(self) -> int:
        """UTF-8 bytes of all text: what bits per byte are counted over."""
        return sum(len(rows.flat) for rows in self.utf8.values())


@dataclasses.dataclass(frozen=True)
class Origin:
    """All that decides what a prepared folder holds.

    Args:
        source: the source's fingerprint.
        recipe: of the tokenizer.
        library: version of the library that trains it and splits text.
        format: of the prepared files.
        files: the user's files among the data -> hash of the content.
    """

    source: str
    recipe: str
    library: str
    format: int
    files: dict[str, str]

    @property
    def key(self) -> str:
        """Name of the prepared folder."""
        return digest([self.source, self.recipe, self.library, str(self.format)])

    def changes(self, now: "Origin") -> list[str]:
        """What is another in `now`, in words; files first."""
        files = [name for name in {**self.files, **now.files} if self.files.get(name) != now.files.get(name)]
        words = {
            "recipe": f"the tokenizer ({self.recipe}, now {now.recipe})",
            "library": f"the version of tokenizers ({self.library}, now {now.library})",
            "format": "triform's format of prepared data",
            "source": "what reads the data",
        }
        return files + [word for name, word in words.items() if getattr(self, name) != getattr(now, name)]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A prepared folder: tokenizer, splits, labels. Pickles as its path, and opens in milliseconds.

    Args:
        folder: what `prepare` made.
        kind: of its source.
        labels: the names of the classes by number, for kind "labelled".
        splits: "train", "validation" and perhaps "test".
        origin: what decided its content, see `Origin`; None where it was opened by its folder.
    """

    folder: Path
    kind: Kind
    labels: list[str] | None
    splits: dict[str, Split]
    origin: Origin | None = None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder / "tokenizer")

    def spelt_bytes(self, split: str) -> int | None:
        """UTF-8 bytes that the tokens of a text split spell; None of other kinds, and of a text with unknown tokens,
        whose bits per byte would leave out what they cost."""
        if self.kind != "text":
            return None
        text, unknown = self.splits[split], self.tokenizer.unk_id
        return None if unknown is not None and (text.tokens == unknown).any() else text.n_bytes

    @classmethod
    def open(cls, folder: Path, origin: Origin | None = None) -> "Prepared":
        """Raises ValueError: `folder` is no prepared folder."""
        meta_path = folder / "meta.json"
        if not meta_path.is_file():
            raise ValueError(f"Prepared: {folder} holds no prepared data; start the run again to make it")
        meta = json.loads(meta_path.read_text(encoding="utf-8"))
        splits = {}
        for name in meta["splits"]:
            ids, utf8 = {}, {}
            for column in meta["columns"]:
                stem = f"{name}.{column}"
                ids[column] = Ragged(folder / f"{stem}.ids", folder / f"{stem}.ends", meta["dtype"])
                utf8[column] = Ragged(folder / f"{stem}.utf8", folder / f"{stem}.utf8_ends", "uint8")
            labels = folder / f"{name}.labels" if meta["labels"] is not None else None
            splits[name] = Split(meta["kind"], ids, utf8, labels)
        return cls(folder, meta["kind"], meta["labels"], splits, origin)

    def __reduce__(self) -> tuple[Any, ...]:
        return Prepared.open, (self.folder, self.origin)


def origin(source: Source, recipe: Recipe) -> Origin:
    """What decides the content of what `prepare` makes of these."""
    files = {str(path.absolute()): content_hash(path) for path in source.files()}
    return Origin(source.fingerprint(), repr(recipe), tokenizers.__version__, FORMAT, files)


def prepare(source: Source, recipe: Recipe, cache_dir: Path, progress: bool) -> Prepared:
    """The tokenised splits of `source`, from the cache if an equal call made them before.

    The tokenizer is trained on the split "train" alone. Processes that ask for the same data wait for the one
    that makes it; a folder appears whole or not at all.

    Args:
        cache_dir: the folder of all prepared data; made if missing.
        progress: show on a terminal what is being done.

    Raises:
        ValueError: `source` has a fault, a split is empty, a held-out label does not occur in training, or
            `cache_dir` cannot be written.
    """
    source.check()
    made_from = origin(source, recipe)
    folder = cache_dir / made_from.key
    if not folder.is_dir():
        _check_writable(cache_dir)
        with FileLock(cache_dir / f"{folder.name}.lock"):
            if not folder.is_dir():
                _make(source, recipe, folder, progress)
    return Prepared.open(folder, made_from)


def cached(source: Source, recipe: Recipe, cache_dir: Path) -> Prepared | None:
    """What `prepare` returns, where it has been made before; else None."""
    source.check()
    made_from = origin(source, recipe)
    folder = cache_dir / made_from.key
    return Prepared.open(folder, made_from) if folder.is_dir() else None


def _check_writable(cache_dir: Path) -> None:
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache_dir).close()
    except OSError as error:
        raise ValueError(
            f"prepare: {cache_dir} cannot be written ({error.strerror}); set paths.cache to a folder that can"
        ) from None


def _make(source: Source, recipe: Recipe, folder: Path, progress: bool) -> None:
    for leftover in folder.parent.glob(f"{folder.name}.*.tmp"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir()  # as the umask says: `tempfile` would make a folder that colleagues cannot read
    try:
        with _status(progress) as say:
            say("reading text")
            splits = source.load()
            empty = [name for name, rows in splits.items() if len(rows) == 0]
            if empty:
                raise ValueError(
                    f"{type(source).__name__}: the split {empty[0]} has no examples; "
                    f"name files that have some in data.{empty[0]}_files"
                )
            say("training the tokenizer")
            columns = [column for column in COLUMNS[source.kind] if column != "label"]
            tokenizer = recipe.train(_texts(splits["train"], columns))
            tokenizer.save(temporary / "tokenizer")
            dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
            for name, rows in splits.items():
                for column in columns:
                    say(f"tokenising {name}")
                    _write(temporary / f"{name}.{column}", rows, column, tokenizer, dtype, source.kind == "text")
        meta: dict[str, Any] = {
            "kind": source.kind,
            "columns": columns,
            "splits": list(splits),
            "dtype": dtype,
            "labels": None,
        }
        if source.kind == "labelled":
            meta["labels"] = sorted(set(splits["train"]["label"]), key=_numbers_first)
            for name, rows in splits.items():
                _label_ids(rows, name, meta["labels"]).tofile(temporary / f"{name}.labels")
        (temporary / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
        for path in sorted(temporary.rglob("*")):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _texts(rows: Any, columns: Iterable[str]) -> Iterator[str]:
    for column in columns:
        for batch in rows.select_columns([column]).iter(1024):
            for text in batch[column]:
                yield from pieces(text)


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """`text` in pieces of about `size` characters, cut after line ends where there are any."""
    start = 0
    while len(text) - start > size:
        end = text.rfind("\n", start, start + size) + 1 or start + size
        yield text[start:end]
        start = end
    yield text[start:]


def _write(stem: Path, rows: Any, column: str, tokenizer: Tokenizer, dtype: str, end_documents: bool) -> None:
    eos = np.array([tokenizer.eos_id] if end_documents else [], dtype=dtype)
    ids_ends, utf8_ends = [0], [0]
    with open(f"{stem}.ids", "wb") as ids_file, open(f"{stem}.utf8", "wb") as utf8_file:
        for batch in rows.select_columns([column]).iter(256):
            cut = [list(pieces(text)) for text in batch[column]]
            encoded = iter(tokenizer.encode_batch([piece for text in cut for piece in text]))
            for text in cut:
                n_ids = sum(_append(ids_file, np.array(next(encoded), dtype=dtype)) for _ in text)
                ids_ends.append(ids_ends[-1] + n_ids + _append(ids_file, eos))
                n_bytes = sum(_append(utf8_file, np.frombuffer(piece.encode(), dtype="uint8")) for piece in text)
                utf8_ends.append(utf8_ends[-1] + n_bytes)
    np.array(ids_ends[1:], dtype="int64").tofile(f"{stem}.ends")
    np.array(utf8_ends[1:], dtype="int64").tofile(f"{stem}.utf8_ends")


def _append(file: Any, values: np.ndarray) -> int:
    file.write(values.tobytes())
    return len(values)


def _numbers_first(label: str) -> tuple[int, int, str]:
    return (0, int(label), label) if label.isdecimal() else (1, 0, label)  # 2 before 10


def _label_ids(rows: Any, split: str, labels: list[str]) -> np.ndarray:
    number = {label: i for i, label in enumerate(labels)}
    unknown = sorted(set(rows["label"]) - set(labels))
    if unknown:
        raise ValueError(
            f"prepare: label {unknown[0]!r} of the split {split} does not occur in training, which has "
            f"{', '.join(labels[:10])}; check data.label_column and data.{split}_files"
        )
    return np.array([number[label] for label in rows["label"]], dtype="int64")


@contextlib.contextmanager
def _status(progress: bool) -> Iterator[Callable[[str], None]]:
    if not progress:
        yield lambda message: None
        return
    from rich.console import Console

    with Console(stderr=True).status("preparing data") as status:
        yield lambda message: status.update(f"preparing data: {message}")
