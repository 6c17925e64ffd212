"""Models of SentencePiece (Kudo and Richardson 2018, https://arxiv.org/abs/1808.06226) for the tokenizers library."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

FILES = ("tokenizer.model", "spiece.model")
"""What they are called in folders of Hugging Face where the model's ids are those of the file. Those of a
`sentencepiece.bpe.model` are not."""

_BLANK = "\N{LOWER ONE EIGHTH BLOCK}"
_UNIGRAM, _BPE, _CHAR = 1, 2, 4
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6


@dataclass(frozen=True)
class Piece:
    """An entry of the vocabulary."""

    text: str
    score: float
    kind: int


def read(data: bytes) -> tuple[tokenizers.Tokenizer, dict[str, str]]:
    """The tokenizer of a model's file, and its special tokens by role.

    It gives the ids that SentencePiece gives, but for a text with a run of combining marks, of which the libraries'
    tables of Unicode may make different characters, and for "<0x0A>" and the like in a text for Unigram.

    Raises:
        ValueError: the bytes are no such model, or one that the tokenizers library has no like of.
    """
    try:
        model = _fields(data)
        pieces = [_piece(_fields(piece)) for piece in model[1]]
        trainer, normalizer = (_fields(b"".join(model.get(number, []))) for number in (2, 3))
        kind = int(_last(trainer, 3, _UNIGRAM))
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise ValueError("it is no model of SentencePiece") from error
    if kind not in (_UNIGRAM, _BPE, _CHAR) or _last(trainer, 24, 0) or not _last(normalizer, 5, 1):
        raise ValueError("only Unigram, BPE and characters are read, with blanks as marks in front of words")
    if sum(piece.kind == _UNKNOWN for piece in pieces) != 1:
        raise ValueError("it has not one unknown piece")

    has_bytes = bool(_last(trainer, 35, 0))
    has_prefix, is_squeezed = bool(_last(normalizer, 3, 1)), bool(_last(normalizer, 4, 1))
    own = [] if kind == _UNIGRAM else [piece.text for piece in pieces if piece.kind == _USER_DEFINED]
    if own and (has_prefix or is_squeezed):  # the library would do that between such pieces, too
        raise ValueError(f"{own[0]!r} is always whole, which is read of Unigram, or with blanks as they are written")

    backend = tokenizers.Tokenizer(_model(kind, pieces, has_bytes))
    charsmap = _last(normalizer, 2, b"")
    backend.normalizer = normalizers.Sequence(list(_normalizers(charsmap, has_prefix, is_squeezed)))
    backend.pre_tokenizer = pre_tokenizers.Sequence(list(_cuts(kind, pieces, has_bytes)))
    steps = [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if has_prefix else [])])

    special = [piece.text for piece in pieces if piece.kind in (_UNKNOWN, _CONTROL)]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    backend.add_tokens([AddedToken(token, normalized=False) for token in own])
    return backend, _roles(trainer, pieces)


def _normalizers(charsmap: bytes, has_prefix: bool, is_squeezed: bool) -> Iterator[normalizers.Normalizer]:
    if charsmap:
        yield normalizers.Precompiled(charsmap)
    if is_squeezed:
        yield normalizers.Replace(Regex(" {2,}"), " ")
        yield normalizers.Replace(Regex(r"\A +| +\z"), "")
    if has_prefix:
        yield normalizers.Prepend(" ")
    yield normalizers.Replace(" ", _BLANK)


def _cuts(kind: int, pieces: list[Piece], has_bytes: bool) -> Iterator[pre_tokenizers.PreTokenizer]:
    if kind == _UNIGRAM and has_bytes:  # "<0x0A>" that somebody wrote is not the byte 10
        yield pre_tokenizers.Split(Regex("<(?=0x[0-9A-F]{2}>)"), "isolated")
    if all(_BLANK not in piece.text[1:] for piece in pieces if piece.kind == _NORMAL):  # words can be read apart
        yield pre_tokenizers.Split(_BLANK, "merged_with_next")


def _model(kind: int, pieces: list[Piece], has_bytes: bool) -> models.Model:
    unknown = next(i for i, piece in enumerate(pieces) if piece.kind == _UNKNOWN)
    # What is never found in text must have a name that no text has.
    names = [f"\U0010ffff unused {i}" if piece.kind == _UNUSED else piece.text for i, piece in enumerate(pieces)]
    if kind == _UNIGRAM:
        largest = max((piece.score for piece in pieces if piece.kind == _NORMAL), default=0.0)
        scores = [
            len(piece.text.encode()) * largest - 0.1 if piece.kind == _USER_DEFINED else piece.score for piece in pieces
        ]
        return models.Unigram(list(zip(names, scores, strict=True)), unk_id=unknown, byte_fallback=has_bytes)
    scores_of = {piece.text: piece.score for piece in pieces if piece.kind in (_NORMAL, _USER_DEFINED)}
    merges = _merges(scores_of) if kind == _BPE else []
    vocabulary = {name: i for i, name in enumerate(names)}
    return models.BPE(vocabulary, merges, unk_token=names[unknown], fuse_unk=True, byte_fallback=has_bytes)


def _merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every way to put a piece together of two, the piece with the highest score first."""
    ids = {piece: i for i, piece in enumerate(scores)}
    found = []
    for piece, score in scores.items():
        cuts = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        pairs = [(ids[left], ids[right], left, right) for left, right in cuts if left in ids and right in ids]
        found += [(-score, *pair) for pair in pairs]
    return [(left, right) for *_, left, right in sorted(found)]


def _roles(trainer: Mapping[int, list[Any]], pieces: list[Piece]) -> dict[str, str]:
    roles = {"unk": next(piece.text for piece in pieces if piece.kind == _UNKNOWN)}
    for role, number, usual in (("bos", 41, 1), ("eos", 42, 2), ("pad", 43, -1)):
        place = _signed(_last(trainer, number, usual))
        if 0 <= place < len(pieces) and pieces[place].kind == _CONTROL:
            roles[role] = pieces[place].text
    marks = {piece.text for piece in pieces if piece.kind in (_CONTROL, _USER_DEFINED)}
    usual_names = (("cls", "[CLS]"), ("sep", "[SEP]"), ("mask", "<mask>"), ("mask", "[MASK]"))
    return roles | {role: name for role, name in usual_names if name in marks}


def _piece(fields: Mapping[int, list[Any]]) -> Piece:
    (score,) = struct.unpack("<f", _last(fields, 2, b"\0\0\0\0"))
    return Piece(_last(fields, 1, b"").decode(), score, int(_last(fields, 3, _NORMAL)))


def _last(fields: Mapping[int, list[Any]], number: int, default: Any) -> Any:
    """The value of a field that is there once: by the format's rule the last one."""
    return fields[number][-1] if number in fields else default


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _fields(data: bytes) -> dict[int, list[Any]]:
    """The fields of a protocol buffer's message by number: whole numbers, and bytes for all else.

    https://protobuf.dev/programming-guides/encoding
    """
    fields: dict[int, list[Any]] = {}
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, wire = key >> 3, key & 7
        value: int | bytes
        if wire == 0:
            value, place = _varint(data, place)
        elif wire in (1, 2, 5):
            length = {1: 8, 5: 4}.get(wire)
            if length is None:
                length, place = _varint(data, place)
            if place + length > len(data):
                raise ValueError("the message ends within a field")
            value, place = data[place : place + length], place + length
        else:
            raise ValueError(f"wire type {wire} is not known")
        fields.setdefault(number, []).append(value)
    return fields


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
