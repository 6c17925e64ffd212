"""Characters."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from triform.data.tokenizers.recipe import finish, specials_and
from triform.data.tokenizers.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Char:
    """One token per Unicode character of the training split; any other character becomes [UNK]."""

    everything: ClassVar[bool] = True
    """Reads all of the training split, however large: no character may be missed."""

    def train(self, texts: Iterator[str]) -> Tokenizer:
        characters: Counter[str] = Counter()
        for text in texts:
            characters.update(text)
        vocabulary = specials_and(sorted(characters))
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        backend.decoder = decoders.Fuse()
        return finish(backend, "Char")
