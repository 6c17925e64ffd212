"""Transformers of three forms from one set of parts.

`triform.load(RUN)` gives the model and tokenizer of a run; `triform.generate(model, input_ids, ...)` lets it write.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triform.generation import generate
    from triform.run.load import load

__all__ = ["generate", "load"]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: `--help` needs no torch."""
    if name == "load":
        from triform.run.load import load

        return load
    if name == "generate":
        from triform.generation import generate

        return generate
    raise AttributeError(f"module 'triform' has no attribute {name!r}")
