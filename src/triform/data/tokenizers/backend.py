"""What a `tokenizers.Tokenizer` makes of text that it should not know."""

import json
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
import tokenizers
from tokenizers import models

_BYTE_LEVEL = frozenset(tokenizers.pre_tokenizers.ByteLevel.alphabet())
_BYTE_FALLBACK = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def unknown_of(backend: tokenizers.Tokenizer) -> str | None:
    """The token that stands for what the model does not know; None: it has none."""
    model = backend.model
    if isinstance(model, models.Unigram):
        number = json.loads(model.__getstate__())["unk_id"]
        return None if number is None else model.id_to_token(number)
    token: str | None = model.unk_token
    return None if token is None or model.token_to_id(token) is None else token


def check_nothing_lost(backend: tokenizers.Tokenizer) -> None:
    """Refuse a tokenizer that leaves out, or fails at, what is not in its vocabulary.

    Raises:
        ValueError: it has no token for the unknown, and not one for each byte.
    """
    if unknown_of(backend) is not None:
        return
    vocabulary = backend.get_vocab(with_added_tokens=False).keys()
    pieces = [part.__getstate__() for part in (backend.pre_tokenizer, backend.normalizer) if part is not None]
    if any(b'"ByteLevel"' in piece for piece in pieces) and vocabulary >= _BYTE_LEVEL:
        return
    if getattr(backend.model, "byte_fallback", False) and vocabulary >= _BYTE_FALLBACK:
        return
    raise ValueError(
        f"Tokenizer: its {type(backend.model).__name__} has no token for what is not in the vocabulary and would lose "
        'it; give its model in tokenizer.json an "unk_token" of the vocabulary, or a token for each byte'
    )


def ids_of_bytes(backend: tokenizers.Tokenizer) -> np.ndarray | None:
    """The id of each byte where the tokens of a text are its bytes, whatever it says, as those of `Byte`; else None."""
    saved: dict[str, Any] = json.loads(backend.to_str())
    model, cut = saved["model"], saved["pre_tokenizer"] or {}
    if (
        model["type"] != "BPE"
        or any(model[name] for name in ("merges", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix"))
        or not model["vocab"].keys() >= _BYTE_LEVEL
        or (cut.get("type"), cut.get("add_prefix_space")) != ("ByteLevel", False)
        or saved["normalizer"] is not None
        or not all(token["special"] for token in saved["added_tokens"])  # others are found in text
    ):
        return None
    # Radford et al. 2019: bytes that print stand for themselves, the others for letters from 256 on, in order.
    other = iter(sorted(letter for letter in _BYTE_LEVEL if ord(letter) > 255))
    letters = [chr(byte) if chr(byte) in _BYTE_LEVEL else next(other) for byte in range(256)]
    return np.array([model["vocab"][letter] for letter in letters], dtype=np.uint32)


def without_special(backend: tokenizers.Tokenizer, special: Mapping[int, str]) -> tokenizers.Tokenizer:
    """The same, but that no text has special tokens: what looks like one is cut as any text.

    The library can leave the search for special tokens out, but its model would still find those that are in its
    vocabulary: "[EOS]" between blanks is a word. Here they have names that nobody can write.

    Args:
        special: id -> name.
    """
    saved: dict[str, Any] = json.loads(backend.to_str())
    secret = secrets.token_hex(8)
    names = {name: f"\U0010ffff {secret} {number}" for number, name in special.items()}
    model = saved["model"]
    is_list = isinstance(model["vocab"], list)  # of pieces and scores
    there = {entry[0] for entry in model["vocab"]} if is_list else model["vocab"].keys()
    if not names.keys() & there:
        return backend
    if is_list:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    else:
        model["vocab"] = {names.get(token, token): number for token, number in model["vocab"].items()}
    if model.get("unk_token") is not None:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        prefix = model.get("continuing_subword_prefix") or ""
        model["merges"] = [
            [left, right]
            for left, right in pairs
            if not {left, right, left + right.removeprefix(prefix)} & names.keys()
        ]
    for token in saved["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    reader = tokenizers.Tokenizer.from_str(json.dumps(saved))
    reader.encode_special_tokens = True
    return reader
