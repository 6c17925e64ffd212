import re
from collections.abc import Callable

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from triform.data.tokenizers import BPE, Byte, Char, Tokenizer, Word
from triform.tasks.words import Words

TEXT = "Reading unreadable books, he reads; the readers' 12 rereadings. naïve Zoë"
ROLES = {"pad": "<pad>", "unk": "<unk>", "eos": "</s>"}


def word_piece() -> Tokenizer:
    """As BERT's: pieces inside a word begin with ##."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=60, special_tokens=list(ROLES.values()), show_progress=False)
    backend.train_from_iterator([TEXT] * 3, trainer)
    return Tokenizer(backend, ROLES)


def unigram() -> Tokenizer:
    """As T5's: pieces that begin a word begin with a mark for the blank."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=45, special_tokens=list(ROLES.values()), unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator([TEXT] * 3, trainer)
    return Tokenizer(backend, ROLES)


TOKENIZERS = {
    "char": lambda: Char().train(iter([TEXT])),
    "byte": lambda: Byte().train(iter([TEXT])),
    "bpe": lambda: BPE(280, lowercase=False).train(iter([TEXT] * 3)),
    "word_piece": word_piece,
    "unigram": unigram,
}


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS)
def test_words_are_found_whatever_their_pieces_look_like(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    ids = np.array(tokenizer.encode(TEXT))
    begins = Words(tokenizer).begins(ids)
    runs = np.split(ids, np.flatnonzero(begins)[1:])
    found = [tokenizer.decode(run.tolist()).strip() for run in runs]
    expected = re.findall(r"\w+|[^\w ]", TEXT)
    if make is word_piece:  # whose pieces are at least one letter
        assert len(ids) > len(expected)
    assert [word for word in found if word] == expected


def test_words_of_a_word_tokenizer_are_its_tokens() -> None:
    tokenizer = Word(30, False, True).train(iter([TEXT]))
    assert Words(tokenizer).begins(np.array(tokenizer.encode(TEXT))).all()


def test_ideographs_are_words_of_their_own() -> None:
    tokenizer = Char().train(iter(["日本語 text"]))
    assert Words(tokenizer).begins(np.array(tokenizer.encode("日本語 text"))).tolist() == [True] * 5 + [False] * 3


def test_special_tokens_are_words_of_their_own(tokenizer: Tokenizer) -> None:
    a, b = tokenizer.encode("ab")
    assert Words(tokenizer).begins(np.array([a, tokenizer.eos_id, a, b])).tolist() == [True, True, True, False]
