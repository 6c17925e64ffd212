"""Marian."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from triform.interop.architecture import Choice, Settings, Weights
from triform.interop.two_stacks import DEFAULTS, BartLike
from triform.layers.position.sinusoidal import Sinusoidal

# Between sines computed in float32 and in float64, at some thousand positions.
_ROUNDING = 1e-3


class Marian(BartLike):
    """Junczys-Dowmunt et al. 2018 (https://arxiv.org/abs/1804.00344), as OPUS-MT trained it.

    Files may hold the sines of its positions, in which nothing is learned; they are looked at and computed anew.
    """

    name = "Marian"
    classes = ("MarianMTModel", "MarianModel")
    model_type = "marian"
    preset = "marian_base"
    not_weights = rf"{BartLike.not_weights}|(model\.)?(encoder|decoder)\.embed_positions\.weight"
    defaults: ClassVar[Mapping[str, Any]] = {
        **DEFAULTS,
        "vocab_size": 58101,
        "share_encoder_decoder_embeddings": True,
    }

    def read(self, config: Settings, weights: Weights) -> Choice:
        config.only(share_encoder_decoder_embeddings=True, normalize_embedding=False, static_position_embeddings=True)
        if config.get("decoder_vocab_size") is not None:
            config.only(decoder_vocab_size=config.size("vocab_size"))
        for name in weights:
            if name.endswith(".embed_positions.weight"):
                table = weights[name].float()
                if table.shape[1:] != (config.size("d_model"),) or not torch.allclose(
                    table, _sines(*table.shape), atol=_ROUNDING
                ):
                    raise ValueError(
                        f"{config.where}: {name} holds other numbers than the sines of Marian's positions, which is "
                        "not supported; fetch the weights again, or train without static_position_embeddings as BART"
                    )
        return super().read(config, weights)

    def write(self, model: Any, node: Mapping[str, Any]) -> dict[str, Any] | None:
        if "layout" not in node["position"]:
            return None
        written = super().write(model, node)
        return written and {**written, "share_encoder_decoder_embeddings": True}


def _sines(n_positions: int, d_model: int) -> torch.Tensor:
    sinusoidal = Sinusoidal(
        d_model=d_model, n_heads=1, head_dim=d_model, max_seq_len=n_positions, causal=False, max_period=10000.0,
        layout="concatenated",
    )  # fmt: skip
    return sinusoidal.table(torch.arange(n_positions)[None])[0]
