"""From flat files of text to flat files of tokens: the tokenizer is trained, then reads every split in big batches."""

import ctypes
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from triform.data.sources.base import Kind
from triform.data.spool import Rows, texts_of
from triform.data.tokenizers import Recipe, Separate, Tokenizer

PIECE = 1 << 14
"""Bytes tokenised at a time: long documents cost neither memory nor the use of all cores."""
BATCH = 1 << 15
"""Bytes in a batch, per core but for `CORES` at least: the tokens of 1 MB take 80 MB while they are made."""
AT_ONCE = 3
"""Batches that are encoded at a time, each by all cores that are free."""
CORES = 4
SAMPLE = 1 << 24
"""Bytes that a tokenizer is trained on where there are more, evenly spread over the training text: counting the words
of 1 GB takes that much memory, too, and gives the same tokens but for the rarest."""

Say = Callable[[int], None]
"""Is told the bytes that have been read."""


class Piece(NamedTuple):
    """Text that is tokenised at once."""

    text: str
    n_bytes: int
    is_last: bool
    """Whether its row ends with it."""


def cut(path: Path, size: int = PIECE) -> Iterator[Piece]:
    """The rows of a file of UTF-8 in pieces of at most `size` bytes, cut after line ends, else before blanks, where any
    are."""
    ends = mapped(path.with_name(f"{path.name}_ends"), "int64")
    start = 0
    with path.open("rb") as file:
        for block in range(0, len(ends), 1 << 13):
            for end in ends[block : block + (1 << 13)].tolist():
                yield from cut_row(file, end - start, size)
                start = end


def mapped(path: Path, dtype: str) -> np.ndarray:
    """The values of a file, not read before they are used."""
    if path.stat().st_size == 0:  # which cannot be mapped
        return np.empty(0, dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))  # a memmap takes five times as long to be indexed


def cut_row(file: Any, length: int, size: int = PIECE) -> Iterator[Piece]:
    """The next `length` bytes of a file, which are one row, in pieces; see `cut`."""
    data = b""
    while len(data) + length > size:
        more = file.read(size - len(data))
        data, length = data + more, length - len(more)
        end = data.rfind(b"\n") + 1 or max(data.rfind(b" "), 0) or _whole_characters(data)
        yield Piece(data[:end].decode(), end, False)
        data = data[end:]
    data += file.read(length)
    yield Piece(data.decode(), len(data), True)


def _whole_characters(data: bytes) -> int:
    """How many of the bytes are whole characters: not the beginning of one at the end."""
    end = len(data)
    while end > 1 and data[end - 1] & 0xC0 == 0x80:
        end -= 1
    first = data[end - 1]
    needs = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    return len(data) if len(data) - end + 1 >= needs else end - 1


def train(recipe: Recipe, folder: Path, kind: Kind, say: Say) -> Tokenizer:
    """The tokenizer of the training split, of at most `SAMPLE` bytes of it unless the recipe must see `everything`."""
    paths = [folder / f"train.{column}.utf8" for column in texts_of(kind)]
    total = sum(path.stat().st_size for path in paths)
    everything = getattr(recipe, "everything", False)
    every = 1 if everything else max(1, math.ceil(total / SAMPLE))
    if isinstance(recipe, Separate):
        texts = dict(zip(texts_of(kind), (_texts([path], every, say) for path in paths), strict=True))
        tokenizer = recipe.train_apart(texts["source"], texts["target"])
    else:
        tokenizer = recipe.train(_texts(paths, every, say))
    # What counting words took has been freed but not given back: 30 MB that would stand beside the tokens of a batch.
    with suppress(OSError, AttributeError, TypeError):  # where there is no glibc
        ctypes.CDLL(None).malloc_trim(0)
    return tokenizer


def is_sampled(recipe: Recipe, n_bytes: int) -> bool:
    """Whether a tokenizer that learns from so many bytes sees a part of them only."""
    return n_bytes > SAMPLE and getattr(recipe, "learns", True) and not getattr(recipe, "everything", False)


def _texts(paths: Sequence[Path], every: int, say: Say) -> Iterator[str]:
    for path in paths:
        for i, piece in enumerate(cut(path)):
            say(piece.n_bytes)
            if i % every == 0 and piece.text:
                yield piece.text


def write_tokens(stem: Path, tokenizer: Tokenizer, dtype: str, eos: bool, say: Say) -> int:
    """Tokenise the rows of `stem`.utf8 into `stem`.ids; returns how many tokens are unknown.

    Args:
        eos: end each row with the tokenizer's [EOS].
    """
    n_unknown = 0
    with closing(Rows(stem.with_name(f"{stem.name}.ids"))) as ids:
        for batch, flat, lengths in encoded(cut(stem.with_name(f"{stem.name}.utf8")), tokenizer):
            n_unknown += 0 if tokenizer.unk_id is None else int(np.count_nonzero(flat == tokenizer.unk_id))
            ends = np.cumsum(lengths)[[piece.is_last for piece in batch]]
            if eos:
                flat = np.insert(flat, ends, tokenizer.eos_id)
                ends += np.arange(1, len(ends) + 1)
            ids.extend(flat.astype(dtype), ends)
            say(sum(piece.n_bytes for piece in batch))
    return n_unknown


def encoded(pieces: Iterable[Piece], tokenizer: Tokenizer) -> Iterator[tuple[Sequence[Piece], np.ndarray, np.ndarray]]:
    """The pieces in batches, each with their tokens after each other, and how many each has. Other batches are being
    encoded meanwhile: no core waits for the last piece of one."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting: deque[tuple[Sequence[Piece], Future[tuple[np.ndarray, np.ndarray]]]] = deque()
        for batch in _batches(pieces):
            waiting.append((batch, pool.submit(tokenizer.encode_flat, [piece.text for piece in batch])))
            if len(waiting) > AT_ONCE:
                done, tokens = waiting.popleft()
                yield done, *tokens.result()
        for done, tokens in waiting:
            yield done, *tokens.result()


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    most = BATCH * max(CORES, os.cpu_count() or 1)
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += piece.n_bytes + 32  # what a token list costs besides its tokens
        if size >= most:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def write_parts(folder: Path, split: str, kind: Kind, tokenizer: Tokenizer, dtype: str, say: Say) -> int:
    """The same for texts whose parts are tokenised apart: `split`.tags or `split`.learned gets a value for each token.

    A word's tag stands at its first token that is no mere blank, -100 at the others; a word of which a tokenizer makes
    nothing is its unknown token.

    Raises:
        ValueError: it makes nothing of a word and has no unknown token.
    """
    name = "tags" if kind == "tagged" else "learned"
    value_type = "int64" if kind == "tagged" else "bool"
    n_unknown = 0
    with closing(Rows(folder / f"{split}.text.ids")) as ids, closing(Rows(folder / f"{split}.{name}")) as values:
        for texts, numbers, lasts in _parts(folder / f"{split}.text.utf8", folder / f"{split}.parts"):
            if kind == "tagged":
                encoded = words_of(texts, tokenizer)
            else:
                encoded = [(tokens, 0) for tokens in tokenizer.encode_batch(texts)]
            for number, is_last, (tokens, place) in zip(numbers, lasts, encoded, strict=True):
                if kind == "tagged":
                    row = np.full(len(tokens), -100)
                    row[place] = number
                else:
                    row = np.full(len(tokens), bool(number))
                ids.add(np.array(tokens, dtype=dtype).tobytes(), len(tokens))
                values.add(row.astype(value_type).tobytes(), len(tokens))
                n_unknown += 0 if tokenizer.unk_id is None else tokens.count(tokenizer.unk_id)
                if is_last:
                    ids.end()
                    values.end()
            say(sum(len(text.encode()) for text in texts))
    return n_unknown


def words_of(texts: Sequence[str], tokenizer: Tokenizer) -> list[tuple[list[int], int]]:
    """The tokens of each word of a text, and which of them stands for it: the first that is no mere blank.

    Args:
        texts: words, with a blank before all but a text's first.
    """
    if tokenizer.begins_with_blank:  # which words within a text have already
        texts = [text.removeprefix(" ") for text in texts]
    found = []
    for text, (tokens, places) in zip(texts, tokenizer.encode_with_places(texts), strict=True):
        blanks = len(text) - len(text.lstrip())
        first = next((i for i, (_, end) in enumerate(places) if end > blanks), 0)
        found.append((tokens or [_unknown(tokenizer, text)], first))
    return found


def _unknown(tokenizer: Tokenizer, text: str) -> int:
    if tokenizer.unk_id is None:
        raise ValueError(
            f"prepare: the tokenizer makes no token of the word {text.strip()!r} and has none for the unknown, so its "
            "tag would be lost; take it out of the data or choose another tokenizer"
        )
    return tokenizer.unk_id


def _parts(utf8: Path, parts: Path) -> Iterator[tuple[list[str], list[int], list[bool]]]:
    pairs, ends = mapped(parts, "int64").reshape(-1, 2), mapped(parts.with_name(f"{parts.name}_ends"), "int64")
    step, n_ended = 1 << 12, 0
    with utf8.open("rb") as file:
        for start in range(0, len(pairs), step):
            chosen = np.array(pairs[start : start + step])
            ended = int(np.searchsorted(ends, start + len(chosen), side="right"))
            is_last = np.zeros(len(chosen), dtype=bool)
            is_last[ends[n_ended:ended] - 1 - start] = True
            n_ended = ended
            yield [file.read(n).decode() for n in chosen[:, 0].tolist()], chosen[:, 1].tolist(), is_last.tolist()
