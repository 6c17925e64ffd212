"""Encoder-only Transformer."""

from collections.abc import Sequence

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from triform.layers.alternate import Alternate
from triform.layers.embedding import Embedding, TokenEmbedding
from triform.layers.init import Scheme, initialise
from triform.layers.lora import LoRA
from triform.layers.stack import Factory, Stack
from triform.models.output import ModelOutput
from triform.models.tuning import tune


class Encoder(nn.Module):
    """Every token reads every other (Devlin et al. 2019), and of an image every patch (Dosovitskiy et al. 2021).

    Args:
        vocab_size: rows of the embedding table; None where `embedding` has none.
        embedding: builds what makes vectors of the input, given `d_model` (`PatchEmbedding`); None: `TokenEmbedding`.
        n_tokens: rows of the embedding table that stand for tokens; None: all `vocab_size`.
        scale_embedding: multiply token embeddings by sqrt(d_model).
        n_token_types: see `TokenEmbedding`.
        head: builds the head, given the embedding.
        init: how `initialise` fills matrices.
        adapter: what is learned instead of the weights themselves; None: they are.
        frozen: beginnings of the names of parameters that are not learned.
        For the others see `Stack`.

    Raises:
        ValueError: no `vocab_size` though there are tokens, more vectors of an input than `max_seq_len`, or
            `scale_embedding` or `n_token_types` though there are none; see also `Stack` and the parts.
    """

    family = "encoder"

    def __init__(
        self,
        *,
        vocab_size: int | None,
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
        embedding: Factory | None = None,
        embedding_norm: Factory | None = None,
        n_tokens: int | None = None,
        adapter: LoRA | None = None,
        frozen: Sequence[str] = (),
    ) -> None:
        self.arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        self.vocab_size, self.d_model, self.max_seq_len = vocab_size, d_model, max_seq_len
        self.embedding: Embedding
        if embedding is not None:
            self.embedding = embedding(d_model)
            _check_input(self.embedding, max_seq_len, scale_embedding=scale_embedding, n_token_types=n_token_types)
        elif vocab_size is None:
            raise ValueError(
                "Encoder: vocab_size=None is no number of tokens; set model.vocab_size, or model/embedding=patches for "
                "images"
            )
        else:
            self.embedding = TokenEmbedding(
                vocab_size, d_model, scaled=scale_embedding, n_tokens=n_tokens, n_token_types=n_token_types
            )
        self.stack = Stack(
            causal=False,
            d_model=d_model,
            n_layers=n_layers,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            d_ff=d_ff,
            max_seq_len=max_seq_len,
            dropout=dropout,
            attention=attention,
            position=position,
            norm=norm,
            feed_forward=feed_forward,
            placement=placement,
            layer_drop=layer_drop,
            embedding_norm=embedding_norm,
        )
        self.head = head(self.embedding)
        self.scheme = init
        init.parametrise(self)
        tune(self, adapter, frozen)

    def initialise(self, seed: int) -> None:
        """Fills every parameter; see `triform.layers.init.initialise`."""
        initialise(self, self.scheme, seed)

    def forward(
        self,
        input_ids: Int[Tensor, "batch seq_len"] | Float[Tensor, "batch channels height width"],
        padding_mask: Bool[Tensor, "batch seq_len"] | None = None,
        position_ids: Int[Tensor, "batch seq_len"] | None = None,
        document_ids: Int[Tensor, "batch seq_len"] | None = None,
        token_type_ids: Int[Tensor, "batch seq_len"] | None = None,
    ) -> ModelOutput:
        """Of images `input_ids` are the pixels, and `seq_len` is the number of vectors made of each.

        `position_ids` None: counted from the first real token of each document; `token_type_ids` None: all 0."""
        hidden = self.stack(self.embedding(input_ids, token_type_ids), padding_mask, position_ids, document_ids)
        return ModelOutput(hidden, self.head)


def _check_input(embedding: Embedding, max_seq_len: int, **of_tokens: bool | int) -> None:
    """Refuses what has no meaning where an input is no tokens."""
    if embedding.seq_len is not None and embedding.seq_len > max_seq_len:
        raise ValueError(
            f"Encoder: {type(embedding).__name__} makes {embedding.seq_len} vectors of an input, but "
            f"max_seq_len={max_seq_len}; set model.max_seq_len to {embedding.seq_len}"
        )
    for name, value in of_tokens.items():
        if value:
            raise ValueError(
                f"Encoder: {name}={value} has no meaning under {type(embedding).__name__}, which has no tokens; set "
                f"model.{name} to {type(value)(0)}"
            )
