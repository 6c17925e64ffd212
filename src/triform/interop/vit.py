"""ViT."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from triform.interop.activations import activation_name, plain
from triform.interop.architecture import Architecture, Choice, Pair, Reshaped, Settings, Weights, pair
from triform.interop.bert import labels, n_classes
from triform.layers.patches import PatchEmbedding
from triform.models.heads import ClassificationHead

_LAYER, _THEIRS = "stack.layers.{}", "encoder.layer.{}"
BODY = (
    ("embeddings.patch_embeddings.projection.bias", "embedding.patch_proj.bias"),
    (f"{_THEIRS}.layernorm_before", f"{_LAYER}.attn_residual.norm"),
    (f"{_THEIRS}.attention.attention.query", f"{_LAYER}.attention.q_proj"),
    (f"{_THEIRS}.attention.attention.key", f"{_LAYER}.attention.k_proj"),
    (f"{_THEIRS}.attention.attention.value", f"{_LAYER}.attention.v_proj"),
    (f"{_THEIRS}.attention.output.dense", f"{_LAYER}.attention.out_proj"),
    (f"{_THEIRS}.layernorm_after", f"{_LAYER}.ff_residual.norm"),
    (f"{_THEIRS}.intermediate.dense", f"{_LAYER}.feed_forward.up_proj"),
    (f"{_THEIRS}.output.dense", f"{_LAYER}.feed_forward.down_proj"),
    ("layernorm", "stack.final_norm"),
    ("pooler.dense", "head.transform.dense"),
)
# Names that the modules have since transformers 5, whose files keep those of before.
_NEWER = {
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


class ViT(Architecture):
    """Dosovitskiy et al. 2021 (https://arxiv.org/abs/2010.11929), of square images."""

    name = "ViT"
    classes = ("ViTForImageClassification", "ViTModel")
    model_type = "vit"
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": 1e-12,
        "image_size": 224,
        "patch_size": 16,
        "num_channels": 3,
        "qkv_bias": True,
        "pooler_act": "tanh",
    }

    def read(self, config: Settings, weights: Weights) -> Choice:
        image, patch = self.square(config, "image_size"), self.square(config, "patch_size")
        return Choice(
            "vit_base",
            {
                **plain(config, "hidden_act"),
                **self.head(config, weights),
                "model.embedding.image_size": image,
                "model.embedding.patch_size": patch,
                "model.embedding.channels": config.size("num_channels"),
                "model.max_seq_len": 1 + (image // patch) ** 2,
                "model.d_model": config.size("hidden_size"),
                "model.n_layers": config.size("num_hidden_layers"),
                "model.n_heads": config.size("num_attention_heads"),
                "model.d_ff": config.size("intermediate_size"),
                "model.norm.eps": config.number("layer_norm_eps"),
                "model.dropout": config.number("hidden_dropout_prob"),
                "model.attention.weights_dropout": config.number("attention_probs_dropout_prob"),
                "model.attention.bias": config.flag("qkv_bias"),
                "model.attention.out_bias": True,
            },
        )

    def square(self, config: Settings, key: str) -> int:
        """One side of what is as high as it is wide.

        Raises:
            ValueError: it is not.
        """
        sides = config[key] if isinstance(config[key], list) else [config[key]]
        sizes = {Settings({key: side}, {}, config.where).size(key) for side in sides}
        if len(sizes) != 1:
            raise ValueError(f"{config.where}: {key}={sides!r} is not supported; supported: squares")
        return sizes.pop()

    def head(self, config: Settings, weights: Weights) -> dict[str, Any]:
        """The choice of `model/head`, with what is changed in it."""
        if config["architectures"][0] == "ViTForImageClassification":
            n = n_classes(config)
            if n < 2:
                raise ValueError(f"{config.where}: {n} labels in id2label is not supported; supported: 2 or more")
            return {"model/head": "classification_linear", "model.head.n_classes": n}
        if "pooler.dense.weight" not in {self.spelling(name, config) for name in weights}:
            return {"model/head": "hidden_states"}
        config.only(pooler_act="tanh", pooler_output_size=config["hidden_size"])
        return {"model/head": "pooler"}

    def write(self, model: nn.Module, node: Mapping[str, Any]) -> dict[str, Any] | None:
        if model.family != "encoder" or not isinstance(model.embedding, PatchEmbedding):
            return None
        classifies = isinstance(model.head, ClassificationHead)
        return {
            "architectures": ["ViTForImageClassification" if classifies else "ViTModel"],
            "image_size": node["embedding"]["image_size"],
            "patch_size": node["embedding"]["patch_size"],
            "num_channels": node["embedding"]["channels"],
            "hidden_size": node["d_model"],
            "num_hidden_layers": node["n_layers"],
            "num_attention_heads": node["n_heads"],
            "intermediate_size": node["d_ff"],
            "hidden_act": activation_name(node["feed_forward"]),
            "layer_norm_eps": node["norm"]["eps"],
            "hidden_dropout_prob": node["dropout"],
            "attention_probs_dropout_prob": node["attention"]["weights_dropout"],
            "qkv_bias": node["attention"]["bias"],
            **(labels(node["head"]["n_classes"]) if classifies else {"pooler_act": "tanh"}),
        }

    def pairs(self, model: nn.Module, config: Settings) -> Sequence[Pair]:
        prefix = "" if config["architectures"][0] == "ViTModel" else "vit."
        width, patch = config["hidden_size"], self.square(config, "patch_size")
        embeddings = f"{prefix}embeddings."
        shapes = {
            ("cls_token", "embedding.cls"): (1, 1, width),
            ("position_embeddings", "stack.position.table.weight"): (1, -1, width),
            ("patch_embeddings.projection.weight", "embedding.patch_proj.weight"): (width, -1, patch, patch),
        }
        return (
            *(pair(embeddings + theirs, ours, join=Reshaped(*shape)) for (theirs, ours), shape in shapes.items()),
            *(pair(prefix + theirs, ours) for theirs, ours in BODY),
            pair("classifier", "head.classifier"),
        )

    def spelling(self, name: str, config: Settings) -> str:
        """As files have it; the bare model has no prefix, or needs none."""
        name = re.sub(r"(^|\.)layers\.(?=\d)", r"\1encoder.layer.", name)
        for new, old in _NEWER.items():
            name = re.sub(rf"(encoder\.layer\.\d+)\.{re.escape(new)}\.", rf"\1.{old}.", name)
        if config["architectures"][0] == "ViTModel":
            return name.removeprefix("vit.")
        return f"vit.{name}" if name.startswith(("embeddings.", "encoder.", "layernorm.")) else name
