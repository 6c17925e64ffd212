"""Gemma, Gemma 2, and the text of Gemma 3."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from triform.interop.architecture import Pair, Settings, pair
from triform.interop.layer_types import FULL, LOCAL, windows
from triform.interop.llama import DEFAULTS, PAIRS, LlamaLike
from triform.interop.rotary import rotary, rotary_keys

_OURS, _THEIRS = "stack.layers.{}", "model.layers.{}"
SANDWICH_PAIRS = (
    *(one for one in PAIRS if one.theirs != f"{_THEIRS}.post_attention_layernorm"),
    pair(f"{_THEIRS}.post_attention_layernorm", f"{_OURS}.attn_residual.out_norm"),
    pair(f"{_THEIRS}.pre_feedforward_layernorm", f"{_OURS}.ff_residual.norm"),
    pair(f"{_THEIRS}.post_feedforward_layernorm", f"{_OURS}.ff_residual.out_norm"),
)


class Gemma(LlamaLike):
    """Gemma team 2024 (https://arxiv.org/abs/2403.08295): scaled embeddings, gains of 1 + weight, GeGLU.

    Where `hidden_act` is "gelu" the approximation is meant: so the first files have it, and so `transformers` reads it.
    """

    name = "Gemma"
    classes = ("GemmaForCausalLM", "GemmaModel")
    model_type = "gemma"
    preset = "gemma_2b"
    unit_offset = True
    defaults: ClassVar[Mapping[str, Any]] = DEFAULTS | {
        "vocab_size": 256000,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "attention_bias": False,
    }

    def attention_values(self, config: Settings) -> dict[str, Any]:
        if config.get("use_bidirectional_attention"):
            raise config.unsupported("use_bidirectional_attention", [False])
        return {"bias": config.flag("attention_bias")}

    def own(self, config: Settings) -> dict[str, Any]:
        if config.get("hidden_activation") not in (None, "gelu_pytorch_tanh"):
            raise config.unsupported("hidden_activation", ["gelu_pytorch_tanh"])
        return {"model.feed_forward.activation.approximate": "tanh"} if config["hidden_act"] == "gelu" else {}

    def own_keys(
        self, node: Mapping[str, Any], part: Mapping[str, Any], windows: Sequence[int | None]
    ) -> dict[str, Any] | None:
        return None if any(windows) or _is_sandwich(node) else {"attention_bias": part["bias"]}


class Gemma2(LlamaLike):
    """Gemma team 2024 (https://arxiv.org/abs/2408.00118): norms behind sublayers, caps, every second layer local."""

    name = "Gemma 2"
    classes = ("Gemma2ForCausalLM", "Gemma2Model")
    model_type = "gemma2"
    preset = "gemma_2b"
    unit_offset = True
    activation_key = "hidden_activation"
    defaults: ClassVar[Mapping[str, Any]] = DEFAULTS | {
        "vocab_size": 256000,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }

    def windows(self, config: Settings) -> list[int | None]:
        every = self.every(config)
        usual = [LOCAL if (i + 1) % every else FULL for i in range(config.size("num_hidden_layers"))]
        return windows(config, config.size_or_none("sliding_window"), usual)

    def every(self, config: Settings) -> int:
        """From one layer without a window to the next, where config.json lists no layers."""
        return 2

    def attention_values(self, config: Settings) -> dict[str, Any]:
        if config.get("use_bidirectional_attention"):
            raise config.unsupported("use_bidirectional_attention", [False])
        return {
            "bias": config.flag("attention_bias"),
            "scale": config.size("query_pre_attn_scalar") ** -0.5,
            "softcap": config.number_or_none("attn_logit_softcapping"),
        }

    def own(self, config: Settings) -> dict[str, Any]:
        return {"model/placement": "sandwich", "model.head.softcap": config.number_or_none("final_logit_softcapping")}

    def own_keys(
        self, node: Mapping[str, Any], part: Mapping[str, Any], windows: Sequence[int | None]
    ) -> dict[str, Any] | None:
        if not _is_sandwich(node):
            return None
        head_dim = node["head_dim"] or node["d_model"] // node["n_heads"]
        # transformers wants a window even where no layer has one.
        window = next((window for window in windows if window is not None), self.defaults["sliding_window"])
        return {
            "attention_bias": part["bias"],
            "query_pre_attn_scalar": head_dim if part["scale"] is None else round(part["scale"] ** -2),
            "attn_logit_softcapping": part["softcap"],
            "final_logit_softcapping": node["head"]["softcap"],
            "sliding_window": window,
            "layer_types": [FULL if window is None else LOCAL for window in windows],
        }

    def pairs(self, model: nn.Module, config: Settings) -> Sequence[Pair]:
        return SANDWICH_PAIRS


class Gemma3(Gemma2):
    """Gemma team 2025 (https://arxiv.org/abs/2503.19786): norms of queries and keys for caps, every sixth layer global.

    Local layers have a rotary base of their own, without the scaling of the others.
    """

    name = "Gemma 3"
    classes = ("Gemma3ForCausalLM", "Gemma3TextModel")
    model_type = "gemma3_text"
    qk_norm = "rms_unit_offset"
    defaults: ClassVar[Mapping[str, Any]] = {
        **Gemma2.defaults,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window_pattern": 6,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    }

    def every(self, config: Settings) -> int:
        return config.size("sliding_window_pattern")

    def positions(self, config: Settings) -> dict[str, Any]:
        parameters = config.mapping("rope_parameters")
        if not parameters.keys() <= {FULL, LOCAL}:
            raise config.unsupported("rope_parameters", [{FULL: "...", LOCAL: "..."}])
        usual = {"rope_theta": config["rope_theta"], "rope_scaling": config.get("rope_scaling")}
        lengths = {"max_position_embeddings": config["max_position_embeddings"]}
        full = rotary(Settings({"rope_parameters": parameters.get(FULL)}, usual | lengths, config.where))
        usual = {"rope_theta": config.number("rope_local_base_freq")}
        local = rotary(Settings({"rope_parameters": parameters.get(LOCAL)}, usual | lengths, config.where))
        kinds = self.windows(config)
        if all(kinds):
            return local
        if not any(kinds):
            return full
        if local["model/position"] != "rotary":
            raise ValueError(
                f"{config.where}: rope_parameters[{LOCAL!r}]={parameters[LOCAL]!r} is not supported; supported: default"
            )
        return full | {"model.attention.local_theta": local["model.position.theta"]}

    def attention_values(self, config: Settings) -> dict[str, Any]:
        config.only(attn_logit_softcapping=None)  # transformers reads it, but uses it nowhere
        return {key: value for key, value in super().attention_values(config).items() if key != "softcap"}

    def own_keys(
        self, node: Mapping[str, Any], part: Mapping[str, Any], windows: Sequence[int | None]
    ) -> dict[str, Any] | None:
        keys = super().own_keys(node, part, windows)
        if keys is None:
            return None
        full = rotary_keys(node["position"])
        theta = node["attention"].get("local_theta") or node["position"]["theta"]
        local = {"rope_type": "default", "rope_theta": theta} if not all(windows) else full["rope_parameters"]
        return {
            **keys,
            **full,
            "rope_parameters": {FULL: full["rope_parameters"], LOCAL: local},
            "rope_local_base_freq": theta,
        }


def _is_sandwich(node: Mapping[str, Any]) -> bool:
    return str(node["placement"].get("_target_")).endswith(".SandwichNorm")
