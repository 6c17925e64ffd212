"""Gemma."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from triform.interop.architecture import Settings
from triform.interop.llama import DEFAULTS, LlamaLike


class Gemma(LlamaLike):
    """Gemma team 2024 (https://arxiv.org/abs/2403.08295): scaled embeddings, gains of 1 + weight, GeGLU.

    Where `hidden_act` is "gelu" the approximation is meant: so the first files have it, and so `transformers` reads it.
    """

    name = "Gemma"
    classes = ("GemmaForCausalLM",)
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
    ) -> dict[str, Any]:
        return {"attention_bias": part["bias"]}
