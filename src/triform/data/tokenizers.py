"""Tokenizers: recipes that are trained on the training split, and the one class that everything else uses."""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Protocol, SupportsIndex, runtime_checkable

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]", "[CLS]", "[SEP]", "[MASK]")  # their ids are 0 to 6
ROLES = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")
"""What special tokens are for, in the order of `SPECIAL_TOKENS`."""
_START = "decoder_start_token_id"
_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")

# What serves a role that a tokenizer of others has no token for: a text is begun and ended somehow, and padding is
# never read. Nothing serves for an unknown or a masked token.
_SERVES = {"bos": ("cls", "eos"), "eos": ("sep",), "cls": ("bos",), "sep": ("eos",), "pad": ("eos", "unk")}
_KNOWN = {
    "pad": ("[PAD]", "<pad>", "<|padding|>", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>"),
    "bos": ("[BOS]", "<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>"),
    "eos": ("[EOS]", "</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>", "<|im_end|>"),
    "cls": ("[CLS]",),
    "sep": ("[SEP]",),
    "mask": ("[MASK]", "<mask>"),
}


class Tokenizer:
    """Text to ids and back, over a `tokenizers.Tokenizer`.

    Special tokens are never found in text: "[EOS]" written by a user is five ordinary characters. `encode`
    adds none; a task places them.

    Args:
        backend: does the work.
        roles: the token of each of `ROLES` that it has one for; None: it holds `SPECIAL_TOKENS` at ids 0 to 6.
        start_id: what the decoder of an encoder-decoder reads first (T5: as padding, BART: as an end); None: as `bos`.

    Raises:
        ValueError: a role's token is not in the vocabulary, none begins, ends or pads a text, or no token has the id
            `start_id`.
    """

    pad_id: int
    bos_id: int
    eos_id: int
    cls_id: int
    sep_id: int
    unk_id: int | None
    mask_id: int | None

    def __init__(
        self, backend: tokenizers.Tokenizer, roles: Mapping[str, str] | None = None, start_id: int | None = None
    ) -> None:
        if roles is None:
            ids = [backend.token_to_id(token) for token in SPECIAL_TOKENS]
            if ids != list(range(len(SPECIAL_TOKENS))):
                raise ValueError(
                    f"Tokenizer: {', '.join(SPECIAL_TOKENS)} have ids {ids}; train it with them first, at 0 to 6"
                )
            roles = dict(zip(ROLES, SPECIAL_TOKENS, strict=True))
        backend.encode_special_tokens = True
        self.backend = backend
        self.roles = dict(roles)
        found: dict[str, int | None] = {role: self._id(role, roles.get(role)) for role in ROLES}
        for role in (*_SERVES, *_SERVES):  # twice, as one may serve another
            serving = (found[other] for other in _SERVES[role] if found[other] is not None)
            found[role] = next(serving, None) if found[role] is None else found[role]
        missing = [role for role in _SERVES if found[role] is None]
        if missing:
            raise ValueError(
                f"Tokenizer: no token is named for {', '.join(missing)}; name them in tokenizer_config.json, such as "
                '"eos_token": "</s>"'
            )
        for role, number in found.items():
            setattr(self, f"{role}_id", number)
        if start_id is not None and backend.id_to_token(start_id) is None:
            raise ValueError(
                f"Tokenizer: decoder_start_token_id={start_id} is no token of tokenizer.json; set it to one, or to null"
            )
        self.start_id = self.bos_id if start_id is None else start_id

    def _id(self, role: str, token: str | None) -> int | None:
        if token is None:
            return None
        number = self.backend.token_to_id(token)
        if number is None:
            raise ValueError(
                f"Tokenizer: {role}_token {token!r} is not in the vocabulary of tokenizer.json; name one that is"
            )
        return int(number)

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
        names = self.special_tokens
        return [names.get(int(i)) or self.backend.decode([int(i)]) for i in ids]

    @cached_property
    def special_tokens(self) -> dict[int, str]:
        """The names of the tokens that stand for no text, by id."""
        added = self.backend.get_added_tokens_decoder()
        special = {number: token.content for number, token in added.items() if token.special}
        ids = {token: self.backend.token_to_id(token) for token in self.roles.values()}
        return special | {number: token for token, number in ids.items() if number is not None}

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """The ids of tokens that stand for text, ascending."""
        return np.array(sorted(set(self.backend.get_vocab().values()) - self.special_tokens.keys()), dtype=np.int64)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return max(self.backend.get_vocab().values()) + 1

    def save(self, folder: Path) -> None:
        """Writes what `load` and `transformers.PreTrainedTokenizerFast.from_pretrained` read."""
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{f"{role}_token": token for role, token in self.roles.items()},
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": True,  # tokenizer.json cannot say that specials in text are text
            **({} if self.start_id == self.bos_id else {_START: self.start_id}),
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Of a folder with tokenizer.json: one of ours, or one of `transformers`, whose special tokens
        tokenizer_config.json or special_tokens_map.json names, and config.json where its decoder starts.

        Raises:
            ValueError: the folder has none, it cannot be read, or no token begins, ends or pads a text.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"Tokenizer: {path} does not exist; name a folder that `Tokenizer.save` wrote")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"Tokenizer: {path} cannot be read ({error}); put it back as it was saved") from error
        backend.no_padding()
        backend.no_truncation()
        return cls(backend, _roles(folder, backend), _start_id(folder))


def _mapping(path: Path) -> dict[str, object]:
    """What a file of JSON holds; nothing where there is none that can be read."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _start_id(folder: Path) -> int | None:
    """What the decoder of a model beside the tokenizer reads first."""
    for name in ("tokenizer_config.json", "config.json", "generation_config.json"):
        start = _mapping(folder / name).get(_START)
        if isinstance(start, int):
            return start
    return None


def _roles(folder: Path, backend: tokenizers.Tokenizer) -> dict[str, str]:
    """The special tokens that the files beside a tokenizer.json name, else those that are usual."""
    named: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        values = _mapping(folder / name)
        for role in ROLES:
            token = values.get(f"{role}_token")
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                named[role] = token
    if named:
        return named
    usual = {role: [t for t in tokens if backend.token_to_id(t) is not None] for role, tokens in _KNOWN.items()}
    return {role: tokens[0] for role, tokens in usual.items() if tokens}


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

    everything: ClassVar[bool] = True
    """Reads all of the training split, however large: no character may be missed."""

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


@dataclasses.dataclass(frozen=True, repr=False)
class Pretrained:
    """The tokenizer of a folder, as it is: one of ours or of Hugging Face (tokenizer.json).

    Args:
        path: the folder.

    Raises:
        ValueError: there is none, or it cannot be read.
    """

    path: str

    def __repr__(self) -> str:
        """By what the files hold, so that a copy in another folder is the same tokenizer."""
        contents = [(Path(self.path) / name).read_bytes() for name in _FILES if (Path(self.path) / name).is_file()]
        return f"Pretrained({hashlib.blake2b(b'|'.join(contents), digest_size=12).hexdigest()})"

    def train(self, texts: Iterator[str]) -> Tokenizer:
        return Tokenizer.load(Path(self.path))


def _check_vocab_size(name: str, vocab_size: int, least: int) -> None:
    if vocab_size < least:
        raise ValueError(
            f"{name}: vocab_size={vocab_size} is less than the {least} tokens it cannot do without; "
            f"set tokenizer.vocab_size to {least} or more"
        )
