"""Tokenizers: recipes, most of which are trained on the training split, and the one class that everything else uses."""

from triform.data.tokenizers.bpe import BPE
from triform.data.tokenizers.byte import Byte
from triform.data.tokenizers.char import Char
from triform.data.tokenizers.pretrained import Pretrained
from triform.data.tokenizers.recipe import Recipe
from triform.data.tokenizers.separate import Separate
from triform.data.tokenizers.tokenizer import ROLES, SPECIAL_TOKENS, Tokenizer
from triform.data.tokenizers.unigram import Unigram
from triform.data.tokenizers.word import Word
from triform.data.tokenizers.wordpiece import WordPiece

__all__ = [
    "BPE",
    "ROLES",
    "SPECIAL_TOKENS",
    "Byte",
    "Char",
    "Pretrained",
    "Recipe",
    "Separate",
    "Tokenizer",
    "Unigram",
    "Word",
    "WordPiece",
]

for _recipe in (BPE, Byte, Char, Pretrained, Separate, Unigram, Word, WordPiece):
    _recipe.__module__ = __name__  # the one name that a config has for it
