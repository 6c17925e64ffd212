"""Tokenizers: recipes that are trained on the training split, and the one class that everything else uses."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, SupportsIndex, runtime_checkable

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]", "[CLS]", "[SEP]", "[MASK]")  # their ids are 0 to 6


class Tokenizer:
    """Text to ids and back, over a `tokenizers.Tokenizer`.

    Special tokens are never found in text: "[EOS]" written by a user is five ordinary characters. `encode`
    adds none; a task places them.

    Args:
        backend: holds the seven `SPECIAL_TOKENS` at ids 0 to 6.
    """

    pad_id, unk_id, bos_id, eos_id, cls_id, sep_id, mask_id = range(7)

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        ids = [backend.token_to_id(token) for token in SPECIAL_TOKENS]
        if ids != list(range(len(SPECIAL_TOKENS))):
            raise ValueError(
                f"Tokenizer: {', '.join(SPECIAL_TOKENS)} have ids {ids}; train it with them first, at 0 to 6"
            )
        backend.encode_special_tokens = True
        self.backend = backend

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """The text of `ids`, special tokens and ids beyond the vocabulary (a padded table) left out."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=True)

    def pieces(self, ids: Iterable[SupportsIndex]) -> list[str]:
        """Each id as a reader would write it, special tokens by their names: labels for pictures."""
        specials = dict(enumerate(SPECIAL_TOKENS))
        return [specials.get(int(i)) or self.backend.decode([int(i)]) for i in ids]

    @property
    def vocab_size(self) -> int:
        return self.backend.get_vocab_size()

    def save(self, folder: Path) -> None:
        """Writes what `load` and `transformers.PreTrainedTokenizerFast.from_pretrained` read."""
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        names = ("pad_token", "unk_token", "bos_token", "eos_token", "cls_token", "sep_token", "mask_token")
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **dict(zip(names, SPECIAL_TOKENS, strict=True)),
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": True,  # tokenizer.json cannot say that specials in text are text
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"Tokenizer: {path} does not exist; name a folder that `Tokenizer.save` wrote")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"Tokenizer: {path} cannot be read ({error}); put it back as it was saved") from error
        return cls(backend)


@runtime_checkable
class Recipe(Protocol):
    """How a tokenizer comes from text. Its `repr` names it and all its settings: the cache is keyed by it."""

    def train(self, texts: Iterator[str]) -> Tokenizer: ...


def _specials_and(symbols: Sequence[str]) -> dict[str, int]:
    return {symbol: i for i, symbol in enumerate((*SPECIAL_TOKENS, *symbols))}


def _finish(backend: tokenizers.Tokenizer) -> Tokenizer:
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    return Tokenizer(backend)


def _byte_level(model: models.BPE) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


@dataclasses.dataclass(frozen=True)
class Char:
    """One token per Unicode character of the training split; any other character becomes [UNK]."""

    def train(self, texts: Iterator[str]) -> Tokenizer:
        characters: Counter[str] = Counter()
        for text in texts:
            characters.update(text)
        vocabulary = _specials_and(sorted(characters))
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
        backend.decoder = decoders.Fuse()
        return _finish(backend)


@dataclasses.dataclass(frozen=True)
class Byte:
    """One token per byte of UTF-8: 256 and the special tokens; every text comes back exactly."""

    def train(self, texts: Iterator[str]) -> Tokenizer:
        vocabulary = _specials_and(sorted(pre_tokenizers.ByteLevel.alphabet()))
        return _finish(_byte_level(models.BPE(vocabulary, [])))


@dataclasses.dataclass(frozen=True)
class BPE:
    """Byte-level byte-pair encoding: every text comes back exactly.

    Sennrich et al. 2016 (https://arxiv.org/abs/1508.07909) on bytes, with the pre-tokenisation of GPT-2
    (Radford et al. 2019, section 2.2).

    Args:
        vocab_size: tokens at most, the 7 special ones and the 256 bytes included; fewer when the training
            text has no pair left that occurs twice.

    Raises:
        ValueError: `vocab_size` has no room for the bytes.
    """

    vocab_size: int

    def __post_init__(self) -> None:
        _check_vocab_size("BPE", self.vocab_size, len(SPECIAL_TOKENS) + 256)

    def train(self, texts: Iterator[str]) -> Tokenizer:
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            min_frequency=2,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        backend = _byte_level(models.BPE())
        backend.train_from_iterator(texts, trainer)
        return _finish(backend)


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
        _check_vocab_size("Word", self.vocab_size, len(SPECIAL_TOKENS) + 1)

    def train(self, texts: Iterator[str]) -> Tokenizer:
        backend = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
        if self.lowercase:
            backend.normalizer = normalizers.Lowercase()
        split = pre_tokenizers.Whitespace() if self.split_punctuation else pre_tokenizers.WhitespaceSplit()
        backend.pre_tokenizer = split
        trainer = trainers.WordLevelTrainer(
            vocab_size=self.vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False
        )
        backend.train_from_iterator(texts, trainer)
        return _finish(backend)


def _check_vocab_size(name: str, vocab_size: int, least: int) -> None:
    if vocab_size < least:
        raise ValueError(
            f"{name}: vocab_size={vocab_size} is less than the {least} tokens it cannot do without; "
            f"set tokenizer.vocab_size to {least} or more"
        )
