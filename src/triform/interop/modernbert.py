"""ModernBERT."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from triform.interop.activations import activation_name, gated
from triform.interop.architecture import Architecture, Choice, Pair, Settings, Weights, pair
from triform.interop.layer_types import FULL, LOCAL, period, windows
from triform.interop.rotary import rotary, rotary_keys
from triform.models.heads import HiddenStates

_LAYER, _THEIRS = "stack.layers.{}", "layers.{}"
BODY = (
    (("embedding.table",), "embeddings.tok_embeddings"),
    (("stack.embedding_norm",), "embeddings.norm"),
    ((f"{_LAYER}.attn_residual.norm",), f"{_THEIRS}.attn_norm"),
    (tuple(f"{_LAYER}.attention.{name}_proj" for name in "qkv"), f"{_THEIRS}.attn.Wqkv"),
    ((f"{_LAYER}.attention.out_proj",), f"{_THEIRS}.attn.Wo"),
    ((f"{_LAYER}.ff_residual.norm",), f"{_THEIRS}.mlp_norm"),
    ((f"{_LAYER}.feed_forward.gate_proj", f"{_LAYER}.feed_forward.up_proj"), f"{_THEIRS}.mlp.Wi"),
    ((f"{_LAYER}.feed_forward.down_proj",), f"{_THEIRS}.mlp.Wo"),
    (("stack.final_norm",), "final_norm"),
)
HEADS = {
    "ModernBertForMaskedLM": (
        pair("head.dense", "head.transform.dense"),
        pair("head.norm", "head.transform.norm"),
        pair("decoder.bias", "head.bias"),
        pair("decoder", "head.projection"),
    ),
    "ModernBertModel": (),
}


class ModernBert(Architecture):
    """Warner et al. 2024 (https://arxiv.org/abs/2412.13663).

    Its three rates of dropout are 0 in what was released; here `embedding_dropout` is also that of the sublayers.
    """

    name = "ModernBERT"
    classes = tuple(HEADS)
    model_type = "modernbert"
    not_weights = r".*rotary_emb\..*inv_freq"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 50368,
        "hidden_size": 768,
        "intermediate_size": 1152,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "norm_bias": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "decoder_bias": True,
        "classifier_bias": False,
        "global_attn_every_n_layers": 3,
        "local_attention": 128,
        "global_rope_theta": 160000.0,
        "local_rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }

    def read(self, config: Settings, weights: Weights) -> Choice:
        window, spacing = config.size("local_attention"), config.size("global_attn_every_n_layers")
        usual_types = [LOCAL if i % spacing else FULL for i in range(config.size("num_hidden_layers"))]
        every, first = period(config, windows(config, window, usual_types))
        local, full = self.rope(config, LOCAL, "local_rope_theta"), self.rope(config, FULL, "global_rope_theta")
        usual = local.pop("model/position"), local.pop("model.position.theta")
        if usual[0] != "rotary":
            raise ValueError(f"{config.where}: a rope_type of {LOCAL} is not supported; supported: 'default'")
        both = {
            "bias": config.flag("attention_bias"),
            "weights_dropout": config.number("attention_dropout"),
        }
        return Choice(
            "modernbert_base",
            {
                **gated(config, "hidden_activation"),
                **full,
                **{f"model.attention.{kind}.{key}": value for kind in ("local", "full") for key, value in both.items()},
                "model.attention.local.window": window,
                "model.attention.local_theta": usual[1],
                "model.attention.every": every,
                "model.attention.first": first,
                "model.d_model": config.size("hidden_size"),
                "model.n_layers": config.size("num_hidden_layers"),
                "model.n_heads": config.size("num_attention_heads"),
                "model.d_ff": config.size("intermediate_size"),
                "model.max_seq_len": config.size("max_position_embeddings"),
                "model.vocab_size": config.size("vocab_size"),
                "model.norm.eps": config.number("norm_eps"),
                "model.norm.bias": config.flag("norm_bias"),
                "model.embedding_norm.eps": config.number("norm_eps"),
                "model.embedding_norm.bias": config.flag("norm_bias"),
                "model.feed_forward.bias": config.flag("mlp_bias"),
                "model.feed_forward.dropout": config.number("mlp_dropout"),
                "model.dropout": config.number("embedding_dropout"),
                **self.head(config),
            },
        )

    def head(self, config: Settings) -> dict[str, Any]:
        """The choice of `model/head`, with what is changed in it."""
        if config["architectures"][0].endswith("Model"):
            return {"model/head": "hidden_states"}
        config.only(classifier_activation="gelu")
        return {
            "model/head": "masked_lm_no_bias",
            "model.head.transform.bias": config.flag("classifier_bias"),
            "model.head.bias": config.flag("decoder_bias"),
            "model.head.tied": config.flag("tie_word_embeddings"),
        }

    def rope(self, config: Settings, kind: str, theta: str) -> dict[str, Any]:
        """Positions of one kind of layers, as they are said since transformers 5 or before."""
        parameters, scaling = config.mapping("rope_parameters"), config.mapping("rope_scaling")
        if not parameters.keys() <= {FULL, LOCAL}:
            raise config.unsupported("rope_parameters", [{FULL: "...", LOCAL: "..."}])
        given = parameters.mapping(kind)
        return rotary(
            Settings(
                {
                    "rope_parameters": {"rope_theta": config.number(theta), **scaling, **given},
                    "max_position_embeddings": config["max_position_embeddings"],
                },
                {},
                config.where,
            )
        )

    def write(self, model: nn.Module, node: Mapping[str, Any]) -> dict[str, Any] | None:
        attention, head = node["attention"], node["head"]
        if model.family != "encoder" or "every" not in attention or "first_norm" not in node["placement"]:
            return None
        bare = isinstance(model.head, HiddenStates)
        full, every, first = rotary_keys(node["position"]), attention["every"], attention["first"]
        local = {"rope_type": "default", "rope_theta": attention["local_theta"]}
        own = {} if bare else {"decoder_bias": head["bias"], "classifier_bias": head["transform"]["bias"]}
        return {
            "architectures": [f"ModernBert{'Model' if bare else 'ForMaskedLM'}"],
            "vocab_size": node["vocab_size"],
            "hidden_size": node["d_model"],
            "intermediate_size": node["d_ff"],
            "num_hidden_layers": node["n_layers"],
            "num_attention_heads": node["n_heads"],
            "hidden_activation": activation_name(node["feed_forward"]),
            "max_position_embeddings": node["max_seq_len"],
            "norm_eps": node["norm"]["eps"],
            "norm_bias": node["norm"]["bias"],
            "attention_bias": attention["full"]["bias"],
            "attention_dropout": attention["full"]["weights_dropout"],
            "embedding_dropout": node["dropout"],
            "mlp_bias": node["feed_forward"]["bias"],
            "mlp_dropout": node["feed_forward"]["dropout"],
            "layer_types": [FULL if i % every == first else LOCAL for i in range(node["n_layers"])],
            "global_attn_every_n_layers": every,
            "local_attention": attention["local"]["window"],
            "rope_parameters": {FULL: full["rope_parameters"], LOCAL: local},
            "global_rope_theta": node["position"]["theta"],
            "local_rope_theta": attention["local_theta"],
            "tie_word_embeddings": head.get("tied", True),
            # The class has numbers of another vocabulary for these; null until a tokenizer says better.
            **dict.fromkeys(f"{role}_token_id" for role in ("pad", "bos", "eos", "cls", "sep")),
            **own,
        }

    def pairs(self, model: nn.Module, config: Settings) -> Sequence[Pair]:
        kind = config["architectures"][0]
        prefix = "" if kind.endswith("Model") else "model."
        return *(pair(f"{prefix}{theirs}", *ours) for ours, theirs in BODY), *HEADS[kind]

    def spelling(self, name: str, config: Settings) -> str:
        """The bare model has no prefix, or needs none."""
        if config["architectures"][0].endswith("Model"):
            return name.removeprefix("model.")
        return f"model.{name}" if name.startswith(("embeddings.", "layers.", "final_norm.")) else name

    def copies(self, model: nn.Module, config: Settings) -> Mapping[str, str]:
        if not config["tie_word_embeddings"] or config["architectures"][0].endswith("Model"):
            return {}
        return {"decoder.weight": "model.embeddings.tok_embeddings.weight"}
