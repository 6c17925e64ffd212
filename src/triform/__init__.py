"""Transformers of three forms from one set of parts.

`triform.load(RUN)` gives the model and tokenizer of a run, `triform.from_pretrained(FOLDER)` those of a checkpoint of
Hugging Face; `triform.save_pretrained(model, folder, tokenizer)` writes one; `triform.generate(model, input_ids, ...)`
lets a model write.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triform.generation import generate
    from triform.run.load import load
    from triform.run.pretrained import from_pretrained, save_pretrained

__all__ = ["from_pretrained", "generate", "load", "save_pretrained"]

_MODULES = {
    "from_pretrained": "triform.run.pretrained",
    "generate": "triform.generation",
    "load": "triform.run.load",
    "save_pretrained": "triform.run.pretrained",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: `--help` needs no torch."""
    if name in _MODULES:
        import_module("triform.run.releases").check_releases()
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'triform' has no attribute {name!r}")
