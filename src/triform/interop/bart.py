"""BART."""

from collections.abc import Mapping
from typing import Any, ClassVar

from triform.interop.architecture import Choice, Settings, Weights, pair
from triform.interop.two_stacks import DEFAULTS, STACKS, BartLike


class Bart(BartLike):
    """Lewis et al. 2020 (https://arxiv.org/abs/1910.13461).

    The file of a `BartModel`, as the published base and large are, is read as the language model that it is under its
    tied head.
    """

    name = "BART"
    classes = ("BartForConditionalGeneration", "BartModel")
    model_type = "bart"
    preset = "bart_base"
    pairs_of_positions = tuple(
        pair(f"model.{stack}.{theirs}", f"{stack}.{ours}")
        for stack in STACKS
        for theirs, ours in (("embed_positions", "position.table"), ("layernorm_embedding", "embedding_norm"))
    )
    defaults: ClassVar[Mapping[str, Any]] = {**DEFAULTS, "vocab_size": 50265}

    def read(self, config: Settings, weights: Weights) -> Choice:
        config.only(normalize_embedding=True, static_position_embeddings=False, extra_pos_embeddings=2)
        return super().read(config, weights)

    def write(self, model: Any, node: Mapping[str, Any]) -> dict[str, Any] | None:
        return super().write(model, node) if "offset" in node["position"] else None
