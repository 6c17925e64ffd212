"""Running text in rows: cut into rows of one length, or whole documents."""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from triform.data.mixture import Part
from triform.data.prepare import Split


class Tokens(NamedTuple):
    """Running text in memory, like a split.

    Args:
        tokens: of all documents after each other.
        document_ends: where each ends.
    """

    tokens: np.ndarray
    document_ends: np.ndarray


class TextRows:
    """The documents of a split after each other, in rows of `seq_len` tokens and the token after them.

    Row i is `tokens[offset + i * seq_len :][: seq_len + 1]`: consecutive rows share one token, which the
    first predicts and the second reads, so that every token after the first is predicted once. The last row
    may be shorter.

    Args:
        seq_len: tokens read per row.
        offset: tokens skipped at the start.
        n_rows: use only the first so many rows; None: all.
    """

    def __init__(self, split: Split | Part | Tokens, seq_len: int, offset: int, n_rows: int | None = None) -> None:
        self.split, self.seq_len, self.offset = split, seq_len, offset
        n_predicted = len(split.tokens) - 1 - offset
        self.n_rows = -(-n_predicted // seq_len) if n_rows is None else n_rows

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        """`ids`, and where the row touches several documents `documents`, each token's by number from 0."""
        start = self.offset + i * self.seq_len
        ids = self.split.tokens[start : start + self.seq_len + 1].astype(np.int64)
        ends = self.split.document_ends
        documents = np.searchsorted(ends, np.arange(start, start + len(ids)), side="right")
        if documents[0] == documents[-1]:
            return {"ids": ids}
        return {"ids": ids, "documents": documents - documents[0]}


class Documents:
    """The documents of a split, each whole, but for those longer than `seq_len` tokens, which are cut into parts.

    Each comes with the token before it, from which its first one is predicted: the end mark that opens a document, or
    the last token of the part before.

    Args:
        opening: the end mark; None: the one that stands before.
    """

    def __init__(self, split: Split | Part | Tokens, seq_len: int, opening: int | None = None) -> None:
        self.split, self.seq_len, self.opening = split, seq_len, opening

    @cached_property
    def starts(self) -> np.ndarray:
        ends = self.split.document_ends
        lengths = np.diff(ends, prepend=0)
        n_parts = -(-lengths // self.seq_len)
        part = np.arange(n_parts.sum()) - np.repeat(np.cumsum(n_parts) - n_parts, n_parts)
        return np.repeat(ends - lengths, n_parts) + part * self.seq_len

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts, append=len(self.split.tokens))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> dict[str, Any]:
        """`ids`, the end mark included, and `opening`, the token before."""
        tokens, start = self.split.tokens, int(self.starts[i])
        end = int(self.starts[i + 1]) if i + 1 < len(self.starts) else len(tokens)
        if self.opening is not None and start in self._first:
            return {"ids": tokens[start:end].astype(np.int64), "opening": self.opening}
        return {"ids": tokens[start:end].astype(np.int64), "opening": int(tokens[start - 1])}

    @cached_property
    def _first(self) -> set[int]:
        """Where documents begin."""
        return {0, *self.split.document_ends.tolist()}


def training_rows(split: Split | Part, seq_len: int, seed: int, epoch: int) -> TextRows:
    """The rows of one training epoch: all whole, equally many in each epoch, cut elsewhere in each.

    The offset is a pure function of (seed, epoch). What does not fit, less than two rows at the two ends of
    the text, is left out, other tokens in each epoch.
    """
    n_predicted = len(split.tokens) - 1
    n_rows = max(1, n_predicted // seq_len - 1)
    slack = min(seq_len, n_predicted - n_rows * seq_len + 1)
    offset = int(np.random.default_rng([seed, epoch, 2]).integers(slack))
    return TextRows(split, seq_len, offset, n_rows)
