"""Text to ids and back."""

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import SupportsIndex

import numpy as np
import tokenizers

from triform.data.tokenizers import sentencepiece
from triform.data.tokenizers.backend import check_nothing_lost, ids_of_bytes, unknown_of, without_special

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[BOS]", "[EOS]", "[CLS]", "[SEP]", "[MASK]")  # their ids are 0 to 6
ROLES = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")
"""What special tokens are for, in the order of `SPECIAL_TOKENS`."""
_START = "decoder_start_token_id"
_SOURCE = "source"
"""Folder, in that of a tokenizer of targets, of the one of sources."""
FILES = ("tokenizer.json", *sentencepiece.FILES, "tokenizer_config.json", "special_tokens_map.json")
"""What the tokenizer of a folder is made of."""

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

    Where source and target of pairs have vocabularies of their own, it is that of the target, and `source` another one.

    Args:
        backend: does the work.
        roles: the token of each of `ROLES` that it has one for; None: it holds `SPECIAL_TOKENS` at ids 0 to 6.
        start_id: what the decoder of an encoder-decoder reads first (T5: as padding, BART: as an end); None: as `bos`.

    Attributes:
        source: what reads the source of pairs; itself unless `beside` gave it another one.

    Raises:
        ValueError: a role's token is not in the vocabulary, none begins, ends or pads a text, no token has the id
            `start_id`, or text that is not in the vocabulary would be lost.
    """

    pad_id: int
    bos_id: int
    eos_id: int
    cls_id: int
    sep_id: int
    unk_id: int | None
    mask_id: int | None
    source: "Tokenizer"

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
        check_nothing_lost(backend)
        backend.encode_special_tokens = True
        self.backend = backend
        self.source = self
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

    def beside(self, source: "Tokenizer") -> "Tokenizer":
        """This one as that of targets, with another one for sources."""
        both = copy.copy(self)
        both.source = source
        return both

    @property
    def is_separate(self) -> bool:
        """Whether sources have a vocabulary of their own."""
        return self.source is not self

    @cached_property
    def _reader(self) -> tokenizers.Tokenizer:
        """What finds tokens in text."""
        return without_special(self.backend, self.special_tokens)

    def encode(self, text: str) -> list[int]:
        return self._reader.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._reader.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts after each other, and how many each has; for large texts.

        Where tokens are bytes, they are looked up in a table, at a hundred times the speed of the library.
        """
        if self._ids_of_bytes is not None:
            data = [text.encode() for text in texts]
            lengths = np.array([len(piece) for piece in data], dtype=np.int64)
            return self._ids_of_bytes[np.frombuffer(b"".join(data), dtype=np.uint8)], lengths
        encodings = self._reader.encode_batch_fast(list(texts), add_special_tokens=False)
        lengths = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
        # Encoding by encoding: a list of ids takes ten times the memory of an array.
        ids = [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        return np.concatenate(ids) if ids else np.empty(0, dtype=np.uint32), lengths

    @cached_property
    def _ids_of_bytes(self) -> np.ndarray | None:
        return ids_of_bytes(self._reader)

    def encode_with_places(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """The ids of each text, and of each where in the text its token begins and ends, in characters."""
        encodings = self._reader.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    @cached_property
    def begins_with_blank(self) -> bool:
        """Whether a text is read as if a blank stood before it, as SentencePiece mostly does."""
        whole, first = self.encode("a e"), self.encode("a")
        return whole == first + self.encode("e") != first + self.encode(" e")

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
        """Writes what `load` and `transformers.PreTrainedTokenizerFast.from_pretrained` read, the tokenizer of sources
        in a folder of its own."""
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
        if self.is_separate:
            self.source.save(folder / _SOURCE)

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Of a folder with tokenizer.json: one of ours, or one of `transformers`, whose special tokens
        tokenizer_config.json or special_tokens_map.json names, and config.json where its decoder starts. Or with a
        model of SentencePiece, tokenizer.model or spiece.model. Or of such a file itself.

        Raises:
            ValueError: there is none, it cannot be read, or no token begins, ends or pads a text.
        """
        file = tokenizer_file(path)
        if file is None:
            missing = path / FILES[0] if path.is_dir() or not path.suffix else path
            raise ValueError(
                f"Tokenizer: {missing} does not exist; name a folder that `Tokenizer.save` wrote, a tokenizer.json or "
                "a model of SentencePiece"
            )
        known: dict[str, str] = {}
        try:
            if file.suffix == ".json":
                backend = tokenizers.Tokenizer.from_file(str(file))
            else:
                backend, known = sentencepiece.read(file.read_bytes())
        except Exception as error:  # the libraries raise nothing narrower
            raise ValueError(f"Tokenizer: {file} cannot be read ({error}); put it back as it was saved") from error
        backend.no_padding()
        backend.no_truncation()
        folder = file.parent
        tokenizer = cls(backend, known | _roles(folder, backend, usual=not known), _start_id(folder))
        source = folder / _SOURCE
        return tokenizer if tokenizer_file(source) is None else tokenizer.beside(cls.load(source))


def tokenizer_file(path: Path) -> Path | None:
    """The file that a path names, or that its folder holds, which a tokenizer is read from; None: there is none."""
    if path.is_file():
        return path
    return next((path / name for name in FILES[:-2] if (path / name).is_file()), None)


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


def _roles(folder: Path, backend: tokenizers.Tokenizer, usual: bool) -> dict[str, str]:
    """The special tokens that the files beside a tokenizer name, else, if `usual`, those that have the usual names."""
    named: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        values = _mapping(folder / name)
        for role in ROLES:
            token = values.get(f"{role}_token")
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                named[role] = token
    if not named and usual:
        there = {role: [t for t in tokens if backend.token_to_id(t) is not None] for role, tokens in _KNOWN.items()}
        named = {role: tokens[0] for role, tokens in there.items() if tokens}
    unknown = unknown_of(backend)
    return named if unknown is None else {"unk": unknown} | named
