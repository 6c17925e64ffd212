"""Encoder-decoder Transformer."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from triform.layers.alternate import Alternate
from triform.layers.cache import KVCache
from triform.layers.embedding import TokenEmbedding
from triform.layers.init import Scheme, initialise
from triform.layers.lora import LoRA
from triform.layers.stack import Factory, Stack
from triform.models.output import ModelOutput
from triform.models.tuning import tune
from triform.models.two_stacks import TwoStacks

_OF_STACKS = (
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "d_ff",
    "max_seq_len",
    "dropout",
    "attention",
    "position",
    "norm",
    "feed_forward",
    "placement",
    "layer_drop",
    "embedding_norm",
)
"""What is said for both stacks unless one says its own."""


class EncoderDecoder(TwoStacks):
    """An encoder reads the source; a decoder reads it through cross-attention (Vaswani et al. 2017).

    One vocabulary and one embedding table serve both sides, unless `n_source_tokens` gives sources their own. Sizes and
    parts are those of both stacks, unless `encoder` or `decoder` sets its own.

    Args:
        n_tokens: rows of the embedding table that stand for tokens; None: all `vocab_size`.
        n_source_tokens: of the source, where it has a vocabulary and a table of its own; None: those of the target.
        scale_embedding: multiply token embeddings by sqrt(d_model).
        n_token_types: see `TokenEmbedding`.
        encoder: what the encoder has of its own, by the names of the arguments here; None: as both.
        decoder: the same for the decoder, which may also set `cross_attention` (None: `attention` without
            its window, or the full one of an `Alternate`: source and target have no distance).
        head: builds the head, given the token embedding.
        init: how `initialise` fills matrices.
        adapter: what is learned instead of the weights themselves; None: they are.
        frozen: beginnings of the names of parameters that are not learned.
        For the others see `Stack`.

    Raises:
        ValueError: `encoder` or `decoder` sets what no stack has, `cross_attention` has a window, a pattern of
            layers or positions of its own; see also `Stack` and the parts.
    """

    shares_memory = True

    def __init__(
        self,
        *,
        vocab_size: int,
        d_model: int,
        n_layers: int,
        n_heads: int,
        n_kv_heads: int | None,
        head_dim: int | None,
        d_ff: int,
        max_seq_len: int,
        dropout: float,
        scale_embedding: bool,
        n_token_types: int,
        attention: Factory | Alternate,
        position: Factory,
        norm: Factory,
        feed_forward: Factory,
        placement: Factory,
        layer_drop: Factory,
        init: Scheme,
        head: Factory,
        encoder: Mapping[str, Any],
        decoder: Mapping[str, Any],
        embedding_norm: Factory | None = None,
        n_tokens: int | None = None,
        n_source_tokens: int | None = None,
        adapter: LoRA | None = None,
        frozen: Sequence[str] = (),
    ) -> None:
        self.arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        shared = {name: self.arguments[name] for name in _OF_STACKS}
        encoder_has = _of_stack("encoder", shared, encoder)
        decoder_has = _of_stack("decoder", shared | {"cross_attention": None}, decoder)
        decoder_has["cross_attention"] = _cross_attention(decoder_has["cross_attention"], attention)

        self.vocab_size, self.d_model = vocab_size, d_model
        self.max_seq_len = min(encoder_has["max_seq_len"], decoder_has["max_seq_len"])
        self.embedding = TokenEmbedding(
            vocab_size, d_model, scaled=scale_embedding, n_tokens=n_tokens, n_token_types=n_token_types
        )
        self.source_embedding: TokenEmbedding | None = None
        if n_source_tokens is not None:
            self.source_embedding = TokenEmbedding(
                n_source_tokens, d_model, scaled=scale_embedding, n_token_types=n_token_types
            )
        self.source_vocab_size = vocab_size if n_source_tokens is None else n_source_tokens
        depths = encoder_has["n_layers"], decoder_has["n_layers"]
        with _told_where("encoder", encoder):
            self.encoder = Stack(causal=False, d_model=d_model, read_by=depths[1], **encoder_has)
        with _told_where("decoder", decoder):
            self.decoder = Stack(causal=True, d_model=d_model, reads=depths[0], **decoder_has)
        self.head = head(self.embedding)
        self.scheme = init
        init.parametrise(self)
        tune(self, adapter, frozen)

    def initialise(self, seed: int) -> None:
        """Fills every parameter; see `triform.layers.init.initialise`."""
        initialise(self, self.scheme, seed)

    def new_cache(self, max_len: int) -> KVCache:
        """An empty cache for `max_len` target tokens."""
        return KVCache(len(self.decoder.layers), max_len)

    def forward(
        self,
        input_ids: Int[Tensor, "batch src_len"],
        decoder_input_ids: Int[Tensor, "batch tgt_len"],
        padding_mask: Bool[Tensor, "batch src_len"] | None = None,
        decoder_padding_mask: Bool[Tensor, "batch tgt_len"] | None = None,
        token_type_ids: Int[Tensor, "batch src_len"] | None = None,
    ) -> ModelOutput:
        """`token_type_ids` are of the source, None: all 0; the tokens of a target are of type 0."""
        memory = self.encode(input_ids, padding_mask, token_type_ids)
        return self.decode(decoder_input_ids, memory, padding_mask, decoder_padding_mask)

    def encode(
        self,
        input_ids: Int[Tensor, "batch src_len"],
        padding_mask: Bool[Tensor, "batch src_len"] | None = None,
        token_type_ids: Int[Tensor, "batch src_len"] | None = None,
    ) -> Float[Tensor, "batch src_len d_model"]:
        """What the decoder reads of the source."""
        embedding = self.embedding if self.source_embedding is None else self.source_embedding
        return self.encoder(embedding(input_ids, token_type_ids), padding_mask)

    def decode(
        self,
        decoder_input_ids: Int[Tensor, "batch tgt_len"],
        memory: Float[Tensor, "sources src_len d_model"],
        padding_mask: Bool[Tensor, "sources src_len"] | None = None,
        decoder_padding_mask: Bool[Tensor, "batch kv_len"] | None = None,
        cache: KVCache | None = None,
    ) -> ModelOutput:
        """Under a cache `decoder_input_ids` are the new tokens, `decoder_padding_mask` covers all.

        Where there are fewer sources than targets, each is read by the same number of targets next to each other.
        """
        x = self.embedding(decoder_input_ids)
        hidden = self.decoder(x, decoder_padding_mask, memory=memory, memory_padding_mask=padding_mask, cache=cache)
        return ModelOutput(hidden, self.head)


def unread(settings: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    """Those of `keys` (such as "n_layers" or "attention.window") that change nothing.

    That is so where both stacks, and for attention the cross-attention too, have their own.

    Args:
        settings: the model as configured, with its `encoder` and `decoder`.
    """
    encoder, decoder = settings["encoder"], settings["decoder"]

    def is_read(name: str) -> bool:
        own = [encoder.get(name), decoder.get(name)]
        if name == "attention":
            own.append(decoder.get("cross_attention"))
        return None in own

    return [key for key in keys if not is_read(key.split(".")[0])]


def spelled_out(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same model as configured, but that each stack says all that it has and nothing is said for both.

    Two configs of the same model are then equal, whatever they share.
    """
    encoder, decoder = settings["encoder"], settings["decoder"]
    shared = {key: settings.get(key) for key in _OF_STACKS}
    spelled = {
        **{key: value for key, value in settings.items() if key not in _OF_STACKS},
        "encoder": _of_stack("encoder", shared, encoder),
        "decoder": _of_stack("decoder", shared | {"cross_attention": None}, decoder),
    }
    if spelled["decoder"]["cross_attention"] is None:
        attention: Mapping[str, Any] = settings["attention"]
        full = attention.get("full", attention)
        spelled["decoder"]["cross_attention"] = full | {"window": None} if "window" in full else full
    return spelled


@contextmanager
def _told_where(stack: str, own: Mapping[str, Any]) -> Iterator[None]:
    """A refusal of a size that a stack has of its own names that one's key."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        for name in (name for name, value in own.items() if value is not None):
            text = re.sub(rf"\bmodel\.{name}\b(?=[\s;,:]|$)", f"model.{stack}.{name}", text)
        if text == str(error):
            raise
        raise ValueError(text) from error


def _of_stack(stack: str, shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The shared sizes and parts with those of one stack in their place."""
    for key in own:
        if key not in shared:
            nearest = get_close_matches(key, shared, n=1, cutoff=0) or list(shared)[:1]
            raise ValueError(
                f"EncoderDecoder: model.{stack}.{key} is nothing that the {stack} has of its own; the nearest is "
                f"model.{stack}.{nearest[0]}"
            )
    return {**shared, **{key: value for key, value in own.items() if value is not None}}


def _cross_attention(chosen: Any, shared: Factory | Alternate) -> Factory:
    """Builds attention to the memory: as chosen for it, or as the shared one without what needs a distance."""
    if isinstance(chosen, Alternate):
        raise ValueError(
            "EncoderDecoder: alternate layers have no meaning between source and target, which have no positions in "
            "common; set model/attention@model.decoder.cross_attention to one kind, such as multi_head"
        )
    own = chosen if isinstance(chosen, Mapping) else getattr(chosen, "keywords", {})
    if "position" in own:
        raise ValueError(
            "EncoderDecoder: model.decoder.cross_attention.position is set, but source and target have no positions "
            "in common; leave it out (model/position@model.decoder.position is that of the decoder)"
        )
    inherited = shared.full if isinstance(shared, Alternate) else shared

    def build(**sizes: Any) -> nn.Module:
        module = (chosen or inherited)(**sizes)
        if getattr(module, "window", None) is not None:
            if chosen:
                raise ValueError(
                    f"EncoderDecoder: a window of {module.window} tokens has no meaning between source and target; "
                    f"set model/attention@model.decoder.cross_attention to one without, such as multi_head"
                )
            module.window = None
        return module

    return build
