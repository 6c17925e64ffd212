"""Reading tables row by row: .csv, .tsv, .jsonl, .parquet, .arrow, their columns chosen by name or number."""

import csv
import difflib
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from triform.data.sources.base import COLUMNS, Place
from triform.data.sources.files import form, read_lines

Column = str | int | None

TEXT_TABLES = (".tsv", ".csv", ".jsonl")
BINARY_TABLES = (".parquet", ".arrow")
TABLES = (*TEXT_TABLES, *BINARY_TABLES)
NAMES = {name for names in COLUMNS.values() for name in names}
"""Of columns, in any source: a first row that holds nothing else is hardly data."""

TableRow = tuple[Place, list[Any]]
"""Where a row is from, and its cells by column: strings, of JSON, Parquet and Arrow also numbers, lists and groups."""


def read_table(path: Path, key: str, columns: dict[str, Column], encoding: str) -> Iterator[TableRow]:
    """Columns of a table, row by row, in the order of `columns`.

    A .tsv is split at tabs and knows no quotes; a .csv follows RFC 4180; each line of a .jsonl is an object. A .tsv or
    .csv has a header if a column is given by name, or if all are null and its first row holds one of their own names. A
    null column is the one of its own name, or the only one left; in a table without a header, the one in its place.
    Lines without a character but blanks are left out.

    Args:
        columns: name or number from 0 by what the column is, such as {"text": None, "label": "class"}; the key
            "data.text_column" set that of "text".

    Raises:
        ValueError: a column is not there or twice, a row has more or fewer than the first, there are no rows, or all
            columns are null and it is not clear which they are: the first row may be a header of other names (its label
            is that of no other row, or it holds only names of columns), or has more columns than are read.
    """
    is_empty = True
    for row in _rows(path, key, columns, encoding):
        is_empty = False
        yield row
    if is_empty:
        raise ValueError(f"{key}={path} holds no rows; name a file that has some")


def _rows(path: Path, key: str, columns: dict[str, Column], encoding: str) -> Iterator[TableRow]:
    if form(path) in BINARY_TABLES:
        return _arrow_rows(path, key, columns)
    if form(path) == ".jsonl":
        lines = enumerate(read_lines(path, key, encoding), 1)
        return json_rows(((Place(str(path), "line", i), line) for i, line in lines), columns)
    return _delimited_rows(path, key, columns, encoding)


def check_columns(path: Path, key: str, columns: dict[str, Column], encoding: str) -> None:
    """Raises, from the first row alone, what `read_table` would raise about the columns."""
    if form(path) in BINARY_TABLES:
        with _Arrow(path, key) as table:
            _named_places(path, columns, table.names)
    else:
        for _ in islice(_rows(path, key, columns, encoding), 1):
            pass


def _delimited_rows(path: Path, key: str, columns: dict[str, Column], encoding: str) -> Iterator[TableRow]:
    rows = _csv_rows(path, key, encoding) if form(path) == ".csv" else _tsv_rows(path, key, encoding)
    first = next(rows, None)
    if first is None:
        return
    places, has_header = _places(path, first[1], columns)
    label = first[1][places[list(columns).index("label")]] if "label" in columns and _unset(columns) else None
    n_rows, n_alike = 0, 0
    for line, row in rows if has_header else _chain(first, rows):
        if len(row) != len(first[1]):
            fewer = "too few" if len(row) < len(first[1]) else "too many"
            raise ValueError(
                f"{key}: {path}, line {line} has {len(row)} columns, {fewer}: line {first[0]} has {len(first[1])}; "
                "mend the line"
                + (", or its quotes" if form(path) == ".csv" else ", which may have a tab within a text")
            )
        cells = [row[place] for place in places]
        n_rows += 1
        n_alike += label is not None and cells[list(columns).index("label")] == label
        yield Place(str(path), "line", line), cells
    if not has_header and label is not None and n_rows > 1 and n_alike == 1:
        raise _maybe_header(path, f"has the label {label[:30]!r}, which no other row has", columns)


def _chain(first: tuple[int, list[str]], rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    yield first
    yield from rows


def _tsv_rows(path: Path, key: str, encoding: str) -> Iterator[tuple[int, list[str]]]:
    for i, line in enumerate(read_lines(path, key, encoding), 1):
        if line.strip(" "):
            yield i, line.split("\t")


def _csv_rows(path: Path, key: str, encoding: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(read_lines(path, key, encoding, keep_ends=True), strict=True)
    start = 1
    try:
        for row in reader:
            if row and (len(row) > 1 or row[0].strip()):
                yield start, row
            start = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {start} is not CSV ({error}, on line {reader.line_num}); mend the quotes of this row"
        ) from None


def _unset(columns: dict[str, Column]) -> bool:
    return all(value is None for value in columns.values())


def _maybe_header(path: Path, what: str, columns: dict[str, Column]) -> ValueError:
    keys = " and ".join(f"data.{name}_column" for name in columns)
    return ValueError(
        f"{path}: its first row {what}; if it is a header, set {keys} to names in it; "
        f"if it is not, to numbers: {' and '.join(str(place) for place in range(len(columns)))}"
    )


def _places(path: Path, first: list[str], columns: dict[str, Column]) -> tuple[list[int], bool]:
    if len(first) < len(columns):
        raise ValueError(
            f"{path} has one column, where {' and '.join(columns)} are read; separate them by "
            f"{'commas' if form(path) == '.csv' else 'tabs, or by commas in a file that ends in .csv'}"
        )
    named = any(isinstance(value, str) for value in columns.values())
    has_header = named or (_unset(columns) and any(name in first for name in columns))
    if first and _unset(columns) and not has_header and {cell.strip().lower() for cell in first} <= NAMES:
        raise _maybe_header(path, f"holds {', '.join(first)}", columns)
    if has_header:
        return _named_places(path, columns, first), True
    if _unset(columns) and len(first) > len(columns):
        keys = " and ".join(f"data.{name}_column" for name in columns)
        raise ValueError(
            f"{path} has {len(first)} columns, and no header names {', '.join(columns)}; set {keys} to numbers from 0, "
            "or to names if its first row is a header"
        )
    places = []
    for place, (name, value) in enumerate(columns.items()):
        setting = f"data.{name}_column=" + (f"null, so {place}," if value is None else str(value))
        assert not isinstance(value, str)
        places.append(_checked_place(path, place if value is None else value, len(first), setting))
    return places, False


def _named_places(path: Path, columns: dict[str, Column], names: Sequence[str]) -> list[int]:
    """Where in `names` the columns are."""
    places: dict[str, int] = {}
    for name, value in columns.items():  # what the user set, before what follows from it
        key = f"data.{name}_column"
        if isinstance(value, int):
            places[name] = _checked_place(path, value, len(names), f"{key}={value}")
        elif value is not None:
            places[name] = _only(path, key, value, names)
    for name, value in columns.items():
        if value is None and name in names:
            places[name] = _only(path, f"data.{name}_column", name, names)
    missing = [name for name in columns if name not in places]
    left = [place for place in range(len(names)) if place not in places.values()]
    if len(missing) == len(left) == 1:
        places[missing[0]] = left[0]
    elif missing:
        raise ValueError(_no_column(path, f"data.{missing[0]}_column", missing[0], names))
    return [places[name] for name in columns]


def _only(path: Path, key: str, name: str, names: Sequence[str]) -> int:
    if name not in names:
        raise ValueError(_no_column(path, key, name, names))
    if list(names).count(name) > 1:
        raise ValueError(
            f"{key}={name} names {list(names).count(name)} columns of {path}; give them different names, or set {key} "
            f"to a number, {' or '.join(str(i) for i, other in enumerate(names) if other == name)}"
        )
    return list(names).index(name)


def _checked_place(path: Path, place: int, n_columns: int, setting: str) -> int:
    if not 0 <= place < n_columns:
        raise ValueError(f"{setting} is no column of {path}, which has {n_columns}; count from 0 to {n_columns - 1}")
    return place


def _no_column(path: Path | Place, key: str, name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    have = ", ".join(other[:30] for other in names[:12])
    remedy = f"did you mean {near[0]}?" if near else f"set {key} to one of them, or to a number from 0 without a header"
    return f"{key}={name} is no column of {path}, which has {have}; {remedy}"


# JSON


class _Twice(ValueError):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in names if names.count(name) > 1))
    return found


def json_rows(lines: Iterable[tuple[Place, str]], columns: dict[str, Column]) -> Iterator[TableRow]:
    """The columns of lines that hold an object each, blank ones left out."""
    wanted = {name: name if value is None else str(value) for name, value in columns.items()}
    for place, line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=_object)
        except _Twice as error:
            raise ValueError(f"{place} names {str(error)!r} twice; name each value once") from None
        except (json.JSONDecodeError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "too deeply nested"
            raise ValueError(f"{place} is not JSON ({reason}); put one object on each line") from None
        if not isinstance(row, dict):
            raise ValueError(f"{place} is no JSON object; put one object with named values on each line")
        for name, column in wanted.items():
            if row.get(column) is None:
                raise ValueError(_no_value(place, name, column, row))
        yield place, [row[column] for column in wanted.values()]


def _no_value(place: Place, name: str, column: str, row: dict[str, Any]) -> str:
    if column in row:
        return f"{place} has null for {column!r} (data.{name}_column); give it a value or take the line out"
    return _no_column(place, f"data.{name}_column", column, list(row))


# Parquet and Arrow


class _Arrow:
    """The names and the batches of a Parquet or Arrow file."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key

    def __enter__(self) -> "_Arrow":
        import pyarrow
        import pyarrow.parquet

        try:
            self.source = pyarrow.OSFile(str(self.path))
            if form(self.path) == ".parquet":
                self.file = pyarrow.parquet.ParquetFile(self.source)
                self.schema = self.file.schema_arrow
            else:
                try:
                    self.file = pyarrow.ipc.open_file(self.source)
                except pyarrow.ArrowInvalid:  # what `datasets` writes is a stream
                    self.source.seek(0)
                    self.file = pyarrow.ipc.open_stream(self.source)
                self.schema = self.file.schema
        except (pyarrow.ArrowException, OSError) as error:
            raise self.broken(error) from None
        self.names: list[str] = self.schema.names
        return self

    def __exit__(self, *args: object) -> None:
        self.source.close()

    def broken(self, error: BaseException) -> ValueError:
        what = "Parquet" if form(self.path) == ".parquet" else "Arrow"
        reason = " ".join(str(error).split())
        return ValueError(f"{self.key}: {self.path} cannot be read as {what} ({reason}); check the file")

    def batches(self, places: list[int]) -> Iterator[list[list[Any]]]:
        """The columns of each batch, as Python values."""
        import pyarrow

        try:
            if form(self.path) == ".parquet":
                names = [self.names[place] for place in places]
                for batch in self.file.iter_batches(batch_size=1024, columns=list(dict.fromkeys(names))):
                    yield [batch.column(name).to_pylist() for name in names]
                return
            stream = isinstance(self.file, pyarrow.RecordBatchStreamReader)
            whole = self.file if stream else map(self.file.get_batch, range(self.file.num_record_batches))
            for batch in whole:
                for start in range(0, batch.num_rows, 1024):
                    part = batch.slice(start, 1024)
                    yield [part.column(place).to_pylist() for place in places]
        except (pyarrow.ArrowException, OSError) as error:
            raise self.broken(error) from None


def _arrow_rows(path: Path, key: str, columns: dict[str, Column]) -> Iterator[TableRow]:
    number = 0
    with _Arrow(path, key) as table:
        places = _named_places(path, columns, table.names)
        duplicates = [name for name in (table.names[place] for place in places) if table.names.count(name) > 1]
        if duplicates and form(path) == ".parquet":
            raise ValueError(f"{key}: {path} has {duplicates[0]!r} twice; give its columns different names")
        classes = [_class_names(table.schema.metadata, table.names[place]) for place in places]
        for batch in table.batches(places):
            named = [
                [
                    names[value] if names is not None and isinstance(value, int) and value >= 0 else value
                    for value in cells
                ]
                for names, cells in zip(classes, batch, strict=True)
            ]
            for cells in zip(*named, strict=True):
                number += 1
                place = Place(str(path), "row", number)
                for name, cell in zip(columns, cells, strict=True):
                    if cell is None:
                        raise ValueError(
                            f"{place} has null for data.{name}_column; give it a value or take the row out"
                        )
                yield place, list(cells)


def _class_names(metadata: dict[bytes, bytes] | None, column: str) -> list[str] | None:
    """The names of a column of class numbers, where `datasets` has written them into the file."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return features[column]["names"] if features[column]["_type"] == "ClassLabel" else None
    except (KeyError, ValueError, TypeError):
        return None


# Cells


def as_text(cell: Any, place: Place, column: str) -> str:
    """A text, or a number or truth value as JSON writes it; a whole number that came as a fraction without one."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, float) and not math.isfinite(cell):
        raise ValueError(
            f"{place} has {cell} for data.{column}_column, which is no value; give it one or take the row out"
        )
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, bool | int | float):
        return json.dumps(cell)
    raise ValueError(
        f"{place}: data.{column}_column holds a {type(cell).__name__}, no text; choose a column of texts or numbers"
    )
