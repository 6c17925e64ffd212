"""One line out for each line in: what `triform translate` and `triform classify` have in common."""

import argparse
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

from triform.run.errors import BadInput

if TYPE_CHECKING:
    from triform.data.tokenizers import Tokenizer

WINDOW = 4096
"""Lines that are sorted by length together, so that they share batches with little padding. Between two windows what
is known is written."""

LINE_END = re.compile(r"\r\n|\r|\n")

Encode = Callable[[Sequence[str]], list[list[int]]]
Answer = Callable[[list[list[int]], list[str]], list[str]]


def add_batch_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
        metavar="N",
        help="lines at once, of like length; same output (default: 32)",
    )


def check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise BadInput(f"--batch-size {batch_size}: set it to at least 1, or leave it out")


def answer_lines(
    tokenizer: "Tokenizer", answer: Answer, room: int, batch_size: int, encode: Encode | None = None
) -> None:
    """Write a line to standard output for each line of standard input, in order, both UTF-8.

    A line ends with LF or CRLF and with nothing else, so that other programs count as many. A blank line gives an empty
    one. How long it took, how many lines are longer than what is read of them, and how many hold what the tokenizer
    does not know, is said at the end, on standard error.

    Args:
        tokenizer: of the texts.
        answer: what is written for texts, given their ids and them; line ends in it become blanks.
        room: tokens of a text that are read.
        batch_size: texts at a time.
        encode: texts to their ids; None: as the tokenizer does.

    Raises:
        BadInput: a line is not UTF-8; those of earlier windows are written.
    """
    source, out = given_lines(), sys.stdout.buffer
    if sys.stdin.isatty():
        print("one text a line; end with Ctrl-D", file=sys.stderr)
    window = 1 if sys.stdin.isatty() else max(WINDOW, batch_size)
    number, cut, unknown = 0, [], []
    seconds = 0.0  # without what the lines were waited for
    with _progress() as say:
        while raw := list(islice(source, window)):
            began = time.perf_counter()
            texts = [text_of(line, number + i) for i, line in enumerate(raw, 1)]
            given = [i for i, text in enumerate(texts) if text.strip()]
            ids = (encode or tokenizer.encode_batch)([texts[i] for i in given])
            unknown += [number + i + 1 for i, row in zip(given, ids, strict=True) if tokenizer.unk_id in row]
            cut += [number + i + 1 for i, row in zip(given, ids, strict=True) if len(row) > room]
            answers = [""] * len(texts)
            for places in _by_length(ids, batch_size):
                written = answer([ids[place][:room] for place in places], [texts[given[place]] for place in places])
                for place, text in zip(places, written, strict=True):
                    answers[given[place]] = LINE_END.sub(" ", text)
                say(sum(len(raw[given[place]]) for place in places))
            out.write("".join(f"{text}\n" for text in answers).encode())
            out.flush()
            number += len(raw)
            seconds += time.perf_counter() - began
    if number:
        print(f"{number} lines in {seconds:.1f} s, {number / seconds:.3g} a second", file=sys.stderr)
    if cut:
        print(
            f"warning: {len(cut)} of {number} lines have more than the {room} tokens that the model reads and were "
            f"cut, line {cut[0]} first",
            file=sys.stderr,
        )
    if unknown:
        print(
            f"warning: {len(unknown)} of {number} lines hold something that the tokenizer does not know, line "
            f"{unknown[0]} first",
            file=sys.stderr,
        )


def _by_length(ids: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]), reverse=True)  # what needs most memory comes first
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def given_lines() -> Iterator[bytes]:
    """Standard input, line by line.

    Raises:
        BadInput: it is closed.
    """
    if sys.stdin is None:
        raise BadInput("standard input is closed; give the texts there, as in `< FILE`")
    return iter(sys.stdin.buffer)


def text_of(line: bytes, number: int) -> str:
    """A line of standard input without its end.

    Args:
        number: of the line, from 1.

    Raises:
        BadInput: it is not UTF-8.
    """
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"standard input, line {number} is not UTF-8 (byte {line[error.start]:#04x}); convert it, for example with "
            "iconv -t utf-8"
        ) from None


@contextmanager
def _progress() -> Iterator[Callable[[int], None]]:
    """A function that is told the bytes that are done; shows them where somebody looks."""
    if not sys.stderr.isatty() or sys.stdin.isatty() or sys.stdout.isatty():
        yield lambda n: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    state = os.fstat(sys.stdin.fileno())
    total = state.st_size if stat.S_ISREG(state.st_mode) else None
    columns = (BarColumn(), TextColumn("{task.completed:,.0f} bytes"), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda n: bar.advance(task, n)
