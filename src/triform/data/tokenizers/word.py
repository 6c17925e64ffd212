"""Words."""

import dataclasses
from collections.abc import Iterator

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from triform.data.tokenizers.recipe import check_vocab_size, count_words, finish, specials_and
from triform.data.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer


@dataclasses.dataclass(frozen=True)
class Word:
    """The most frequent words of the training split, joined by blanks when decoded; any other is [UNK].

    Args:
        vocab_size: tokens at most, the 7 special ones included.
        lowercase: read "The" and "the" as one word.
        split_punctuation: "end." is two words; otherwise words are what blanks separate.

    Raises:
        ValueError: `vocab_size` has no room for a word.
    """

    vocab_size: int
    lowercase: bool
    split_punctuation: bool

    def __post_init__(self) -> None:
        check_vocab_size("Word", self.vocab_size, len(SPECIAL_TOKENS) + 1)

    def train(self, texts: Iterator[str]) -> Tokenizer:
        backend = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
        if self.lowercase:
            backend.normalizer = normalizers.Lowercase()
        split = pre_tokenizers.Whitespace() if self.split_punctuation else pre_tokenizers.WhitespaceSplit()
        backend.pre_tokenizer = split
        # Not the library's trainer: special tokens that are words of the text, too, it numbers as such.
        counts = count_words(backend, texts)
        words = sorted(counts.keys() - set(SPECIAL_TOKENS), key=lambda word: (-counts[word], word))
        vocabulary = specials_and(words[: self.vocab_size - len(SPECIAL_TOKENS)])
        backend.model = models.WordLevel(vocabulary, unk_token="[UNK]")
        return finish(backend, "Word", self.vocab_size)
