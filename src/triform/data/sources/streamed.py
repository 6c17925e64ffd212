"""Running text that is learned from as a stream: only what is held out, and a sample, is prepared."""

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

from triform.data.corpus import MB, Corpus, Seekable, Shard, corpus, nothing_left
from triform.data.sources.base import Kind, Row, Source, digest
from triform.data.sources.files import own_code, sampled_hash
from triform.data.tokenise import SAMPLE

log = logging.getLogger(__name__)


@runtime_checkable
class Streams(Source, Protocol):
    """A source of running text whose training split can be read in parts."""

    def shards(self) -> list[Shard | Seekable]:
        """The training split in parts, each of which can be read on its own; must pickle."""

    def streamed_as(self) -> str:
        """What of the settings decides what they say."""


@dataclasses.dataclass(frozen=True)
class Streamed:
    """What is prepared of a source that is streamed: held-out text, and in place of the training split a sample of it.

    The sample, of at most `SAMPLE` bytes, trains the tokenizer, and baselines are of it. Without a validation split the
    text at the beginning of the training files is held out.

    Args:
        validation_mb: of that text, 10 ** 6 bytes; at most a tenth of the files where they can be read from anywhere.

    Raises:
        ValueError: `validation_mb` is not above 0. `load`: nothing is left to learn from.
    """

    source: Streams
    validation_mb: float

    kind: ClassVar[Kind] = "text"

    def __post_init__(self) -> None:
        if not self.validation_mb > 0:
            raise ValueError(
                f"Streamed: validation_mb={self.validation_mb} holds nothing out; set data.validation_mb above 0"
            )

    def check(self) -> None:
        self.source.check()

    def fingerprint(self) -> str:
        parts = [f"Streamed {self.validation_mb} {self.source.streamed_as()}", own_code()]
        return digest([*parts, *(self.content_hash(path) for path in self.files())])

    def files(self) -> list[Path]:
        return self.source.files()

    def content_hash(self, path: Path) -> str:
        """Files are known by size and samples: reading all of them takes as long as learning from them."""
        return sampled_hash(path)

    def load(self) -> Mapping[str, Iterable[Row]]:
        loaded = {name: rows for name, rows in self.source.load().items() if name != "train"}
        text = self.corpus(SAMPLE, 0)
        if "validation" not in loaded:
            loaded["validation"] = text.held_out()
        return {"train": self._sample(text), **loaded}

    def corpus(self, window: int, seed: int) -> Corpus:
        """What is learned from.

        Args:
            window: bytes that are shuffled together.
        """
        held_out = 0 if "validation" in self._splits else int(self.validation_mb * MB)
        shards = self.source.shards()
        if all(isinstance(shard, Seekable) for shard in shards):
            held_out = min(held_out, sum(shard.size for shard in shards if isinstance(shard, Seekable)) // 10)
        return corpus(shards, window, seed, held_out)

    @cached_property
    def _splits(self) -> set[str]:
        return set(self.source.load())

    def _sample(self, text: Corpus) -> Iterator[Row]:
        size = 0
        for row in text.sample(SAMPLE):
            size += len(row["text"].encode())
            yield row
        if not size:
            raise nothing_left(0 if "validation" in self._splits else int(self.validation_mb * MB))
        log.warning(
            "data.streaming: %.3g MB of %s training text are prepared, from many places: the tokenizer is trained on "
            "them, and baselines are of them",
            size / MB,
            "the" if text.n_bytes is None else f"{text.n_bytes / MB:.3g} MB of",
        )
