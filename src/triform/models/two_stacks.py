"""What every model has that reads a source and writes a target."""

from abc import abstractmethod
from typing import Any, ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from triform.layers.cache import Cache
from triform.layers.embedding import TokenEmbedding
from triform.models.output import ModelOutput


class TwoStacks(nn.Module):
    """An encoder reads the source, and a decoder what that made of it.

    Attributes:
        max_seq_len: most tokens in a source or a target.
        source_vocab_size: tokens of a source, where it has a vocabulary of its own.
        encoder, decoder: each has a `max_seq_len`, and unless it is a `Stack`, a method `flops(seq_len)`: of its
            forward pass over a row, beside one of the same length on the other side.
        shares_memory: whether `decode` takes several targets, next to each other, for each row of the memory.
    """

    family: ClassVar[str] = "encoder_decoder"
    shares_memory: ClassVar[bool] = False
    vocab_size: int
    source_vocab_size: int
    d_model: int
    max_seq_len: int
    embedding: TokenEmbedding
    encoder: Any
    decoder: Any
    head: Any

    @abstractmethod
    def initialise(self, seed: int) -> None:
        """Fills every parameter; see `triform.layers.init.initialise`."""

    @abstractmethod
    def new_cache(self, max_len: int) -> Cache:
        """An empty cache for `max_len` target tokens."""

    @abstractmethod
    def encode(
        self, input_ids: Int[Tensor, "batch src_len"], padding_mask: Bool[Tensor, "batch src_len"] | None = None
    ) -> Float[Tensor, "batch memory_len memory_width"]:
        """What the decoder reads of the source."""

    @abstractmethod
    def decode(
        self,
        decoder_input_ids: Int[Tensor, "batch tgt_len"],
        memory: Float[Tensor, "sources memory_len memory_width"],
        padding_mask: Bool[Tensor, "sources src_len"] | None = None,
        decoder_padding_mask: Bool[Tensor, "batch kv_len"] | None = None,
        cache: Any = None,
    ) -> ModelOutput:
        """`padding_mask` is of the source. Under a cache `decoder_input_ids` are the new ones; the mask covers all."""

    def forward(
        self,
        input_ids: Int[Tensor, "batch src_len"],
        decoder_input_ids: Int[Tensor, "batch tgt_len"],
        padding_mask: Bool[Tensor, "batch src_len"] | None = None,
        decoder_padding_mask: Bool[Tensor, "batch tgt_len"] | None = None,
    ) -> ModelOutput:
        memory = self.encode(input_ids, padding_mask)
        return self.decode(decoder_input_ids, memory, padding_mask, decoder_padding_mask)
