"""BERT and RoBERTa."""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from triform.interop.activations import activation_name, plain
from triform.interop.architecture import Architecture, Choice, Pair, Settings, Weights, pair
from triform.models.heads import ClassificationHead, HiddenStates, RegressionHead, TwoHeads

_LAYER = "stack.layers.{}"
_MODULES = {"relu": "torch.nn.ReLU", "silu": "torch.nn.SiLU"}


class BertLike(Architecture):
    """Post-norm, learned positions, biases everywhere, a norm of the embedded tokens.

    A file may hold a pooler that its class never reads; it is kept, as `model.head.text`.
    """

    prefix: ClassVar[str]
    """Of the names of all tensors but the head's."""
    preset: ClassVar[str]
    projection: ClassVar[str]
    """Name of the projection to tokens; its bias, repeated, is that of the module around it."""
    classifies_pooled: ClassVar[bool]
    """Whether a classifier of texts reads the pooler; otherwise it has a dense layer of its own."""

    @property
    def body(self) -> str:
        """The class without a head of its own."""
        return next(name for name in self.classes if name.endswith("Model"))

    def read(self, config: Settings, weights: Weights) -> Choice:
        config.only(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute", pruned_heads={})
        return Choice(
            self.preset,
            {
                **plain(config, "hidden_act"),
                **self.head(config, weights),
                "model.d_model": config.size("hidden_size"),
                "model.n_layers": config.size("num_hidden_layers"),
                "model.n_heads": config.size("num_attention_heads"),
                "model.d_ff": config.size("intermediate_size"),
                "model.max_seq_len": config.size("max_position_embeddings") - self.offset(config),
                "model.position.offset": self.offset(config),
                "model.vocab_size": config.size("vocab_size"),
                "model.n_token_types": config.size("type_vocab_size"),
                "model.norm.eps": config.number("layer_norm_eps"),
                "model.embedding_norm.eps": config.number("layer_norm_eps"),
                "model.dropout": config.number("hidden_dropout_prob"),
                "model.attention.weights_dropout": config.number("attention_probs_dropout_prob"),
            },
        )

    @abstractmethod
    def offset(self, config: Settings) -> int:
        """Row of the first position."""

    @abstractmethod
    def transform(self, config: Settings, head: str) -> dict[str, Any]:
        """What is changed in the dense layer before the projection to tokens."""

    def head(self, config: Settings, weights: Weights) -> dict[str, Any]:
        """The choice of `model/head`, with what is changed in it."""
        kind = config["architectures"][0]
        names = {self.spelling(name, config) for name in weights}
        pooled = f"{self.prefix}.pooler.dense.weight" in names
        if kind == self.body:
            return {"model/head": "pooler" if "pooler.dense.weight" in names else "hidden_states"}
        if kind.endswith("ForSequenceClassification"):
            kept = pooled and not self.classifies_pooled
            main = "model.head.main" if kept else "model.head"
            dropout = first(config.number_or_none("classifier_dropout"), config.number("hidden_dropout_prob"))
            beside = {"model/head": "classification_pooler"} if kept else {}
            return beside | of_text(config, "classification", main) | {f"{main}.dropout": dropout}
        if kind.endswith("ForPreTraining") or "cls.seq_relationship.weight" in names:
            part = "pretraining"
        else:
            part = "masked_lm_pooler" if pooled else "masked_lm"
        main = "model.head" if part == "masked_lm" else "model.head.main"
        tied = config.flag("tie_word_embeddings")
        return {"model/head": part, f"{main}.tied": tied, **self.transform(config, f"{main}.transform")}

    def write(self, model: nn.Module, node: Mapping[str, Any]) -> dict[str, Any] | None:
        if model.family != "encoder" or "offset" not in node["position"] or node["embedding_norm"] is None:
            return None
        kind, main = self.kind(model.head), node["head"].get("main", node["head"])
        of_texts = kind.endswith("ForSequenceClassification")
        own = {**labels(main.get("n_classes", 1)), "classifier_dropout": main["dropout"]} if of_texts else {}
        return {
            "architectures": [kind],
            "vocab_size": node["vocab_size"],
            "hidden_size": node["d_model"],
            "num_hidden_layers": node["n_layers"],
            "num_attention_heads": node["n_heads"],
            "intermediate_size": node["d_ff"],
            "hidden_act": activation_name(node["feed_forward"]),
            "hidden_dropout_prob": node["dropout"],
            "attention_probs_dropout_prob": node["attention"]["weights_dropout"],
            "max_position_embeddings": node["max_seq_len"] + node["position"]["offset"],
            "type_vocab_size": node["n_token_types"],
            "layer_norm_eps": node["norm"]["eps"],
            "tie_word_embeddings": main.get("tied", True),
            **own,
        }

    def kind(self, head: Any) -> str:
        """The class that has such a head.

        Raises:
            LookupError: there is none.
        """
        main, text = (head.main, head.text) if isinstance(head, TwoHeads) else (head, None)
        if isinstance(main, HiddenStates):
            ending = "Model"
        elif isinstance(main, ClassificationHead | RegressionHead):
            ending = "ForSequenceClassification"
        else:
            ending = "ForPreTraining" if isinstance(text, ClassificationHead) else "ForMaskedLM"
        return next(name for name in self.classes if name.endswith(ending))

    def pairs(self, model: nn.Module, config: Settings) -> Sequence[Pair]:
        kind = config["architectures"][0]
        prefix = "" if kind == self.body else f"{self.prefix}."
        theirs = f"{prefix}encoder.layer.{{}}"
        body = (
            pair(f"{prefix}embeddings.word_embeddings", "embedding.table"),
            pair(f"{prefix}embeddings.token_type_embeddings", "embedding.types"),
            pair(f"{prefix}embeddings.position_embeddings", "stack.position.table"),
            pair(f"{prefix}embeddings.LayerNorm", "stack.embedding_norm"),
            pair(f"{theirs}.attention.self.query", f"{_LAYER}.attention.q_proj"),
            pair(f"{theirs}.attention.self.key", f"{_LAYER}.attention.k_proj"),
            pair(f"{theirs}.attention.self.value", f"{_LAYER}.attention.v_proj"),
            pair(f"{theirs}.attention.output.dense", f"{_LAYER}.attention.out_proj"),
            pair(f"{theirs}.attention.output.LayerNorm", f"{_LAYER}.attn_residual.norm"),
            pair(f"{theirs}.intermediate.dense", f"{_LAYER}.feed_forward.up_proj"),
            pair(f"{theirs}.output.dense", f"{_LAYER}.feed_forward.down_proj"),
            pair(f"{theirs}.output.LayerNorm", f"{_LAYER}.ff_residual.norm"),
            pair(f"{prefix}pooler.dense", "head.text.transform.dense"),
        )
        main = "head.main" if isinstance(model.head, TwoHeads) else "head"
        if kind == self.body:
            return (*body, pair("pooler.dense", f"{main}.transform.dense"))
        if kind.endswith("ForSequenceClassification"):
            return (*body, *self.classifier(main))
        around = self.projection.rpartition(".")[0]
        tied = config.flag("tie_word_embeddings")
        return (
            *body,
            pair("cls.seq_relationship", "head.text.classifier"),
            pair(f"{around if tied else self.projection}.bias", f"{main}.bias"),
            pair(self.projection, f"{main}.projection"),
            *self.dense(main),
        )

    @abstractmethod
    def dense(self, head: str) -> Sequence[Pair]:
        """Where the layer before the projection to tokens is."""

    @abstractmethod
    def classifier(self, head: str) -> Sequence[Pair]:
        """Where the head of classes is."""

    def spelling(self, name: str, config: Settings) -> str:
        """Files that were TensorFlow's have gamma and beta; those of the bare model have no prefix, or none needed."""
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
        if config["architectures"][0] == self.body:
            return name.removeprefix(f"{self.prefix}.")
        return f"{self.prefix}.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name

    def copies(self, model: nn.Module, config: Settings) -> Mapping[str, str]:
        if not config["tie_word_embeddings"] or not self.has_tokens(config):
            return {}
        return {
            f"{self.projection}.weight": f"{self.prefix}.embeddings.word_embeddings.weight",
            f"{self.projection}.bias": f"{self.projection.rpartition('.')[0]}.bias",
        }

    def constants(self, model: nn.Module, config: Settings) -> Mapping[str, Tensor]:
        """The bias of the module around an untied projection: `transformers` has it, and never reads it."""
        if config["tie_word_embeddings"] or not self.has_tokens(config):
            return {}
        bias = model.get_parameter("head.main.bias" if isinstance(model.head, TwoHeads) else "head.bias")
        return {f"{self.projection.rpartition('.')[0]}.bias": bias.detach().clone()}

    def has_tokens(self, config: Settings) -> bool:
        """Whether the head gives logits of tokens."""
        return str(config["architectures"][0]).endswith(("ForMaskedLM", "ForPreTraining"))


class Bert(BertLike):
    """Devlin et al. 2019 (https://arxiv.org/abs/1810.04805)."""

    name = "BERT"
    classes = ("BertForMaskedLM", "BertForPreTraining", "BertModel", "BertForSequenceClassification")
    model_type = "bert"
    prefix = "bert"
    preset = "bert_base"
    projection = "cls.predictions.decoder"
    classifies_pooled = True
    not_weights = r"(bert\.)?embeddings\.(position_ids|token_type_ids)"
    defaults: ClassVar[Mapping[str, Any]] = {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "tie_word_embeddings": True,
    }

    def offset(self, config: Settings) -> int:
        return 0

    def transform(self, config: Settings, head: str) -> dict[str, Any]:
        return like_feed_forward(config, "hidden_act", head)

    def write(self, model: nn.Module, node: Mapping[str, Any]) -> dict[str, Any] | None:
        config = super().write(model, node)
        return config if config and node["n_token_types"] and node["position"]["offset"] == 0 else None

    def dense(self, head: str) -> Sequence[Pair]:
        return (
            pair("cls.predictions.transform.dense", f"{head}.transform.dense"),
            pair("cls.predictions.transform.LayerNorm", f"{head}.transform.norm"),
        )

    def classifier(self, head: str) -> Sequence[Pair]:
        return pair("bert.pooler.dense", f"{head}.transform.dense"), pair("classifier", f"{head}.classifier")


class Roberta(BertLike):
    """Liu et al. 2019 (https://arxiv.org/abs/1907.11692).

    Positions begin at the row after that of the padding token, as in fairseq.
    """

    name = "RoBERTa"
    classes = ("RobertaForMaskedLM", "RobertaModel", "RobertaForSequenceClassification")
    model_type = "roberta"
    prefix = "roberta"
    preset = "roberta_base"
    projection = "lm_head.decoder"
    classifies_pooled = False
    not_weights = r"(roberta\.)?embeddings\.(position_ids|token_type_ids)"
    defaults: ClassVar[Mapping[str, Any]] = {**Bert.defaults, "vocab_size": 50265, "pad_token_id": 1}

    def offset(self, config: Settings) -> int:
        pad = config["pad_token_id"]
        if isinstance(pad, bool) or not isinstance(pad, int) or not 0 <= pad < config.size("vocab_size"):
            raise ValueError(
                f"{config.where}: pad_token_id={pad!r}, but positions are counted from it; set it to a token's number"
            )
        return pad + 1

    def transform(self, config: Settings, head: str) -> dict[str, Any]:
        return {}  # GELU, whatever the layers have

    def write(self, model: nn.Module, node: Mapping[str, Any]) -> dict[str, Any] | None:
        config = super().write(model, node)
        if config is None or not node["n_token_types"] or node["position"]["offset"] < 1:
            return None
        return config | {"pad_token_id": node["position"]["offset"] - 1}

    def dense(self, head: str) -> Sequence[Pair]:
        return (
            pair("lm_head.dense", f"{head}.transform.dense"),
            pair("lm_head.layer_norm", f"{head}.transform.norm"),
        )

    def classifier(self, head: str) -> Sequence[Pair]:
        return pair("classifier.dense", f"{head}.transform.dense"), pair("classifier.out_proj", f"{head}.classifier")


def like_feed_forward(config: Settings, key: str, transform: str) -> dict[str, Any]:
    """Overrides that give a dense layer in a head the activation of the layers, where it is not GELU.

    Args:
        transform: its key, such as "model.head.transform".
    """
    chosen = plain(config, key)
    approximate = chosen.get("model.feed_forward.activation.approximate")
    if approximate is not None:
        return {f"{transform}.activation.approximate": approximate}
    module = _MODULES[chosen["model/feed_forward"]]
    return {f"{transform}.activation._target_": module, f"~{transform}.activation.approximate": "none"}


def n_classes(config: Settings) -> int:
    """How many classes a config.json has; one stands for a number.

    Raises:
        ValueError: `id2label` names no classes.
    """
    names = config.get("id2label")
    if names is None:
        return config.size("num_labels") if "num_labels" in config else 2
    if not isinstance(names, Mapping) or not names:
        raise ValueError(f"{config.where}: id2label={names!r} names no classes; fetch the file again")
    return len(names)


def of_text(config: Settings, classification: str, head: str) -> dict[str, Any]:
    """The choice of a head that reads a text: of classes, or of a number where there is one.

    Args:
        classification: the option that chooses among classes.
        head: its key, such as "model.head".
    """
    group = "model/head" if head == "model.head" else f"model/head@{head}"
    n = n_classes(config)
    if n == 1:
        return {group: classification.replace("classification", "regression")}
    return {group: classification, f"{head}.n_classes": n}


def labels(n: int) -> dict[str, Any]:
    """The keys of config.json for so many classes."""
    return {
        "id2label": {str(i): f"LABEL_{i}" for i in range(n)},
        "label2id": {f"LABEL_{i}": i for i in range(n)},
    }


def first(*values: Any) -> Any:
    """The first that is not None."""
    return next(value for value in values if value is not None)
