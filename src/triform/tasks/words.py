"""Where words begin, by what tokens look like."""

import unicodedata

import numpy as np

from triform.data.tokenizers import Tokenizer


class Words:
    """Finds the words of a row of token ids.

    A token goes on with a word if decoding puts no blank before it ("##ing" of WordPiece, a token of byte-level or
    Unigram pieces without a leading blank), and the character that it begins with and the one before it are letters
    or digits. So marks of punctuation are words of their own, as in BERT, as are ideographs; part of a character's
    bytes counts as a letter.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        known = tokenizer.ordinary_ids
        anchor, before = _anchor(tokenizer)
        behind = tokenizer.backend.decode_batch([[anchor, int(token)] for token in known])
        texts = [text[len(before) :] if text.startswith(before) else text for text in behind]
        self._goes_on = np.zeros(tokenizer.vocab_size, dtype=bool)
        self._goes_on[known] = [_is_letter(text[:1]) for text in texts]
        self._may_be_continued = np.zeros(tokenizer.vocab_size, dtype=bool)
        self._may_be_continued[known] = [_is_letter(text[-1:]) for text in texts]

    def begins(self, ids: np.ndarray) -> np.ndarray:
        """Bool: the first token of a word, for each token. Special tokens are words of their own."""
        first = np.ones(len(ids), dtype=bool)
        first[1:] = ~(self._goes_on[ids[1:]] & self._may_be_continued[ids[:-1]])
        return first


def _anchor(tokenizer: Tokenizer) -> tuple[int, str]:
    """A token, and its text: what follows it is decoded as within a text."""
    known = [int(token) for token in tokenizer.ordinary_ids]
    texts = tokenizer.backend.decode_batch([[token] for token in known])
    plain = (pair for pair in zip(known, texts, strict=True) if pair[1].isascii() and pair[1].isalpha())
    return next(plain, (known[0], texts[0]))


def _is_letter(character: str) -> bool:
    if character == "\N{REPLACEMENT CHARACTER}":  # part of one
        return True
    return character.isalnum() and not unicodedata.name(character, "").startswith("CJK UNIFIED")
