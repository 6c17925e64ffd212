"""Byte-pair encoding."""

import dataclasses
from collections.abc import Iterator

from tokenizers import models, trainers

from triform.data.tokenizers.recipe import BYTES, byte_level, check_vocab_size, finish
from triform.data.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer


@dataclasses.dataclass(frozen=True)
class BPE:
    """Byte-level byte-pair encoding: nothing is unknown.

    Sennrich et al. 2016 (https://arxiv.org/abs/1508.07909) on bytes, with the pre-tokenisation of GPT-2
    (Radford et al. 2019, section 2.2).

    Args:
        vocab_size: tokens at most, the 7 special ones and the 256 bytes included; fewer when the training
            text has no pair left that occurs twice.
        lowercase: read "The" and "the" as one word; texts come back in lower case.

    Raises:
        ValueError: `vocab_size` has no room for the bytes.
    """

    vocab_size: int
    lowercase: bool

    def __post_init__(self) -> None:
        check_vocab_size("BPE", self.vocab_size, len(SPECIAL_TOKENS) + 256)

    def train(self, texts: Iterator[str]) -> Tokenizer:
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            min_frequency=2,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=list(BYTES),
            show_progress=False,
        )
        backend = byte_level(models.BPE(), self.lowercase)
        backend.train_from_iterator(texts, trainer)
        return finish(backend, "BPE", self.vocab_size)
