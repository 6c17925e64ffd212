"""Decoder-only Transformer."""

from collections.abc import Sequence

from jaxtyping import Bool, Int
from torch import Tensor, nn

from triform.layers.alternate import Alternate
from triform.layers.cache import KVCache
from triform.layers.embedding import TokenEmbedding
from triform.layers.init import Scheme, initialise
from triform.layers.lora import LoRA
from triform.layers.stack import Factory, Stack
from triform.models.output import ModelOutput
from triform.models.tuning import tune


class Decoder(nn.Module):
    """Every token reads itself and what is before it (Radford et al. 2018).

    Args:
        n_tokens: rows of the embedding table that stand for tokens; None: all `vocab_size`.
        scale_embedding: multiply token embeddings by sqrt(d_model).
        n_token_types: see `TokenEmbedding`.
        head: builds the head, given the token embedding.
        init: how `initialise` fills matrices.
        adapter: what is learned instead of the weights themselves; None: they are.
        frozen: beginnings of the names of parameters that are not learned.
        For the others see `Stack`.

    Raises:
        ValueError: see `Stack` and the parts.
    """

    family = "decoder"

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
        embedding_norm: Factory | None = None,
        n_tokens: int | None = None,
        adapter: LoRA | None = None,
        frozen: Sequence[str] = (),
    ) -> None:
        self.arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        self.vocab_size, self.d_model, self.max_seq_len = vocab_size, d_model, max_seq_len
        self.embedding = TokenEmbedding(
            vocab_size, d_model, scaled=scale_embedding, n_tokens=n_tokens, n_token_types=n_token_types
        )
        self.stack = Stack(
            causal=True,
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

    def new_cache(self, max_len: int) -> KVCache:
        """An empty cache for `max_len` tokens."""
        return KVCache(len(self.stack.layers), max_len)

    def forward(
        self,
        input_ids: Int[Tensor, "batch seq_len"],
        padding_mask: Bool[Tensor, "batch kv_len"] | None = None,
        position_ids: Int[Tensor, "batch seq_len"] | None = None,
        document_ids: Int[Tensor, "batch kv_len"] | None = None,
        prefix_length: Int[Tensor, " batch"] | Int[Tensor, "batch kv_len"] | None = None,
        cache: KVCache | None = None,
        token_type_ids: Int[Tensor, "batch seq_len"] | None = None,
    ) -> ModelOutput:
        """Under a cache `input_ids` are the new tokens, `padding_mask` and `document_ids` cover all.

        `position_ids` None: counted from the first real token of each document. `prefix_length`: first tokens
        of each row that all see each other (see `AttentionMask`). `token_type_ids` None: all 0.
        """
        x = self.embedding(input_ids, token_type_ids)
        hidden = self.stack(x, padding_mask, position_ids, document_ids, prefix_length, cache=cache)
        return ModelOutput(hidden, self.head)
