"""What encoder-decoders have in common: stacks that may differ, and one table of tokens under several names."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from triform.interop.activations import activation_name, plain
from triform.interop.architecture import Architecture, Choice, Pair, Reshaped, Settings, Weights, pair

STACKS = ("encoder", "decoder")
TIES = "tie_word_embeddings"

DEFAULTS: Mapping[str, Any] = {
    "d_model": 1024,
    "max_position_embeddings": 1024,
    **{f"{stack}_layers": 12 for stack in STACKS},
    **{f"{stack}_attention_heads": 16 for stack in STACKS},
    **{f"{stack}_ffn_dim": 4096 for stack in STACKS},
    **{f"{stack}_layerdrop": 0.0 for stack in STACKS},
    "activation_function": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "scale_embedding": False,
    TIES: True,
}
"""Of BART and what has its config, all but the vocabulary."""


def each_stack(encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides for sizes (or groups) of both stacks, by their names in a model: those of the encoder for both, and
    the decoder's own where they differ."""
    overrides: dict[str, Any] = {}
    for name, value in encoder.items():
        overrides[f"model.{name}"] = value
        overrides[f"model.decoder.{name}"] = decoder[name] if decoder[name] != value else None
    return overrides


def layer_drops(rates: Sequence[float]) -> dict[str, Any]:
    """Overrides for the rates at which the encoder and the decoder skip layers in training."""
    return {
        key: value
        for stack, rate in zip(STACKS, rates, strict=True)
        if rate
        for key, value in {
            f"model/layer_drop@model.{stack}.layer_drop": "constant",
            f"model.{stack}.layer_drop.rate": rate,
        }.items()
    }


class BartLike(Architecture):
    """Norms after sublayers, biases everywhere, one table of tokens, and a bias for each that is no parameter."""

    preset: ClassVar[str]
    pairs_of_positions: ClassVar[tuple[Pair, ...]] = ()
    not_weights = r"(model\.)?(encoder|decoder)\.version"

    def read(self, config: Settings, weights: Weights) -> Choice:
        config.only(is_encoder_decoder=True, is_decoder=False, add_final_layer_norm=False, normalize_before=False)
        names = {self.spelling(name, config): name for name in weights}
        self._check_tables(config, weights, names)
        bias = names.get("final_logits_bias")
        sizes = [
            {
                "n_layers": config.size(f"{stack}_layers"),
                "n_heads": config.size(f"{stack}_attention_heads"),
                "d_ff": config.size(f"{stack}_ffn_dim"),
            }
            for stack in STACKS
        ]
        return Choice(
            self.preset,
            {
                **plain(config, "activation_function"),
                **layer_drops([config.number(f"{stack}_layerdrop") for stack in STACKS]),
                **each_stack(*sizes),
                "model.d_model": config.size("d_model"),
                "model.max_seq_len": config.size("max_position_embeddings"),
                "model.vocab_size": config.size("vocab_size"),
                "model.scale_embedding": config.flag("scale_embedding"),
                "model.dropout": config.number("dropout"),
                "model.attention.weights_dropout": config.number("attention_dropout"),
                "model.feed_forward.dropout": config.number("activation_dropout"),
                "model.head.tied": config.flag(TIES),
                "model.head.bias": bias is not None and bool(weights[bias].count_nonzero()),
            },
        )

    def _check_tables(self, config: Settings, weights: Weights, names: Mapping[str, str]) -> None:
        """That one table serves both stacks, which `transformers` does not see to where the head is untied."""
        if config[TIES]:
            return
        if "lm_head.weight" not in names:
            raise ValueError(
                f"{config.where}: {TIES}=False, but the file of weights has no lm_head.weight, so that no head can "
                f"be read; if the head is the table of tokens, set {TIES} to true"
            )
        table, *others = [names[name] for name in _TABLES if name in names] or [""]
        for other in others:
            if not torch.equal(weights[table], weights[other]):
                raise ValueError(
                    f"{config.where}: {TIES}=False with {other} unlike {table} is not supported; triform has one "
                    "table of tokens for source and target"
                )

    def write(self, model: Any, node: Mapping[str, Any]) -> dict[str, Any] | None:
        if node["_target_"].rpartition(".")[2] != "EncoderDecoder" or "tied" not in node["head"]:
            return None
        config: dict[str, Any] = {
            "is_encoder_decoder": True,
            "vocab_size": node["vocab_size"],
            "d_model": node["d_model"],
            "max_position_embeddings": model.encoder.max_seq_len,
            "activation_function": activation_name(node["feed_forward"]),
            "scale_embedding": node["scale_embedding"],
            "dropout": node["dropout"],
            "attention_dropout": node["attention"]["weights_dropout"],
            "activation_dropout": node["feed_forward"]["dropout"],
            TIES: node["head"]["tied"],
            "forced_eos_token_id": None,  # the class has one of its own vocabulary
        }
        for name in STACKS:
            layers = getattr(model, name).layers
            config |= {
                f"{name}_layers": len(layers),
                f"{name}_attention_heads": layers[0].attention.n_heads,
                f"{name}_ffn_dim": layers[0].feed_forward.up_proj.out_features,
                f"{name}_layerdrop": layers[-1].layer_drop.rate,
            }
        return config

    def pairs(self, model: nn.Module, config: Settings) -> Sequence[Pair]:
        return (*_PAIRS, *self.pairs_of_positions)

    def spelling(self, name: str, config: Settings) -> str:
        """The file of a model without its head has no prefix."""
        return name if name.startswith(("model.", "lm_head.", "final_logits_bias")) else f"model.{name}"

    def copies(self, model: nn.Module, config: Settings) -> Mapping[str, str]:
        names = _TABLES[1:] + (("lm_head.weight",) if config[TIES] else ())
        return dict.fromkeys(names, _TABLES[0])

    def constants(self, model: nn.Module, config: Settings) -> Mapping[str, Tensor]:
        """The bias where there is none, and with an untied head the copies of the table that are then not made."""
        table = model.get_parameter("embedding.table.weight").detach()
        copies = () if config[TIES] else _TABLES[1:]
        return {"final_logits_bias": table.new_zeros(1, len(table)), **{name: table.clone() for name in copies}}


_TABLES = ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")


def _stack_pairs(stack: str) -> list[Pair]:
    ours, theirs = f"{stack}.layers.{{}}", f"model.{stack}.layers.{{}}"
    sublayers = [("self_attn", "attention", "attn_residual")]
    if stack == "decoder":
        sublayers.append(("encoder_attn", "cross_attention", "cross_residual"))
    return [
        *(
            pair(f"{theirs}.{name}.{projection}", f"{ours}.{attention}.{projection}")
            for name, attention, _ in sublayers
            for projection in ("q_proj", "k_proj", "v_proj", "out_proj")
        ),
        *(pair(f"{theirs}.{name}_layer_norm", f"{ours}.{residual}.norm") for name, _, residual in sublayers),
        pair(f"{theirs}.fc1", f"{ours}.feed_forward.up_proj"),
        pair(f"{theirs}.fc2", f"{ours}.feed_forward.down_proj"),
        pair(f"{theirs}.final_layer_norm", f"{ours}.ff_residual.norm"),
    ]


_PAIRS = (
    pair("model.shared", "embedding.table"),
    *_stack_pairs("encoder"),
    *_stack_pairs("decoder"),
    pair("lm_head", "head.projection"),
    pair("final_logits_bias", "head.bias", join=Reshaped(1, -1)),
)
