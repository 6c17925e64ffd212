"""WordPiece."""

import dataclasses
from collections import Counter
from collections.abc import Iterator

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from triform.data.tokenizers.recipe import check_vocab_size, count_words, finish
from triform.data.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer

CONTINUED = "##"
"""What a piece begins with that goes on with a word."""
LETTERS = 1000
"""Most characters that there are, the most frequent ones, as the library has it for BERT."""


@dataclasses.dataclass(frozen=True)
class WordPiece:
    """BERT's pieces of words: the longest known one first, those that go on with a word marked by "##".

    Wu et al. 2016 (https://arxiv.org/abs/1609.08144), section 4.1, as Devlin et al. 2019 use it: words are cut at
    blanks and marks of punctuation, control characters are dropped, and decoding joins words by blanks. A word with a
    character that is not among the 1000 most frequent ones is [UNK] as a whole. The pieces come from merging the most
    frequent pairs, as the tokenizers library does it, not from the likelihood of the paper.

    Args:
        vocab_size: tokens at most, the 7 special ones included; fewer when no pair is left that occurs twice.
        lowercase: read "The" and "the" as one word.
        strip_accents: read "naïve" as "naive".

    Raises:
        ValueError: `vocab_size` has no room for a character, alone and within words.
    """

    vocab_size: int
    lowercase: bool
    strip_accents: bool

    def __post_init__(self) -> None:
        check_vocab_size("WordPiece", self.vocab_size, len(SPECIAL_TOKENS) + 2)

    def train(self, texts: Iterator[str]) -> Tokenizer:
        seen = list(texts)
        backend = self._backend(models.WordPiece(unk_token="[UNK]"))
        letters = self._letters(count_words(backend, seen))
        trainer = trainers.WordPieceTrainer(
            vocab_size=self.vocab_size,
            min_frequency=2,
            # Letters have ids before training begins. The library would number those within words as it comes across
            # them, in another order in every process, and break ties by number.
            special_tokens=[*SPECIAL_TOKENS, *letters],
            limit_alphabet=0,
            continuing_subword_prefix=CONTINUED,
            show_progress=False,
        )
        backend.train_from_iterator(seen, trainer)
        vocabulary = backend.get_vocab(with_added_tokens=False)
        model = models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix=CONTINUED)
        return finish(self._backend(model), "WordPiece", self.vocab_size)  # anew: there letters are special

    def _backend(self, model: models.WordPiece) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer(model)
        backend.normalizer = normalizers.BertNormalizer(lowercase=self.lowercase, strip_accents=self.strip_accents)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix=CONTINUED, cleanup=False)
        return backend

    def _letters(self, words: Counter[str]) -> list[str]:
        """Single characters of the vocabulary, and those among them that words go on with, marked so."""
        counts: Counter[str] = Counter()
        within: set[str] = set()
        for word, count in words.items():
            within.update(word[1:])
            for letter in word:
                counts[letter] += count
        room = self.vocab_size - len(SPECIAL_TOKENS)
        chosen: list[str] = []
        for letter in sorted(counts, key=lambda letter: (-counts[letter], letter))[:LETTERS]:
            forms = [letter, CONTINUED + letter] if letter in within else [letter]
            if len(chosen) + len(forms) > room:
                break
            chosen += forms
        return sorted(chosen)
