"""T5, first version and 1.1."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from triform.interop.activations import activation_name
from triform.interop.architecture import Architecture, Choice, Pair, Settings, Weights, pair
from triform.interop.two_stacks import STACKS, TIES, each_stack

_TABLE, _HEAD = "shared.weight", "lm_head.weight"

# feed_forward_proj -> a part, and how its GELU is computed.
_FEED_FORWARDS: Mapping[str, tuple[str, str | None]] = {
    "relu": ("relu", None),
    "gelu": ("gelu", "none"),
    "gelu_new": ("gelu", "tanh"),
    "silu": ("silu", None),
    "gated-gelu": ("geglu", "tanh"),
    "gated-gelu_new": ("geglu", "tanh"),
    "gated-silu": ("swiglu", None),
}
# (activation, gated) -> feed_forward_proj
_PROJ = {
    ("relu", False): "relu",
    ("gelu", False): "gelu",
    ("gelu_pytorch_tanh", False): "gelu_new",
    ("silu", False): "silu",
    ("gelu_pytorch_tanh", True): "gated-gelu",
    ("silu", True): "gated-silu",
}


class T5(Architecture):
    """Raffel et al. 2020 (https://arxiv.org/abs/1910.10683); 1.1: Shazeer 2020 (https://arxiv.org/abs/2002.05202).

    Two versions share a class. The first has a tied head that reads hidden states times 1 / sqrt(d_model); 1.1 has a
    head of its own. `transformers` 4 tells them apart by tie_word_embeddings alone. `transformers` 5 asks it (or
    scale_decoder_outputs, where that is given) only for the factor, and ties a head that the file does not have, or
    that equals the table; so it is done here, but that a head of its own in the file stays where tie_word_embeddings
    is false. Exports say both keys.

    `n_positions`, the length trained with, becomes `max_seq_len`, although positions have no table.
    """

    name = "T5"
    classes = ("T5ForConditionalGeneration", "T5WithLMHeadModel")
    model_type = "t5"
    # Nothing reads this table of old files: attention to the source has no positions.
    not_weights = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 32128,
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 6,
        "num_decoder_layers": None,
        "num_heads": 8,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "dropout_rate": 0.1,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
        "n_positions": 512,
        TIES: True,
    }

    def read(self, config: Settings, weights: Weights) -> Choice:
        config.only(is_encoder_decoder=True, is_decoder=False)
        proj = config["feed_forward_proj"]
        part, approximate = config.choice("feed_forward_proj", _FEED_FORWARDS)
        gated, _, activation = proj.rpartition("-")
        config.only(is_gated_act=bool(gated), dense_act_fn="gelu_new" if proj == "gated-gelu" else activation)
        scaled = config.flag("scale_decoder_outputs" if "scale_decoder_outputs" in config else TIES)
        n_layers, n_decoder_layers = config.size("num_layers"), config.size_or_none("num_decoder_layers")
        overrides = {
            "model/feed_forward": part,
            **each_stack({"n_layers": n_layers}, {"n_layers": n_decoder_layers or n_layers}),
            "model.d_model": config.size("d_model"),
            "model.n_heads": config.size("num_heads"),
            "model.head_dim": config.size("d_kv"),
            "model.d_ff": config.size("d_ff"),
            "model.max_seq_len": config.size("n_positions"),
            "model.vocab_size": config.size("vocab_size"),
            "model.norm.eps": config.number("layer_norm_epsilon"),
            "model.position.n_buckets": config.size("relative_attention_num_buckets"),
            "model.position.max_distance": config.size("relative_attention_max_distance"),
            "model.dropout": config.number("dropout_rate"),
            "model.attention.weights_dropout": config.number("dropout_rate"),
            "model.feed_forward.dropout": config.number("dropout_rate"),
            "model.head.tied": _is_tied(config, weights),
            "model.head.scaled": scaled,
        }
        if approximate is not None:
            overrides["model.feed_forward.activation.approximate"] = approximate
        return Choice("t5_small", overrides)

    def write(self, model: Any, node: Mapping[str, Any]) -> dict[str, Any] | None:
        if "n_buckets" not in node["position"] or "encoder" not in node or "tied" not in node["head"]:
            return None
        gated = node["feed_forward"]["_target_"].endswith("GatedFeedForward")
        scaled = node["head"]["scaled"]
        return {
            "is_encoder_decoder": True,
            "vocab_size": node["vocab_size"],
            "d_model": node["d_model"],
            "d_kv": model.encoder.layers[0].attention.head_dim,
            "d_ff": model.encoder.layers[0].feed_forward.up_proj.out_features,
            "num_layers": len(model.encoder.layers),
            "num_decoder_layers": len(model.decoder.layers),
            "num_heads": model.encoder.layers[0].attention.n_heads,
            "n_positions": model.encoder.max_seq_len,
            "relative_attention_num_buckets": node["position"]["n_buckets"],
            "relative_attention_max_distance": node["position"]["max_distance"],
            "dropout_rate": node["dropout"],
            "layer_norm_epsilon": node["norm"]["eps"],
            "feed_forward_proj": _PROJ[activation_name(node["feed_forward"]), gated],
            "scale_decoder_outputs": scaled,
            TIES: scaled,
        }

    def pairs(self, model: nn.Module, config: Settings) -> Sequence[Pair]:
        gated = config["feed_forward_proj"].startswith("gated-")
        return (
            pair("shared", "embedding.table"),
            *(one for stack in STACKS for one in _stack_pairs(stack, gated)),
            pair("lm_head", "head.projection"),
        )

    def copies(self, model: nn.Module, config: Settings) -> Mapping[str, str]:
        names = [f"{stack}.embed_tokens.weight" for stack in STACKS]
        return dict.fromkeys([*names, _HEAD] if not hasattr(model.head, "projection") else names, _TABLE)


def _is_tied(config: Settings, weights: Weights) -> bool:
    if _HEAD not in weights:
        return True
    table = next(
        (name for name in (_TABLE, *(f"{stack}.embed_tokens.weight" for stack in STACKS)) if name in weights), None
    )
    return bool(config[TIES]) and table is not None and torch.equal(weights[_HEAD], weights[table])


def _stack_pairs(stack: str, gated: bool) -> list[Pair]:
    ours, theirs = f"{stack}.layers.{{}}", f"{stack}.block.{{}}.layer"
    attentions = [(0, "SelfAttention", "attention", "attn_residual")]
    if stack == "decoder":
        attentions.append((1, "EncDecAttention", "cross_attention", "cross_residual"))
    last = len(attentions)
    inner = {"wi_0": "gate_proj", "wi_1": "up_proj"} if gated else {"wi": "up_proj"}
    return [
        pair(f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias", f"{stack}.position.table"),
        *(
            pair(f"{theirs}.{i}.{name}.{letter}", f"{ours}.{attention}.{projection}")
            for i, name, attention, _ in attentions
            for letter, projection in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}.items()
        ),
        *(pair(f"{theirs}.{i}.layer_norm", f"{ours}.{residual}.norm") for i, _, _, residual in attentions),
        *(
            pair(f"{theirs}.{last}.DenseReluDense.{name}", f"{ours}.feed_forward.{projection}")
            for name, projection in {**inner, "wo": "down_proj"}.items()
        ),
        pair(f"{theirs}.{last}.layer_norm", f"{ours}.ff_residual.norm"),
        pair(f"{stack}.final_layer_norm", f"{stack}.final_norm"),
    ]
