"""What translated before the Transformer: a source and a target network that are no stacks of attention."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from triform.layers.embedding import TokenEmbedding
from triform.layers.front import Front, real_first
from triform.layers.init import MuP, Scheme, initialise
from triform.layers.lora import LoRA
from triform.layers.stack import Factory
from triform.layers.state import StateCache
from triform.models.output import ModelOutput
from triform.models.tuning import tune
from triform.models.two_stacks import TwoStacks


class Predecessor(TwoStacks):
    """A recurrent or convolutional encoder and decoder, with everything around them as the Transformer has it.

    Tokens, embeddings, head, padding, generation and counts are those of `EncoderDecoder`, so that only the networks
    differ.

    Args:
        network: makes the two, given `d_model`, `d_ff`, `n_layers`, `max_seq_len` and `dropout`: `Recurrent`, `ByteNet`
            or `ConvS2S`. They read rows whose real tokens come first.
        d_model: width of the embeddings, and of the hidden states that the head reads.
        d_ff: width inside a layer: an LSTM's units, a convolution's channels.
        For the others see `EncoderDecoder`.

    Raises:
        ValueError: a size below 1, `dropout` outside [0, 1), `init` is muP, which is about Transformers; see also the
            networks.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        n_layers: int,
        d_ff: int,
        max_seq_len: int,
        dropout: float,
        scale_embedding: bool,
        network: Factory,
        init: Scheme,
        head: Factory,
        n_tokens: int | None = None,
        n_source_tokens: int | None = None,
        adapter: LoRA | None = None,
        frozen: Sequence[str] = (),
    ) -> None:
        self.arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        sizes = {"d_model": d_model, "n_layers": n_layers, "d_ff": d_ff, "max_seq_len": max_seq_len}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"Predecessor: {name}={size} is less than 1; set model.{name} to at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(
                f"Predecessor: dropout={dropout} is no share; set model.dropout to at least 0 and less than 1"
            )
        if isinstance(init, MuP):
            raise ValueError(
                "Predecessor: init=MuP says how a Transformer widens, and this is none; set model/init=xavier"
            )
        self.vocab_size, self.d_model, self.max_seq_len = vocab_size, d_model, max_seq_len
        self.embedding = TokenEmbedding(vocab_size, d_model, scaled=scale_embedding, n_tokens=n_tokens)
        self.source_embedding: TokenEmbedding | None = None
        if n_source_tokens is not None:
            self.source_embedding = TokenEmbedding(n_source_tokens, d_model, scaled=scale_embedding)
        self.source_vocab_size = vocab_size if n_source_tokens is None else n_source_tokens
        made = network(**sizes, dropout=dropout)
        self.encoder, self.decoder = made.encoder, made.decoder
        self.head = head(self.embedding)
        self.scheme = init
        tune(self, adapter, frozen)

    def initialise(self, seed: int) -> None:
        """Fills every parameter; see `triform.layers.init.initialise`."""
        initialise(self, self.scheme, seed)

    def new_cache(self, max_len: int) -> StateCache:
        """An empty cache for `max_len` target tokens."""
        return StateCache(self.decoder.n_states, max_len)

    def encode(
        self, input_ids: Int[Tensor, "batch src_len"], padding_mask: Bool[Tensor, "batch src_len"] | None = None
    ) -> Float[Tensor, "batch memory_len memory_width"]:
        """What the decoder reads of the source; its real tokens have come first."""
        self._check_length(input_ids.shape[1])
        if padding_mask is not None:
            front = Front(padding_mask)
            input_ids, padding_mask = front.move(input_ids), front.padding_mask
        embedding = self.embedding if self.source_embedding is None else self.source_embedding
        memory: Tensor = self.encoder(embedding(input_ids), padding_mask)
        return memory

    def decode(
        self,
        decoder_input_ids: Int[Tensor, "batch tgt_len"],
        memory: Float[Tensor, "batch memory_len memory_width"],
        padding_mask: Bool[Tensor, "batch src_len"] | None = None,
        decoder_padding_mask: Bool[Tensor, "batch tgt_len"] | None = None,
        cache: StateCache | None = None,
    ) -> ModelOutput:
        """Under a cache `decoder_input_ids` are the new tokens.

        Raises:
            ValueError: `decoder_padding_mask` under a cache, or more than `max_seq_len` tokens.
        """
        n_new = decoder_input_ids.shape[1]
        self._check_length(n_new if cache is None else cache.length + n_new)
        front = None
        if decoder_padding_mask is not None:
            if cache is not None:
                raise ValueError(
                    "Predecessor: decoder_padding_mask is given under a cache, where targets grow as one; leave it out"
                )
            front = Front(decoder_padding_mask)
            decoder_input_ids = front.move(decoder_input_ids)
        if padding_mask is not None:
            padding_mask = real_first(padding_mask.sum(dim=1), padding_mask.shape[1])
        hidden: Tensor = self.decoder(self.embedding(decoder_input_ids), memory, padding_mask, cache)
        if cache is not None:
            cache.advance(n_new)
        return ModelOutput(hidden if front is None else front.back(hidden), self.head)

    @torch.no_grad()
    def alignment(
        self, input_ids: Int[Tensor, "batch src_len"], decoder_input_ids: Int[Tensor, "batch tgt_len"]
    ) -> Float[Tensor, "batch tgt_len src_len"] | None:
        """What each token of a target attends to in its source, in the topmost layer that does; None: none does."""
        with _captured(self.decoder) as seen:
            self(input_ids, decoder_input_ids)
        return torch.cat(list(seen.values())[-1], dim=1) if seen else None

    def _check_length(self, length: int) -> None:
        if length > self.max_seq_len:
            raise ValueError(
                f"Predecessor: a row of {length} tokens is longer than max_seq_len={self.max_seq_len}; set "
                f"model.max_seq_len to at least {length}, or data.seq_len to at most {self.max_seq_len}"
            )


@contextmanager
def _captured(decoder: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """The weights that each attention to the source returns inside, by its name, call after call."""
    seen: dict[str, list[Tensor]] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            seen.setdefault(name, []).append(output[1])

        return hook

    found = [(name, module) for name, module in decoder.named_modules() if name.endswith("cross_attention")]
    handles = [module.register_forward_hook(keep(name)) for name, module in found]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
