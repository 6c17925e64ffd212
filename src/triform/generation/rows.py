"""The rows of token ids that are being written, and how a model of each family reads them."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from triform.layers.cache import Cache
from triform.models.decoder import Decoder
from triform.models.two_stacks import TwoStacks


class Reader(ABC):
    """How a model reads the tokens of rows, beside what else belongs to those rows.

    Attributes:
        shares_memory: whether rows that answer the same source share what was made of it.
    """

    head: nn.Module
    shares_memory: bool

    @abstractmethod
    def read(
        self, ids: Int[Tensor, "batch n_new"], length: int, cache: Cache | None
    ) -> Float[Tensor, "batch n_new d_model"]:
        """Hidden states of the last tokens of rows that are `length` tokens long."""

    @abstractmethod
    def select(self, rows: Int[Tensor, " n_rows"]) -> None:
        """What belongs to row i, or to source i where it is shared, is henceforth what belonged to `rows[i]`."""


class PromptReader(Reader):
    """Prompts of a decoder, and what it has written behind them.

    Args:
        model: a `Decoder`, or what `torch.compile` made of it.
        padding_mask: of the prompts; None: they have no padding.
        capacity: tokens that a row may come to.
    """

    def __init__(
        self, model: nn.Module, decoder: Decoder, padding_mask: Bool[Tensor, "batch seq_len"] | None, capacity: int
    ) -> None:
        self.model, self.head, self.shares_memory = model, decoder.head, False
        self.padding: Tensor | None = None
        if padding_mask is not None:  # spelled out once for all steps, as are the positions
            n_rows, length = padding_mask.shape
            self.padding = padding_mask.new_ones((n_rows, capacity))
            self.padding[:, :length] = padding_mask
            self.positions = self.padding.cumsum(dim=1) - self.padding.long()

    def read(
        self, ids: Int[Tensor, "batch n_new"], length: int, cache: Cache | None
    ) -> Float[Tensor, "batch n_new d_model"]:
        if self.padding is None:
            return self.model(ids, cache=cache).hidden
        positions = self.positions[:, length - ids.shape[1] : length]
        return self.model(ids, self.padding[:, :length], positions, cache=cache).hidden

    def select(self, rows: Int[Tensor, " n_rows"]) -> None:
        if self.padding is not None:
            self.padding = self.padding.index_select(0, rows)
            self.positions = self.positions.index_select(0, rows)


class TargetReader(Reader):
    """Targets of an encoder-decoder, and the sources that they answer."""

    def __init__(
        self,
        model: TwoStacks,
        source_ids: Int[Tensor, "batch src_len"],
        padding_mask: Bool[Tensor, "batch src_len"] | None,
    ) -> None:
        self.model, self.head, self.shares_memory = model, model.head, model.shares_memory
        self.memory, self.padding = model.encode(source_ids, padding_mask), padding_mask

    def read(
        self, ids: Int[Tensor, "batch n_new"], length: int, cache: Cache | None
    ) -> Float[Tensor, "batch n_new d_model"]:
        return self.model.decode(ids, self.memory, self.padding, cache=cache).hidden

    def select(self, rows: Int[Tensor, " n_rows"]) -> None:
        self.memory = self.memory.index_select(0, rows)
        if self.padding is not None:
            self.padding = self.padding.index_select(0, rows)


class Rows:
    """Rows of token ids, all `length` tokens long, that grow by a token at a time.

    Args:
        begin: what stands in them at first.
        capacity: tokens that a row may come to.
        cache: keeps what the model made of tokens that it has read; None: it reads all of them each time.
    """

    def __init__(
        self, begin: Int[Tensor, "batch begin_len"], capacity: int, reader: Reader, cache: Cache | None
    ) -> None:
        self.buffer = begin.new_empty((len(begin), capacity))
        self.length = begin.shape[1]
        self.buffer[:, : self.length] = begin
        self.reader, self.cache = reader, cache

    def __len__(self) -> int:
        return len(self.buffer)

    @property
    def ids(self) -> Int[Tensor, "batch length"]:
        return self.buffer[:, : self.length]

    def next_logits(self) -> Float[Tensor, "batch vocab_size"]:
        """Of the token that comes next in each row."""
        read = 0 if self.cache is None else self.cache.length
        return self.reader.head(self.reader.read(self.buffer[:, read : self.length], self.length, self.cache)[:, -1])

    def append(self, tokens: Int[Tensor, " batch"]) -> None:
        """Each row goes on with a token."""
        self.buffer[:, self.length] = tokens
        self.length += 1

    def select(self, rows: Int[Tensor, " n_rows"], sources: Int[Tensor, " n_sources"] | None) -> None:
        """Row i is henceforth what row `rows[i]` was; rows that are not named are gone, and cost nothing.

        Args:
            sources: the same for the prompts or sources that rows come from, of which each has the same number of rows,
                next to each other; None: they stay.
        """
        before, common = self.ids, 0
        self.buffer = self.buffer.index_select(0, rows)
        if self.cache is not None and sources is None and len(before) == len(rows):
            common = int((self.ids != before).any(dim=0).int().argmax())  # tokens before the first that differs
        if not self.reader.shares_memory:
            sources = None if sources is None and len(before) == len(rows) else rows
        if sources is not None:
            self.reader.select(sources)
        if self.cache is not None:
            self.cache.select(rows, sources, common)


def closed_up(going: Bool[Tensor, " n"]) -> Int[Tensor, " n_going"]:
    """Those that go on, by their places: the last ones in the gaps that the others leave, so that few move."""
    places = going.nonzero()[:, 0]
    stay = places < len(places)
    closed = torch.arange(len(places), device=going.device)
    closed[~going[: len(places)]] = places[~stay]
    return closed
