"""Bytes."""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from tokenizers import models

from triform.data.tokenizers.recipe import BYTES, byte_level, finish, specials_and
from triform.data.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Byte:
    """One token per byte of UTF-8: 256 and the special tokens; every text comes back exactly."""

    learns: ClassVar[bool] = False
    """Whether it reads anything of the training split."""

    def train(self, texts: Iterator[str]) -> Tokenizer:
        vocabulary = specials_and(BYTES)
        return finish(byte_level(models.BPE(vocabulary, []), lowercase=False), "Byte")
