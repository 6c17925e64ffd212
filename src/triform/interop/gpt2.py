"""GPT-2."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from triform.interop.activations import activation_name, plain
from triform.interop.architecture import Architecture, Choice, Pair, Settings, Transposed, Weights, pair

_LAYER, _THEIRS = "stack.layers.{}", "transformer.h.{}"
PAIRS = (
    pair("transformer.wte", "embedding.table"),
    pair("transformer.wpe", "stack.position.table"),
    pair(f"{_THEIRS}.ln_1", f"{_LAYER}.attn_residual.norm"),
    pair(
        f"{_THEIRS}.attn.c_attn",
        f"{_LAYER}.attention.q_proj",
        f"{_LAYER}.attention.k_proj",
        f"{_LAYER}.attention.v_proj",
        join=Transposed(),
    ),
    pair(f"{_THEIRS}.attn.c_proj", f"{_LAYER}.attention.out_proj", join=Transposed()),
    pair(f"{_THEIRS}.ln_2", f"{_LAYER}.ff_residual.norm"),
    pair(f"{_THEIRS}.mlp.c_fc", f"{_LAYER}.feed_forward.up_proj", join=Transposed()),
    pair(f"{_THEIRS}.mlp.c_proj", f"{_LAYER}.feed_forward.down_proj", join=Transposed()),
    pair("transformer.ln_f", "stack.final_norm"),
    pair("lm_head", "head.projection"),
)


class GPT2(Architecture):
    """Radford et al. 2019 (Language Models are Unsupervised Multitask Learners).

    The file of a `GPT2Model` is read as the language model that it is under its tied head. Dropout has one rate
    here, that of sublayers; `reorder_and_upcast_attn` changes rounding alone.
    """

    name = "GPT-2"
    classes = ("GPT2LMHeadModel", "GPT2Model")
    model_type = "gpt2"
    not_weights = r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_inner": None,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
    }

    def read(self, config: Settings, weights: Weights) -> Choice:
        config.only(scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
        if config["embd_pdrop"] != config["resid_pdrop"]:
            logging.getLogger(__name__).warning(
                "%s: embd_pdrop=%s is not resid_pdrop=%s; in training model.dropout, the latter, is used for both",
                config.where, config["embd_pdrop"], config["resid_pdrop"],
            )  # fmt: skip
        return Choice(
            "gpt2",
            {
                **plain(config, "activation_function"),
                "model.d_model": config.size("n_embd"),
                "model.n_layers": config.size("n_layer"),
                "model.n_heads": config.size("n_head"),
                "model.d_ff": config.size_or_none("n_inner") or 4 * config.size("n_embd"),
                "model.max_seq_len": config.size("n_positions"),
                "model.vocab_size": config.size("vocab_size"),
                "model.norm.eps": config.number("layer_norm_epsilon"),
                "model.dropout": config.number("resid_pdrop"),
                "model.attention.weights_dropout": config.number("attn_pdrop"),
                "model.attention.scale": None if config.flag("scale_attn_weights") else 1.0,
                "model.head.tied": config.flag("tie_word_embeddings"),
            },
        )

    def write(self, model: nn.Module, node: Mapping[str, Any]) -> dict[str, Any] | None:
        if "offset" not in node["position"] or "eps" not in node["norm"] or "tied" not in node["head"]:
            return None
        return {
            "vocab_size": node["vocab_size"],
            "n_positions": node["max_seq_len"],
            "n_embd": node["d_model"],
            "n_layer": node["n_layers"],
            "n_head": node["n_heads"],
            "n_inner": node["d_ff"],
            "activation_function": activation_name(node["feed_forward"]),
            "resid_pdrop": node["dropout"],
            "embd_pdrop": node["dropout"],
            "attn_pdrop": node["attention"]["weights_dropout"],
            "layer_norm_epsilon": node["norm"]["eps"],
            "scale_attn_weights": node["attention"]["scale"] is None,
            "tie_word_embeddings": node["head"]["tied"],
        }

    def pairs(self, model: nn.Module, config: Settings) -> Sequence[Pair]:
        return PAIRS

    def spelling(self, name: str, config: Settings) -> str:
        """OpenAI's files and those of `GPT2Model` have no prefix."""
        return name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"

    def copies(self, model: nn.Module, config: Settings) -> Mapping[str, str]:
        return {"lm_head.weight": "transformer.wte.weight"} if config["tie_word_embeddings"] else {}
