"""Which parameters of a model training changes, and which it leaves."""

from collections.abc import Sequence
from typing import Any

from triform.layers.lora import LoRA, freeze
from triform.models.heads import LanguageModelHead


def tune(model: Any, adapter: LoRA | None, frozen: Sequence[str]) -> None:
    """Called last when a model is built.

    Args:
        adapter: what is learned instead of the model's own weights; a head that is no language model's is learned too.
        frozen: see `triform.layers.lora.freeze`.
    """
    if adapter is not None:
        adapter.adapt(model, learned=() if isinstance(model.head, LanguageModelHead) else ("head.",))
    freeze(model, frozen)
