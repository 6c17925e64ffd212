"""DistilBERT."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from triform.interop.activations import activation_name, plain
from triform.interop.architecture import Architecture, Choice, Pair, Settings, Weights, pair
from triform.interop.bert import labels, like_feed_forward, of_text
from triform.models.heads import ClassificationHead, HiddenStates, RegressionHead

_LAYER, _THEIRS = "stack.layers.{}", "transformer.layer.{}"
BODY = (
    ("embeddings.word_embeddings", "embedding.table"),
    ("embeddings.position_embeddings", "stack.position.table"),
    ("embeddings.LayerNorm", "stack.embedding_norm"),
    (f"{_THEIRS}.attention.q_lin", f"{_LAYER}.attention.q_proj"),
    (f"{_THEIRS}.attention.k_lin", f"{_LAYER}.attention.k_proj"),
    (f"{_THEIRS}.attention.v_lin", f"{_LAYER}.attention.v_proj"),
    (f"{_THEIRS}.attention.out_lin", f"{_LAYER}.attention.out_proj"),
    (f"{_THEIRS}.sa_layer_norm", f"{_LAYER}.attn_residual.norm"),
    (f"{_THEIRS}.ffn.lin1", f"{_LAYER}.feed_forward.up_proj"),
    (f"{_THEIRS}.ffn.lin2", f"{_LAYER}.feed_forward.down_proj"),
    (f"{_THEIRS}.output_layer_norm", f"{_LAYER}.ff_residual.norm"),
)
HEADS = {
    "DistilBertForMaskedLM": (
        pair("vocab_transform", "head.transform.dense"),
        pair("vocab_layer_norm", "head.transform.norm"),
        pair("vocab_projector.bias", "head.bias"),
        pair("vocab_projector", "head.projection"),
    ),
    "DistilBertModel": (),
    "DistilBertForSequenceClassification": (
        pair("pre_classifier", "head.transform.dense"),
        pair("classifier", "head.classifier"),
    ),
}
EPS = 1e-12  # of every norm, which config.json does not say


class DistilBert(Architecture):
    """Sanh et al. 2019 (https://arxiv.org/abs/1910.01108).

    Positions that were sinusoidal are in the file, as a table, and are learned here.
    """

    name = "DistilBERT"
    classes = tuple(HEADS)
    model_type = "distilbert"
    not_weights = r"(distilbert\.)?embeddings\.position_ids"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "n_layers": 6,
        "n_heads": 12,
        "dim": 768,
        "hidden_dim": 3072,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "activation": "gelu",
        "seq_classif_dropout": 0.2,
        "tie_word_embeddings": True,
    }

    def read(self, config: Settings, weights: Weights) -> Choice:
        config.only(pruned_heads={})
        return Choice(
            "distilbert",
            {
                **plain(config, "activation"),
                **self.head(config),
                "model.d_model": config.size("dim"),
                "model.n_layers": config.size("n_layers"),
                "model.n_heads": config.size("n_heads"),
                "model.d_ff": config.size("hidden_dim"),
                "model.max_seq_len": config.size("max_position_embeddings"),
                "model.vocab_size": config.size("vocab_size"),
                "model.dropout": config.number("dropout"),
                "model.attention.weights_dropout": config.number("attention_dropout"),
            },
        )

    def head(self, config: Settings) -> dict[str, Any]:
        """The choice of `model/head`, with what is changed in it."""
        kind = config["architectures"][0]
        if kind.endswith("Model"):
            return {"model/head": "hidden_states"}
        if kind.endswith("ForSequenceClassification"):
            return {
                **of_text(config, "classification_relu", "model.head"),
                "model.head.dropout": config.number("seq_classif_dropout"),
            }
        tied = {"model.head.tied": config.flag("tie_word_embeddings")}
        return {"model/head": "masked_lm", **tied, **like_feed_forward(config, "activation", "model.head.transform")}

    def write(self, model: nn.Module, node: Mapping[str, Any]) -> dict[str, Any] | None:
        if model.family != "encoder" or node["position"].get("offset") != 0 or node["norm"].get("eps") != EPS:
            return None
        head = node["head"]
        if isinstance(model.head, ClassificationHead | RegressionHead):
            ending, own = "ForSequenceClassification", labels(head.get("n_classes", 1))
            own["seq_classif_dropout"] = head["dropout"]
        else:
            ending, own = "Model" if isinstance(model.head, HiddenStates) else "ForMaskedLM", {}
        return {
            "architectures": [f"DistilBert{ending}"],
            "vocab_size": node["vocab_size"],
            "max_position_embeddings": node["max_seq_len"],
            "n_layers": node["n_layers"],
            "n_heads": node["n_heads"],
            "dim": node["d_model"],
            "hidden_dim": node["d_ff"],
            "dropout": node["dropout"],
            "attention_dropout": node["attention"]["weights_dropout"],
            "activation": activation_name(node["feed_forward"]),
            "tie_word_embeddings": head.get("tied", True),
            **own,
        }

    def pairs(self, model: nn.Module, config: Settings) -> Sequence[Pair]:
        kind = config["architectures"][0]
        prefix = "" if kind.endswith("Model") else "distilbert."
        return *(pair(f"{prefix}{theirs}", ours) for theirs, ours in BODY), *HEADS[kind]

    def spelling(self, name: str, config: Settings) -> str:
        """The bare model has no prefix, or needs none."""
        if config["architectures"][0].endswith("Model"):
            return name.removeprefix("distilbert.")
        return f"distilbert.{name}" if name.startswith(("embeddings.", "transformer.")) else name

    def copies(self, model: nn.Module, config: Settings) -> Mapping[str, str]:
        if not config["tie_word_embeddings"] or not config["architectures"][0].endswith("ForMaskedLM"):
            return {}
        return {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"}
