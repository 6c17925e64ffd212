"""Sentences with a tag for each word from the user's own files."""

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import ClassVar

from triform.data.sources.base import Kind, Place, Row
from triform.data.sources.examples import Tagged, rows
from triform.data.sources.file_source import FileSource
from triform.data.sources.files import form, read_lines
from triform.data.sources.tables import Column, TableRow, check_columns, read_table

LISTS = (".jsonl", ".parquet", ".arrow")
ENDINGS = (".conll", ".conllu", ".bio", ".iob", ".iob2", ".tsv", ".txt", *LISTS)
DOCUMENT = "-DOCSTART-"
USUAL = {"tokens": 0, "tags": -1}
"""Columns of CoNLL where none are given."""


@dataclasses.dataclass(frozen=True)
class TaggedFiles(FileSource):
    """Files in the style of CoNLL, or tables (.jsonl, .parquet, .arrow) with lists of words and tags,
    gzipped or not.

    CoNLL: a word a line, its columns separated by tabs or blanks, a blank line between sentences. Comments (lines that
    begin with "#" before a sentence, with fewer columns than it), "-DOCSTART-", and in a .conllu the lines of
    multi-word tokens and empty nodes are no words.

    Args:
        tokens_column: of CoNLL: number from 0, from the end if negative; of a table: name. None: 0, or "tokens".
        tags_column: the same; None: the last, or "tags".
        train_files, validation_files, test_files, validation_fraction, encoding: see `FileSource`, which raises.

    Raises:
        ValueError: `load`: a line has more or fewer columns than the first.
    """

    tokens_column: Column
    tags_column: Column

    kind: ClassVar[Kind] = "tagged"
    endings = ENDINGS

    def check_split(self, paths: list[Path], key: str) -> None:
        for path in paths:
            if form(path) in LISTS:
                check_columns(path, key, self.columns_of(Tagged()), self.encoding)
            else:
                for _ in islice(read_conll(path, key, self.columns_of(Tagged()), self.encoding), 1):
                    pass

    def read_split(self, paths: list[Path], key: str) -> Iterator[Row]:
        for path in paths:
            read = read_table if form(path) in LISTS else read_conll
            yield from rows(Tagged(), read(path, key, self.columns_of(Tagged()), self.encoding))


def read_conll(path: Path, key: str, columns: dict[str, Column], encoding: str) -> Iterator[TableRow]:
    """The words and tags of each sentence; its place is the line of its first word.

    Raises:
        ValueError: a line has more or fewer columns than the first, a column is not there, or there is no sentence.
    """
    numbers = [_number(path, f"data.{name}_column", columns[name], usual) for name, usual in USUAL.items()]
    first: tuple[int, int] | None = None
    for sentence in _sentences(path, key, encoding):
        words = _words(sentence, form(path) == ".conllu")
        for line, cells in words:
            first = first or (line, len(cells))
            _check_width(path, key, line, cells, first, columns, numbers)
        if words and not (len(words) == 1 and words[0][1][0] == DOCUMENT):
            yield Place(str(path), "line", words[0][0]), [[cells[number] for _, cells in words] for number in numbers]
    if first is None:
        raise ValueError(f"{key}={path} holds no sentences; name a file that has some")


def _number(path: Path, key: str, column: Column, usual: int) -> int:
    if isinstance(column, str):
        raise ValueError(
            f"{key}={column}: {path} has columns without names; set {key} to a number from 0, or from the "
            "end if negative"
        )
    return usual if column is None else column


def _sentences(path: Path, key: str, encoding: str) -> Iterator[list[tuple[int, str]]]:
    sentence: list[tuple[int, str]] = []
    for number, line in enumerate(read_lines(path, key, encoding), 1):
        if line.strip():
            sentence.append((number, line))
        elif sentence:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def _words(sentence: Sequence[tuple[int, str]], is_conllu: bool) -> list[tuple[int, list[str]]]:
    # Only what everybody calls a blank: a word may have a no-break space in it.
    words = [
        (number, line.split("\t") if "\t" in line else list(filter(None, line.split(" ")))) for number, line in sentence
    ]
    has_tabs, width = any("\t" in line for _, line in sentence), len(words[-1][1])
    start = 0
    while start < len(words) and sentence[start][1].startswith("#"):
        if not ("\t" not in sentence[start][1] if has_tabs else len(words[start][1]) != width):
            break
        start += 1
    words = words[start:]
    return [word for word in words if not {"-", "."} & set(word[1][0])] if is_conllu else words


def _check_width(
    path: Path,
    key: str,
    line: int,
    cells: list[str],
    first: tuple[int, int],
    columns: dict[str, Column],
    numbers: Sequence[int],
) -> None:
    if len(cells) != first[1]:
        raise ValueError(
            f"{key}: {path}, line {line} has {len(cells)} columns, line {first[0]} has {first[1]}; mend the line, and "
            "leave a blank line between sentences"
        )
    for name, number in zip(columns, numbers, strict=True):
        if not -len(cells) <= number < len(cells):
            raise ValueError(
                f"data.{name}_column={number} is no column of {path}, which has {len(cells)}; count from 0 to "
                f"{len(cells) - 1}"
            )
    if len(cells) < 2:
        raise ValueError(
            f"{key}: {path}, line {line} has a word without a tag; put a tab or blank and the tag after it"
        )
