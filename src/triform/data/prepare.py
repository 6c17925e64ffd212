"""Text to tokens, once: train the tokenizer, tokenise every split, read the result by memory mapping.

A prepared folder holds `meta.json`, `tokenizer/`, and for each split and text column flat files, all values after each
other and where each row ends: the text in UTF-8 (`train.source.utf8`, `train.source.utf8_ends`) and its tokens
(`train.source.ids`, `train.source.ids_ends`). Beside them, by kind: `train.labels` (with `train.labels_ends` where a
row has several), `train.scores`, `train.tags` or `train.learned` (both as long as the tokens). Images have no text:
`train.pixels` has theirs.
"""

import contextlib
import dataclasses
import json
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from filelock import FileLock

from triform.data.sources.base import Kind, Source, digest
from triform.data.sources.files import content_hash, hashes_kept_in
from triform.data.spool import LABELS, Labels, Spool, files_of, hold_out, texts_of
from triform.data.tokenise import SAMPLE, is_sampled, mapped, train, write_parts, write_tokens
from triform.data.tokenizers import Recipe, Tokenizer

log = logging.getLogger(__name__)

FORMAT = 3  # raise it when the files below change their meaning


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
        return mapped(self.path, self.dtype)

    @cached_property
    def ends(self) -> np.ndarray:
        return mapped(self.ends_path, "int64")

    @cached_property
    def lengths(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)

    def __reduce__(self) -> tuple[Any, ...]:
        return Ragged, (self.path, self.ends_path, self.dtype)


class Split:
    """The examples of one split, tokenised, on disk. Pickles as its path.

    Args:
        stem: the folder and the name of the split, which its files begin with.
        dtype: of token ids.
        shape: of each image: channels, height, width.
    """

    def __init__(self, kind: Kind, stem: Path, dtype: str, shape: Sequence[int] | None = None) -> None:
        self.kind, self.stem, self.dtype, self.shape = kind, stem, dtype, shape
        self.ids = {column: self._ragged(f"{column}.ids", dtype) for column in texts_of(kind)}
        self.utf8 = {column: self._ragged(f"{column}.utf8", "uint8") for column in texts_of(kind)}

    def __reduce__(self) -> tuple[Any, ...]:
        return Split, (self.kind, self.stem, self.dtype, self.shape)

    def _path(self, ending: str) -> Path:
        return self.stem.with_name(f"{self.stem.name}.{ending}")

    def _ragged(self, ending: str, dtype: str) -> Ragged:
        return Ragged(self._path(ending), self._path(f"{ending}_ends"), dtype)

    @cached_property
    def labels(self) -> np.ndarray | None:
        """The label of each text or image that has one, as an index into `Prepared.labels`."""
        return mapped(self._path("labels"), "int64") if self.kind in ("labelled", "images") else None

    @cached_property
    def pixels(self) -> np.ndarray | None:
        """Those of each example of an "images" split: (examples, channels, height, width), from 0 to 255."""
        return None if self.shape is None else mapped(self._path("pixels"), "uint8").reshape(-1, *self.shape)

    @cached_property
    def scores(self) -> np.ndarray | None:
        """The number of each example of a "scored" split."""
        return mapped(self._path("scores"), "float64") if self.kind == "scored" else None

    @cached_property
    def values(self) -> Ragged | None:
        """Of a "multilabelled" split each example's labels, as indices into `Prepared.labels`; of a "tagged" one each
        token's tag, -100 where a word goes on; of a "chat" one whether each token is learned."""
        names = {"multilabelled": ("labels", "int64"), "tagged": ("tags", "int64"), "chat": ("learned", "bool")}
        return self._ragged(*names[self.kind]) if self.kind in names else None

    def __len__(self) -> int:
        return len(next(iter(self.ids.values())) if self.pixels is None else self.pixels)

    def __getitem__(self, i: int) -> dict[str, Any]:
        """`ids` of a text and, by kind, its `label`, `labels`, `score`, `tags` or `learned`; of pairs `source_ids` and
        `target_ids`; of images `pixels` and `label`."""
        if self.pixels is not None:
            assert self.labels is not None
            return {"pixels": np.array(self.pixels[i]), "label": int(self.labels[i])}
        if self.kind == "pairs":
            return {f"{column}_ids": rows[i].astype(np.int64) for column, rows in self.ids.items()}
        example: dict[str, Any] = {"ids": self.ids["text"][i].astype(np.int64)}
        if self.labels is not None:
            example["label"] = int(self.labels[i])
        if self.scores is not None:
            example["score"] = float(self.scores[i])
        if self.values is not None:
            name = {"multilabelled": "labels", "tagged": "tags", "chat": "learned"}[self.kind]
            example[name] = np.array(self.values[i])
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
        labels: the names of the classes by number, for kinds that have some.
        splits: "train", "validation" and perhaps "test".
        unknown: split -> how many of its tokens are the unknown one.
        origin: what decided its content, see `Origin`; None where it was opened by its folder.
        parts: of a mixture the names of its sources; None: it is none.
        sizes: of a mixture by split how many rows of each source it has; they stand after each other.
    """

    folder: Path
    kind: Kind
    labels: list[str] | None
    splits: dict[str, Split]
    unknown: Mapping[str, int]
    origin: Origin | None = None
    parts: Sequence[str] | None = None
    sizes: Mapping[str, Sequence[int]] | None = None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(self.folder / "tokenizer")

    @property
    def unknown_shares(self) -> dict[str, float]:
        """Split -> how many of its tokens are the unknown one, as a share; splits without any left out."""
        totals = {name: sum(len(rows.flat) for rows in split.ids.values()) for name, split in self.splits.items()}
        return {split: count / totals[split] for split, count in self.unknown.items() if count}

    def spelt_bytes(self, split: str) -> int | None:
        """UTF-8 bytes that the tokens of a text split spell; None of other kinds, and of a text with unknown tokens,
        whose bits per byte would leave out what they cost."""
        if self.kind != "text":
            return None
        return None if self.unknown[split] else self.splits[split].n_bytes

    @classmethod
    def open(cls, folder: Path, origin: Origin | None = None) -> "Prepared":
        """Raises ValueError: `folder` is no prepared folder."""
        meta_path = folder / "meta.json"
        if not meta_path.is_file():
            raise ValueError(f"Prepared: {folder} holds no prepared data; start the run again to make it")
        meta = json.loads(meta_path.read_text(encoding="utf-8"))
        splits = {name: Split(meta["kind"], folder / name, meta["dtype"], meta.get("shape")) for name in meta["splits"]}
        mixed = meta.get("parts"), meta.get("sizes")
        return cls(folder, meta["kind"], meta["labels"], splits, meta["unknown"], origin, *mixed)

    def __reduce__(self) -> tuple[Any, ...]:
        return Prepared.open, (self.folder, self.origin)


def origin(source: Source, recipe: Recipe, cache_dir: Path) -> Origin:
    """What decides the content of what `prepare` makes of these."""
    with hashes_kept_in(cache_dir):
        hashed = getattr(source, "content_hash", content_hash)
        files = {str(path.absolute()): hashed(path) for path in source.files()}
        return Origin(source.fingerprint(), repr(recipe), tokenizers.__version__, FORMAT, files)


def prepare(source: Source, recipe: Recipe, cache_dir: Path, progress: bool) -> Prepared:
    """The tokenised splits of `source`, from the cache if an equal call made them before.

    The source is read once, in pieces; the tokenizer is trained on the split "train" alone, of more than `SAMPLE` bytes
    on that many. Processes that ask for the same data wait for the one that makes it; a folder appears whole or not at
    all.

    Args:
        cache_dir: the folder of all prepared data; made if missing.
        progress: show on a terminal what is being done, how far it is and how long it will take.

    Raises:
        ValueError: `source` has a fault or changes while it is read, a split is empty, a held-out label does not occur
            in training, or `cache_dir` cannot be written.
    """
    source.check()
    with contextlib.suppress(OSError):  # which is said where it has to be written to
        cache_dir.mkdir(parents=True, exist_ok=True)
    made_from = origin(source, recipe, cache_dir)
    folder = cache_dir / made_from.key
    if not folder.is_dir():
        _check_writable(cache_dir)
        with FileLock(cache_dir / f"{folder.name}.lock"):
            if not folder.is_dir():
                _make(source, recipe, folder, made_from, progress)
                for split, share in Prepared.open(folder).unknown_shares.items():
                    tell_unknown(split, share)
    return Prepared.open(folder, made_from)


def cached(source: Source, recipe: Recipe, cache_dir: Path) -> Prepared | None:
    """What `prepare` returns, where it has been made before; else None."""
    source.check()
    made_from = origin(source, recipe, cache_dir)
    folder = cache_dir / made_from.key
    return Prepared.open(folder, made_from) if folder.is_dir() else None


def tell_unknown(split: str, share: float) -> None:
    if share:
        log.warning("%s: %.3g %% of the tokens are unknown ones: what they stand for is lost", split, 100 * share)


def _check_writable(cache_dir: Path) -> None:
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache_dir).close()
    except OSError as error:
        raise ValueError(
            f"prepare: {cache_dir} cannot be written ({error.strerror}); set paths.cache to a folder that can"
        ) from None


def _make(source: Source, recipe: Recipe, folder: Path, made_from: Origin, progress: bool) -> None:
    for leftover in folder.parent.glob(f"{folder.name}.*.tmp"):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir()  # as the umask says: `tempfile` would make a folder that colleagues cannot read
    try:
        with _progress(progress) as step:
            splits, labels, sizes = _read(source, temporary, step)
            if changes := made_from.changes(origin(source, recipe, folder.parent)):
                raise ValueError(f"prepare: {changes[0]} has changed while it was read; start again")
            n_bytes = {
                split: sum(path.stat().st_size for path in temporary.glob(f"{split}.*.utf8")) for split in splits
            }
            tokenizer = train(recipe, temporary, source.kind, step("training the tokenizer", n_bytes["train"]))
            if is_sampled(recipe, n_bytes["train"]):
                log.warning(
                    "the tokenizer was trained on %d MB, evenly spread over the %d MB of the training text",
                    SAMPLE >> 20,
                    n_bytes["train"] >> 20,
                )
            tokenizer.save(temporary / "tokenizer")
            most = max(tokenizer.vocab_size, tokenizer.source.vocab_size)
            dtype = "uint16" if most <= 1 << 16 else "uint32"
            unknown = {}
            for split in splits:
                say = step(f"tokenising {split}", n_bytes[split])
                unknown[split] = tokenise(temporary, split, source.kind, tokenizer, dtype, say)
        meta: dict[str, Any] = {
            "kind": source.kind,
            "splits": splits,
            "dtype": dtype,
            "labels": labels,
            "unknown": unknown,
        }
        if hasattr(source, "parts"):
            meta["parts"], meta["sizes"] = source.parts, sizes
        if source.kind == "images":
            meta["shape"] = source.shape  # type: ignore[attr-defined]
        (temporary / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
        for path in sorted(temporary.rglob("*")):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


SPLITS = ("train", "validation", "test")
Step = Callable[[str, int | None], Callable[[int], None]]
"""(what is begun, how many bytes it will read) to a function that is told the bytes that have been read."""


def _read(source: Source, folder: Path, step: Step) -> tuple[list[str], list[str] | None, dict[str, list[int]]]:
    """Spool the rows of all splits, holding some out for validation where the source does not.

    Returns:
        The splits, the names of classes, and of a mixture by split the rows of each source.
    """
    labels = Labels()
    sizes: dict[str, list[int]] = {}
    loaded = source.load()
    for split in sorted(loaded, key=SPLITS.index):
        say = step(f"reading {split}", None)
        sizes[split] = [0] * len(getattr(source, "parts", ()))
        with Spool(folder, split, source.kind, labels) as spool:
            for row in loaded[split]:
                say(spool.add(row))
                if "part" in row:
                    sizes[split][row["part"]] += 1
        if split == "train" and "validation" not in loaded and spool.n_rows:
            fraction = getattr(source, "validation_fraction", None)
            if fraction is None:
                raise ValueError(
                    f"{type(source).__name__}: load gives no split validation, and there is no validation_fraction of "
                    "train to hold out; give it one of them"
                )
            hold_out(folder, source.kind, spool, fraction)
        labels.is_complete = True
    ends = f"{files_of(source.kind)[0]}_ends"
    splits = [split for split in SPLITS if (folder / f"{split}.{ends}").exists()]
    for split in splits:
        if (folder / f"{split}.{ends}").stat().st_size == 0:
            raise ValueError(
                f"{type(source).__name__}: the split {split} has no examples; name files that have some in "
                f"data.{split}_files"
            )
    return splits, labels.sort(folder, source.kind, splits) if source.kind in LABELS else None, sizes


def tokenise(folder: Path, split: str, kind: Kind, tokenizer: Tokenizer, dtype: str, say: Callable[[int], None]) -> int:
    """Write the tokens of a split; how many of them are unknown."""
    if kind in ("tagged", "chat"):
        n_unknown = write_parts(folder, split, kind, tokenizer, dtype, say)
        for ending in ("parts", "parts_ends"):
            (folder / f"{split}.{ending}").unlink()
        return n_unknown
    columns = texts_of(kind)
    readers = {"source": tokenizer.source}
    return sum(
        write_tokens(folder / f"{split}.{name}", readers.get(name, tokenizer), dtype, kind == "text", say)
        for name in columns
    )


@contextlib.contextmanager
def _progress(shown: bool) -> Iterator[Step]:
    if not shown:
        yield lambda what, total: lambda n: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True), transient=True) as bar:

        def step(what: str, total: int | None) -> Callable[[int], None]:
            for task in bar.task_ids:
                bar.remove_task(task)
            task = bar.add_task(f"preparing data: {what}", total=total)
            return lambda n: bar.advance(task, n)

        yield step
