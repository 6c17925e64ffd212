"""LLaMA and what is built like it: Mistral, Qwen2, Qwen3, Gemma."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from triform.interop.architecture import Architecture, Choice, Pair, Settings, Weights, pair
from triform.interop.rotary import rotary, rotary_keys

_LAYER, _THEIRS = "stack.layers.{}", "model.layers.{}"
PAIRS = (
    pair("model.embed_tokens", "embedding.table"),
    pair(f"{_THEIRS}.input_layernorm", f"{_LAYER}.attn_residual.norm"),
    pair(f"{_THEIRS}.self_attn.q_proj", f"{_LAYER}.attention.q_proj"),
    pair(f"{_THEIRS}.self_attn.k_proj", f"{_LAYER}.attention.k_proj"),
    pair(f"{_THEIRS}.self_attn.v_proj", f"{_LAYER}.attention.v_proj"),
    pair(f"{_THEIRS}.self_attn.o_proj", f"{_LAYER}.attention.out_proj"),
    pair(f"{_THEIRS}.self_attn.q_norm", f"{_LAYER}.attention.q_norm"),
    pair(f"{_THEIRS}.self_attn.k_norm", f"{_LAYER}.attention.k_norm"),
    pair(f"{_THEIRS}.post_attention_layernorm", f"{_LAYER}.ff_residual.norm"),
    pair(f"{_THEIRS}.mlp.gate_proj", f"{_LAYER}.feed_forward.gate_proj"),
    pair(f"{_THEIRS}.mlp.up_proj", f"{_LAYER}.feed_forward.up_proj"),
    pair(f"{_THEIRS}.mlp.down_proj", f"{_LAYER}.feed_forward.down_proj"),
    pair("model.norm", "stack.final_norm"),
    pair("lm_head", "head.projection"),
)


DEFAULTS = {
    "vocab_size": 32000,
    "num_key_value_heads": None,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "attention_dropout": 0.0,
}


class LlamaLike(Architecture):
    """Pre-norm, rotary positions, RMS norms, gated feed-forward, no dropout but on attention weights."""

    not_weights = r".*\.rotary_emb\.inv_freq"
    preset: ClassVar[str]

    def read(self, config: Settings, weights: Weights) -> Choice:
        n_heads = config["num_attention_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // n_heads
        return Choice(
            self.preset,
            {
                **rotary(config),
                "model.d_model": config["hidden_size"],
                "model.n_layers": config["num_hidden_layers"],
                "model.n_heads": n_heads,
                "model.n_kv_heads": config.get("num_key_value_heads") or n_heads,
                "model.head_dim": head_dim,
                "model.d_ff": config["intermediate_size"],
                "model.max_seq_len": config["max_position_embeddings"],
                "model.vocab_size": config["vocab_size"],
                "model.norm.eps": config["rms_norm_eps"],
                "model.head.tied": config["tie_word_embeddings"],
                "model.attention.weights_dropout": config["attention_dropout"],
                **self.own(config),
            },
        )

    def own(self, config: Settings) -> dict[str, Any]:
        """Overrides for what this one has besides."""
        return {}

    def own_keys(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of config.json for that."""
        return {}

    def write(self, model: Any, node: Mapping[str, Any]) -> dict[str, Any] | None:
        if "theta" not in node["position"] or "eps" not in node["norm"] or "tied" not in node["head"]:
            return None
        attention = model.stack.layers[0].attention
        return {
            "vocab_size": node["vocab_size"],
            "hidden_size": node["d_model"],
            "num_hidden_layers": node["n_layers"],
            "num_attention_heads": attention.n_heads,
            "num_key_value_heads": attention.n_kv_heads,
            "head_dim": attention.head_dim,
            "intermediate_size": node["d_ff"],
            "max_position_embeddings": node["max_seq_len"],
            "rms_norm_eps": node["norm"]["eps"],
            "tie_word_embeddings": node["head"]["tied"],
            "attention_dropout": node["attention"].get("weights_dropout", 0.0),
            **rotary_keys(node["position"]),
            **self.own_keys(node),
        }

    def pairs(self, model: nn.Module, config: Settings) -> Sequence[Pair]:
        return PAIRS

    def copies(self, model: nn.Module, config: Settings) -> Mapping[str, str]:
        return {"lm_head.weight": "model.embed_tokens.weight"} if config["tie_word_embeddings"] else {}


class Llama(LlamaLike):
    """Touvron et al. 2023 (https://arxiv.org/abs/2307.09288); Llama team 2024 (https://arxiv.org/abs/2407.21783)."""

    name = "LLaMA"
    classes = ("LlamaForCausalLM",)
    model_type = "llama"
    preset = "llama2_7b"
    defaults: ClassVar[Mapping[str, Any]] = DEFAULTS | {"attention_bias": False, "mlp_bias": False}

    def own(self, config: Settings) -> dict[str, Any]:
        config.only(hidden_act="silu")
        return {"model.attention.bias": config["attention_bias"], "model.feed_forward.bias": config["mlp_bias"]}

    def own_keys(self, node: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "hidden_act": "silu",
            "attention_bias": node["attention"]["bias"],
            "mlp_bias": node["feed_forward"]["bias"],
        }
