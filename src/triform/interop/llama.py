"""LLaMA and what is built like it: Mistral, Qwen2, Qwen3."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from triform.interop.activations import activation_name, gated
from triform.interop.architecture import Architecture, Choice, Pair, Settings, Weights, pair
from triform.interop.layer_types import FULL, LOCAL, attention, kinds, windows
from triform.interop.rotary import rotary, rotary_keys
from triform.models.decoder import Decoder

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
    """Pre-norm, rotary positions, RMS norms, gated feed-forward, no dropout but on attention weights.

    The file of a bare model (`LlamaModel`) is read as the language model that it is under a tied head.
    """

    not_weights = r".*\.rotary_emb\.inv_freq"
    preset: ClassVar[str]
    qk_norm: ClassVar[str | None] = None
    """A part of `model/norm` for queries and keys."""
    activation_key: ClassVar[str] = "hidden_act"
    unit_offset: ClassVar[bool] = False
    """Whether norms multiply by 1 + weight."""

    def read(self, config: Settings, weights: Weights) -> Choice:
        config.only(partial_rotary_factor=1.0)
        n_heads = config.size("num_attention_heads")
        values = {"weights_dropout": config.number("attention_dropout"), **self.attention_values(config)}
        if self.qk_norm is not None:
            values["qk_norm.eps"] = config.number("rms_norm_eps")
        return Choice(
            self.preset,
            {
                **self.positions(config),
                **gated(config, self.activation_key),
                "model.d_model": config.size("hidden_size"),
                "model.n_layers": config.size("num_hidden_layers"),
                "model.n_heads": n_heads,
                "model.n_kv_heads": config.size_or_none("num_key_value_heads") or n_heads,
                "model.head_dim": config.size_or_none("head_dim") or config.size("hidden_size") // n_heads,
                "model.d_ff": config.size("intermediate_size"),
                "model.max_seq_len": config.size("max_position_embeddings"),
                "model.vocab_size": config.size("vocab_size"),
                "model.norm.eps": config.number("rms_norm_eps"),
                "model.head.tied": config.flag("tie_word_embeddings"),
                **attention(config, self.windows(config), values, self.qk_norm),
                **self.own(config),
            },
        )

    def positions(self, config: Settings) -> dict[str, Any]:
        """The choice of `model/position`."""
        return rotary(config)

    def windows(self, config: Settings) -> list[int | None]:
        """The window of each layer, in tokens; None: it attends to all."""
        return [None] * config.size("num_hidden_layers")

    def attention_values(self, config: Settings) -> dict[str, Any]:
        """What attention has besides, by key of `Attention`."""
        return {}

    def own(self, config: Settings) -> dict[str, Any]:
        """Overrides for what else this one has."""
        return {}

    def write(self, model: nn.Module, node: Mapping[str, Any]) -> dict[str, Any] | None:
        if not isinstance(model, Decoder) or "theta" not in node["position"] or "tied" not in node["head"]:
            return None
        part, windows = kinds(node)
        if node["norm"].get("unit_offset") is not self.unit_offset or (part["qk_norm"] is None) != (
            self.qk_norm is None
        ):
            return None
        own = self.own_keys(node, part, windows)
        if own is None:
            return None
        built = model.get_submodule("stack.layers.0.attention")
        return {
            "vocab_size": node["vocab_size"],
            "hidden_size": node["d_model"],
            "num_hidden_layers": node["n_layers"],
            "num_attention_heads": built.n_heads,
            "num_key_value_heads": built.n_kv_heads,
            "head_dim": built.head_dim,
            "intermediate_size": node["d_ff"],
            self.activation_key: activation_name(node["feed_forward"]),
            "max_position_embeddings": node["max_seq_len"],
            "rms_norm_eps": node["norm"]["eps"],
            "tie_word_embeddings": node["head"]["tied"],
            "attention_dropout": part["weights_dropout"],
            **rotary_keys(node["position"]),
            **own,
        }

    def own_keys(
        self, node: Mapping[str, Any], part: Mapping[str, Any], windows: Sequence[int | None]
    ) -> dict[str, Any] | None:
        """The keys of config.json for what this one has besides; None if the model is surely not of it.

        Args:
            part: attention of a layer.
            windows: of each layer.
        """
        return {}

    def pairs(self, model: nn.Module, config: Settings) -> Sequence[Pair]:
        return PAIRS

    def spelling(self, name: str, config: Settings) -> str:
        """Files of the bare model have no prefix."""
        return name if name.startswith(("model.", "lm_head.")) else f"model.{name}"

    def copies(self, model: nn.Module, config: Settings) -> Mapping[str, str]:
        return {"lm_head.weight": "model.embed_tokens.weight"} if config["tie_word_embeddings"] else {}


class Llama(LlamaLike):
    """Touvron et al. 2023 (https://arxiv.org/abs/2307.09288); Llama team 2024 (https://arxiv.org/abs/2407.21783).

    `pretraining_tp` changes rounding alone: it cuts the products into slices.
    """

    name = "LLaMA"
    classes = ("LlamaForCausalLM", "LlamaModel")
    model_type = "llama"
    preset = "llama2_7b"
    defaults: ClassVar[Mapping[str, Any]] = DEFAULTS | {"attention_bias": False, "mlp_bias": False}

    def attention_values(self, config: Settings) -> dict[str, Any]:
        return {"bias": config.flag("attention_bias")}

    def own(self, config: Settings) -> dict[str, Any]:
        return {"model.feed_forward.bias": config.flag("mlp_bias")}

    def own_keys(
        self, node: Mapping[str, Any], part: Mapping[str, Any], windows: Sequence[int | None]
    ) -> dict[str, Any] | None:
        if any(windows):
            return None
        return {"attention_bias": part["bias"], "mlp_bias": node["feed_forward"]["bias"]}


class Mistral(LlamaLike):
    """Jiang et al. 2023 (https://arxiv.org/abs/2310.06825): LLaMA with a window, which later versions have not."""

    name = "Mistral"
    classes = ("MistralForCausalLM", "MistralModel")
    model_type = "mistral"
    preset = "mistral_7b"
    defaults: ClassVar[Mapping[str, Any]] = DEFAULTS | {
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    }

    def windows(self, config: Settings) -> list[int | None]:
        if config.get("layer_types"):
            raise config.unsupported("layer_types", [None])
        return [config.size_or_none("sliding_window")] * config.size("num_hidden_layers")

    def own_keys(
        self, node: Mapping[str, Any], part: Mapping[str, Any], windows: Sequence[int | None]
    ) -> dict[str, Any] | None:
        return {"sliding_window": windows[0]} if len(set(windows)) == 1 else None


class Qwen2(LlamaLike):
    """Qwen team 2024 (https://arxiv.org/abs/2407.10671): LLaMA with biases for queries, keys and values."""

    name = "Qwen2"
    classes = ("Qwen2ForCausalLM", "Qwen2Model")
    model_type = "qwen2"
    preset = "qwen2_0_5b"
    defaults: ClassVar[Mapping[str, Any]] = DEFAULTS | {
        "vocab_size": 151936,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }

    def windows(self, config: Settings) -> list[int | None]:
        window = config.size_or_none("sliding_window") if config.flag("use_sliding_window") else None
        first = config.number("max_window_layers")
        n_layers = config.size("num_hidden_layers")
        return windows(config, window, [FULL if window is None or i < first else LOCAL for i in range(n_layers)])

    def attention_values(self, config: Settings) -> dict[str, Any]:
        return {"bias": True, "out_bias": False}

    def own_keys(
        self, node: Mapping[str, Any], part: Mapping[str, Any], windows: Sequence[int | None]
    ) -> dict[str, Any]:
        window = next((window for window in windows if window is not None), None)
        return {
            "use_sliding_window": window is not None,
            "sliding_window": window,
            "max_window_layers": next((i for i, window in enumerate(windows) if window is not None), len(windows)),
            "layer_types": [FULL if window is None else LOCAL for window in windows],
        }


class Qwen3(Qwen2):
    """Qwen team 2025 (https://arxiv.org/abs/2505.09388): norms of queries and keys instead of their biases."""

    name = "Qwen3"
    classes = ("Qwen3ForCausalLM", "Qwen3Model")
    model_type = "qwen3"
    preset = "qwen3_0_6b"
    qk_norm = "rms"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Qwen2.defaults,
        "head_dim": 128,
        "attention_bias": False,
    }

    def attention_values(self, config: Settings) -> dict[str, Any]:
        return {"bias": config.flag("attention_bias")}

    def own_keys(
        self, node: Mapping[str, Any], part: Mapping[str, Any], windows: Sequence[int | None]
    ) -> dict[str, Any]:
        return {**super().own_keys(node, part, windows), "attention_bias": part["bias"]}
