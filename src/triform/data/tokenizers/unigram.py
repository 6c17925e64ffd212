"""Unigram."""

import dataclasses
from collections.abc import Iterator
from io import BytesIO

from tokenizers import models

from triform.data.tokenizers.recipe import BYTES, byte_level, check_vocab_size, count_words, finish
from triform.data.tokenizers.tokenizer import SPECIAL_TOKENS, Tokenizer


@dataclasses.dataclass(frozen=True)
class Unigram:
    """Pieces of words by their probability: the likeliest way to cut a word. Nothing is unknown.

    Kudo 2018 (https://arxiv.org/abs/1804.10959), always cut in the likeliest way; on bytes with the pre-tokenisation of
    GPT-2, unlike the paper, so that it differs from `BPE` in nothing but the pieces. The sentencepiece library trains
    it: of the same text the tokenizers library makes another one in every process.

    Args:
        vocab_size: tokens at most, the 7 special ones and the 256 bytes included; fewer when the training text has no
            more pieces that occur twice.
        lowercase: read "The" and "the" as one word; texts come back in lower case.

    Raises:
        ValueError: `vocab_size` has no room for the bytes and a piece.
    """

    vocab_size: int
    lowercase: bool

    def __post_init__(self) -> None:
        check_vocab_size("Unigram", self.vocab_size, len(SPECIAL_TOKENS) + len(BYTES) + 1)

    def train(self, texts: Iterator[str]) -> Tokenizer:
        import sentencepiece

        words = count_words(byte_level(models.Unigram(), self.lowercase), texts)
        words.update(BYTES)  # so that each has a probability
        written = BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in sorted(words.items())),
            input_format="tsv",
            model_writer=written,
            model_type="unigram",
            vocab_size=self.vocab_size - len(SPECIAL_TOKENS) + 1,  # it has an unknown piece of its own
            hard_vocab_limit=False,
            # Words are as they shall be.
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            split_by_unicode_script=False,
            split_by_number=False,
            split_by_whitespace=False,
            required_chars="".join(BYTES),
            character_coverage=1.0,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,  # sums of other numbers of threads round otherwise
            minloglevel=2,
        )
        trained = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
        pieces = [(trained.id_to_piece(i), trained.get_score(i)) for i in range(1, trained.get_piece_size())]
        vocabulary = [(token, 0.0) for token in SPECIAL_TOKENS] + pieces
        return finish(byte_level(models.Unigram(vocabulary, unk_id=1), self.lowercase), "Unigram", self.vocab_size)
