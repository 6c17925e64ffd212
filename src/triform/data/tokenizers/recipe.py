"""What makes a tokenizer of text."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from triform.data.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer

log = logging.getLogger(__name__)


@runtime_checkable
class Recipe(Protocol):
    """How a tokenizer comes from text. Its `repr` names it and all its settings: the cache is keyed by it."""

    def train(self, texts: Iterator[str]) -> Tokenizer: ...


BYTES = tuple(sorted(pre_tokenizers.ByteLevel.alphabet()))
"""The letters that stand for the 256 bytes (Radford et al. 2019: those that print as themselves)."""


def specials_and(symbols: Sequence[str]) -> dict[str, int]:
    return {symbol: i for i, symbol in enumerate((*SPECIAL_TOKENS, *symbols))}


def finish(backend: tokenizers.Tokenizer, name: str, wanted: int | None = None) -> Tokenizer:
    """The tokenizer of a backend that holds the special tokens at ids 0 to 6.

    Args:
        name: of the recipe.
        wanted: its `vocab_size`; that the text gave fewer is said.
    """
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer = Tokenizer(backend)
    if wanted is not None and tokenizer.vocab_size < wanted:
        log.warning(
            "%s: the training text gives a vocabulary of %d tokens, tokenizer.vocab_size=%d asks for more",
            name,
            tokenizer.vocab_size,
            wanted,
        )
    return tokenizer


def byte_level(model: models.BPE | models.Unigram, lowercase: bool) -> tokenizers.Tokenizer:
    """Words as GPT-2 cuts them (Radford et al. 2019, section 2.2), in `BYTES`: every text comes back exactly, or, if
    wished, in lower case."""
    backend = tokenizers.Tokenizer(model)
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def count_words(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """How often each word occurs, as the backend normalises and cuts texts."""
    words: Counter[str] = Counter()
    cut = backend.pre_tokenizer.pre_tokenize_str
    normalise = None if backend.normalizer is None else backend.normalizer.normalize_str
    for text in texts:
        words.update(word for word, _ in cut(text if normalise is None else normalise(text)))
    return words


def check_vocab_size(name: str, vocab_size: int, least: int) -> None:
    if vocab_size < least:
        raise ValueError(
            f"{name}: vocab_size={vocab_size} is less than the {least} tokens it cannot do without; "
            f"set tokenizer.vocab_size to {least} or more"
        )
