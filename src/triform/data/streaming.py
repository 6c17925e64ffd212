"""Training batches of a corpus that is tokenised while it is read. The second way beside `triform.data.order`.

What a step reads is a function of the seed and its number here, too, but its place in the corpus follows from how many
rows there were before. So the place of the window that is being read is kept in checkpoints: a resumed run tokenises
that window once more and goes on.
"""

import io
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from triform.data.corpus import BEGINNING, Corpus, Passage, Position, Window
from triform.data.order import Share, cut
from triform.data.packing import Packing, best_fit
from triform.data.prepare import Prepared
from triform.data.rows import Documents, TextRows, Tokens
from triform.data.stream import Collate, data_loader
from triform.data.tokenise import Piece, cut_row, encoded
from triform.data.tokenizers import Tokenizer


class StreamOrder:
    """How long a stream is, as far as it is known before it is read: in steps of so many full rows.

    Args:
        n_rows: of an optimizer step.
        seq_len: tokens of a row.
        n_tokens: of an epoch, estimated; None: not known.
    """

    is_exact = False

    def __init__(self, n_rows: int, seq_len: int, n_tokens: float | None) -> None:
        self.n_rows, self.tokens_per_step = n_rows, n_rows * seq_len
        self.steps_per_epoch = math.nan if n_tokens is None else n_tokens / self.tokens_per_step

    def steps_for(self, epochs: float) -> int:
        """Raises ValueError: nobody knows."""
        raise ValueError(
            f"StreamOrder: trainer.max_epochs={epochs} ends no stream, whose length is not known; set "
            "trainer.max_steps, trainer.max_tokens or trainer.max_hours, and trainer.max_epochs=null"
        )

    def steps_for_tokens(self, n_tokens: int) -> int:
        return -(-n_tokens // self.tokens_per_step)

    def tokens_in(self, n_steps: int) -> int:
        return n_steps * self.tokens_per_step

    def described(self) -> str:
        steps = "" if math.isnan(self.steps_per_epoch) else f" of about {self.steps_per_epoch:,.0f} an epoch"
        return f"{self.n_rows:,} rows a step from a stream{steps}"


@dataclass(frozen=True)
class Reader:
    """Makes batches of windows.

    The rows of a window are shuffled and dealt to as few steps as can hold them, so that these have like many rows:
    `n_rows`, or a few less.

    Args:
        n_rows: most rows of a step.
        packing: whole documents in a row together; None: rows are cut anywhere.
    """

    corpus: Corpus
    prepared: Prepared
    collate: Collate
    seq_len: int
    n_rows: int
    seed: int
    packing: Packing | None

    def micro_batches(self, window: Window, share: Share, skip: int) -> Iterator[dict[str, Any]]:
        """A rank's micro-batches of a window, without its first `skip` steps."""
        tokenizer = self.prepared.tokenizer
        tokens = tokenised(window, tokenizer)
        examples: TextRows | Documents
        if self.packing is None:
            examples = TextRows(tokens, self.seq_len, offset=0)
            rows, n_rows = None, max(len(examples), 0)
        else:
            examples = Documents(tokens, self.seq_len, opening=tokenizer.eos_id)
            members, ends = best_fit(self.packing.row_lengths(examples.lengths[:, None]), self.packing.length)
            rows, n_rows = np.split(members, ends[:-1]), len(ends)
        order = np.random.default_rng([self.seed, *window.position]).permutation(n_rows)
        for step in np.array_split(order, -(-n_rows // self.n_rows) or 1)[skip:] if n_rows else ():
            for micro in range(share.accumulate):
                mine = cut(step, share.world, share.accumulate, share.rank, micro)
                if rows is None or not len(mine):
                    yield self._collated(window.position, examples, mine)
                else:
                    assert self.packing is not None
                    yield self.packing.join([self._collated(window.position, examples, rows[i]) for i in mine])

    def _collated(self, position: Position, examples: TextRows | Documents, indices: np.ndarray) -> dict[str, Any]:
        first = (position.part << 42) + (position.window << 21)
        chosen = indices.tolist()
        return self.collate([examples[i] for i in chosen], [(position.epoch, first + i) for i in chosen])


def tokenised(window: Window, tokenizer: Tokenizer) -> Tokens:
    """The text of a window. Its passages do not see each other; those that end a document have an end mark."""
    passages = window.read()
    found = list(encoded(_pieces(passages), tokenizer))
    flat = np.concatenate([ids for _, ids, _ in found]) if found else np.empty(0, dtype=np.uint32)
    lengths = np.concatenate([n for _, _, n in found]) if found else np.empty(0, dtype=np.int64)
    ends = np.cumsum(lengths)[[piece.is_last for batch, _, _ in found for piece in batch]]
    is_end = np.array([passage.is_end for passage in passages], dtype=bool)
    marked = np.insert(flat, ends[is_end], tokenizer.eos_id)
    return Tokens(marked, ends + np.cumsum(is_end))


def _pieces(passages: Sequence[Passage]) -> Iterator[Piece]:
    for passage in passages:
        data = passage.text.encode()
        yield from cut_row(io.BytesIO(data), len(data))


class Windows(IterableDataset):
    """Micro-batches of those windows that fall to one loader worker, and behind those of each where the next one is.

    Args:
        start: position of the first window, of any worker.
        skip: steps of it that are left out.
        worker: this one of `n_workers`, which take windows in turn.
    """

    def __init__(self, reader: Reader, share: Share, start: Position, skip: int, worker: int, n_workers: int) -> None:
        self.reader, self.share, self.start, self.skip = reader, share, start, skip
        self.worker, self.n_workers = worker, n_workers

    def __iter__(self) -> Iterator[dict[str, Any] | Position]:
        for number, window in enumerate(self.reader.corpus.windows(self.start)):
            if number % self.n_workers == self.worker:
                yield from self.reader.micro_batches(window, self.share, self.skip if number == 0 else 0)
                yield window.after


class Mark(NamedTuple):
    """A window, and the optimizer step that is the first to read it."""

    step: int
    position: Position


class Stream:
    """A rank's micro-batches up to optimizer step `n_steps`, from `start` on, the step `skip` steps behind `mark`.

    Counts as many as from the first step: Lightning adds what it read before it resumed.

    Attributes:
        marks: the latest windows whose micro-batches were given out.
    """

    def __init__(self, reader: Reader, share: Share, mark: Mark, start: int, n_steps: int, num_workers: int) -> None:
        self.reader, self.share, self.mark, self.start = reader, share, mark, start
        self.n_steps, self.num_workers = n_steps, num_workers
        self.marks = deque([mark], maxlen=64)

    def __len__(self) -> int:
        return self.n_steps * self.share.accumulate

    def __iter__(self) -> Iterator[dict[str, Any]]:
        n = max(self.num_workers, 1)
        skip = self.start - self.mark.step
        readers = [iter(self._reader(worker, n, skip)) for worker in range(n)]
        given, last = self.start * self.share.accumulate, len(self)
        for worker in cycle(range(n)):
            for item in readers[worker]:
                if isinstance(item, Position):
                    mark = Mark(given // self.share.accumulate, item)
                    if self.marks[-1].step == mark.step:  # the window before had no row
                        self.marks.pop()
                    self.marks.append(mark)
                    break
                given += 1
                yield item
                if given == last:
                    return

    def _reader(self, worker: int, n_workers: int, skip: int) -> DataLoader:
        windows = Windows(self.reader, self.share, self.mark.position, skip, worker, n_workers)
        return data_loader(windows, None, min(self.num_workers, 1))


class Streaming:
    """What a run reads of a corpus; beside `triform.data.module.Numbered`.

    Args:
        prepared: held-out text, the tokenizer and a sample of the corpus.
        batch_size: rows of an optimizer step; None: as many as are full in `batch_tokens` tokens.

    Raises:
        ValueError: `batch_tokens` holds no row.
    """

    def __init__(
        self,
        corpus: Corpus,
        prepared: Prepared,
        collate: Collate,
        seq_len: int,
        batch_size: int | None,
        batch_tokens: int | None,
        seed: int,
        packing: Packing | None,
    ) -> None:
        length = seq_len if packing is None else packing.length
        n_rows = batch_size if batch_tokens is None else batch_tokens // length
        if not n_rows:
            raise ValueError(
                f"Streaming: batch_tokens={batch_tokens} is less than a row, {length} tokens; raise data.batch_tokens "
                f"to {length} or more, or lower data.seq_len"
            )
        self.reader = Reader(corpus, prepared, collate, seq_len, n_rows, seed, packing)
        sample = prepared.splits["train"]
        density = len(sample.tokens) / max(sample.n_bytes, 1)
        self.order = StreamOrder(n_rows, length, None if corpus.n_bytes is None else corpus.n_bytes * density)
        self.marks = deque([Mark(0, BEGINNING)])

    def loader(self, share: Share, start: int, n_steps: int, num_workers: int) -> Stream:
        stream = Stream(self.reader, share, self._mark(start), start, n_steps, num_workers)
        self.marks = stream.marks
        return stream

    def state(self, step: int) -> dict[str, list[int]]:
        """What `restore` needs to go on at a step."""
        first, position = self._mark(step)
        return {"mark": [first, *position]}

    def restore(self, state: Mapping[str, list[int]]) -> None:
        first, *position = state["mark"]
        self.marks = deque([Mark(first, Position(*position))])

    def _mark(self, step: int) -> Mark:
        """The latest window that began by a step.

        Raises:
            ValueError: the stream is too far ahead of it.
        """
        found = next((mark for mark in reversed(self.marks) if mark.step <= step), None)
        if found is None:
            raise ValueError(
                f"Streaming: step {step} lies more than {len(self.marks)} windows of text behind what has been read; "
                "set data.num_workers=0, so that fewer are read ahead"
            )
        return found
