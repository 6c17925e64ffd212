"""A tokenizer for each side of pairs."""

import dataclasses
from collections.abc import Iterator

from triform.data.tokenizers.recipe import Recipe
from triform.data.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Separate:
    """Source and target each have a vocabulary of their own; an encoder-decoder then has a table for each.

    Args:
        source, target: how their tokenizers are made, each of its own side of the pairs.
    """

    source: Recipe
    target: Recipe

    @property
    def everything(self) -> bool:
        """Whether one of them must see all of the training split."""
        return any(getattr(recipe, "everything", False) for recipe in (self.source, self.target))

    @property
    def learns(self) -> bool:
        """Whether one of them reads anything of the training split."""
        return any(getattr(recipe, "learns", True) for recipe in (self.source, self.target))

    def train(self, texts: Iterator[str]) -> Tokenizer:
        """Of one text, both; see `train_apart`."""
        seen = list(texts)
        return self.train_apart(iter(seen), iter(seen))

    def train_apart(self, sources: Iterator[str], targets: Iterator[str]) -> Tokenizer:
        """The tokenizer of targets, which knows that of sources."""
        return self.target.train(targets).beside(self.source.train(sources))
