"""Reading the user's own files: names, globs, compression, encodings, tables, and what can be wrong with each.

Every fault is a ValueError of one line that names the file, the line where there is one, and the key that named it.
"""

import csv
import difflib
import glob
import gzip
import hashlib
import io
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from triform.data.sources.base import digest, stable_hash

Files = str | Sequence[str] | None
Column = str | int | None

Rows = dict[str, list[str]]  # values by column

TABLES = (".tsv", ".csv", ".jsonl")
NAMES = {"text", "label", "source", "target"}  # of columns, in any source


def resolve(files: Files, key: str) -> list[Path]:
    """The files that a name, a list of names or a glob stands for, a glob's in order of name.

    Args:
        key: that set `files`, such as "data.train_files".
    """
    if not files:
        raise ValueError(f"{key} is not set; name your files, for example {key}=my.txt")
    return [path for name in ([files] if isinstance(files, str) else files) for path in _expand(str(name), key)]


def _expand(name: str, key: str) -> list[Path]:
    path = Path(name).expanduser()
    if path.is_dir():
        raise ValueError(f"{key}={name} is a folder; name files in it, for example '{key}={name.rstrip('/')}/*'")
    if not path.is_file():
        if matches := sorted(glob.glob(str(path), recursive=True)):
            return [file for match in matches if Path(match).is_file() for file in _expand(match, key)]
        raise ValueError(f"{key}={name} does not exist; {_nearest_file(path)}")
    if path.stat().st_size == 0:
        raise ValueError(f"{key}={name} is empty; name a file that has text")
    return [path]


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"nor does its folder; relative names start from {Path.cwd()}"
    near = difflib.get_close_matches(path.name, [other.name for other in path.parent.iterdir()], n=1, cutoff=0.5)
    return f"did you mean {path.parent / near[0]}?" if near else f"see what is in {path.parent.absolute()}"


def resolve_splits(train_files: Files, validation_files: Files, test_files: Files) -> dict[str, list[Path]]:
    """The files of each split that has some; "train" must."""
    paths = {"train": resolve(train_files, "data.train_files")}
    if validation_files:
        paths["validation"] = resolve(validation_files, "data.validation_files")
    if test_files:
        paths["test"] = resolve(test_files, "data.test_files")
    return paths


def fingerprint(settings: str, splits: dict[str, list[Path]]) -> str:
    """Of the settings of a source, the content of its files, and how they are read."""
    parts = [settings, *(code.read_text(encoding="utf-8") for code in sorted(Path(__file__).parent.glob("*.py")))]
    parts += [f"{name} {form(path)} {content_hash(path)}" for name, paths in splits.items() for path in paths]
    return digest(parts)


def content_hash(path: Path) -> str:
    """Of a file's bytes, which are read again when its size or the time of its last change is another."""
    state = path.stat()
    return _content_hash(path.absolute(), state.st_size, state.st_mtime_ns)


@cache
def _content_hash(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def all_files(splits: dict[str, list[Path]]) -> list[Path]:
    """Each file once."""
    return list(dict.fromkeys(path for paths in splits.values() for path in paths))


def form(path: Path) -> str:
    """The ending that says how a file is read, ".gz" left out: ".tsv" of x.tsv.gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def read_text(path: Path, key: str) -> str:
    """The whole text, a byte-order mark left out, line ends as they are."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{key}: {path} cannot be read ({error}); check the file") from None
    if not data:
        raise ValueError(f"{key}={path} is empty; name a file that has text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{key}: {path}, line {line} is not UTF-8 (byte {data[error.start]:#04x}); convert the file, "
            "for example with iconv -f latin1 -t utf-8"
        ) from None


def lines(text: str) -> list[str]:
    """What stands between line feeds. Unlike `str.splitlines`, a form feed or U+2028 within a line does not end it."""
    found = [line.removesuffix("\r") for line in text.split("\n")]
    return found[:-1] if found[-1] == "" else found


def read_columns(path: Path, key: str, columns: dict[str, Column]) -> list[list[str]]:
    """Columns of a .tsv, .csv or .jsonl file, in the order of `columns`.

    A .tsv is split at tabs and knows no quotes; a .csv follows RFC 4180; each line of a .jsonl is an object. A table
    has a header if a column is given by name, or if all are null and its first row holds one of their own names. A
    null column is the one of its own name, or the only one left; in a table without a header, the one in its place.

    Args:
        columns: name or number from 0 by what the column is, such as {"text": None, "label": "class"}; the key
            "data.text_column" set that of "text".

    Raises:
        ValueError: a column is not there, a row is too short, or all columns are null and the first row may be a
            header of other names: its label is that of no other row, or it holds only names of columns.
    """
    text = read_text(path, key)
    if form(path) == ".jsonl":
        return _json_columns(path, text, columns)
    rows = list(_csv_rows(path, text)) if form(path) == ".csv" else _tsv_rows(text)
    if not rows:
        raise ValueError(f"{key}={path} holds no rows; name a file that has some")
    places, has_header = _places(path, rows[0][1], columns)
    found: list[list[str]] = [[] for _ in columns]
    for line, row in rows[has_header:]:
        if len(row) <= max(places):
            raise ValueError(
                f"{key}: {path}, line {line} has {len(row)} columns, too few for column {max(places)}, counted from 0; "
                "mend the line or set " + " and ".join(f"data.{name}_column" for name in columns)
            )
        for column, place in zip(found, places, strict=True):
            column.append(row[place])
    if not has_header and "label" in columns and _unset(columns):
        label, *others = found[list(columns).index("label")]
        if others and label not in others:
            raise _maybe_header(path, f"has the label {label[:30]!r}, which no other row has", columns)
    return found


def read_tables(paths: Sequence[Path], key: str, columns: dict[str, Column]) -> Rows:
    """The rows of all files after each other."""
    tables = [read_columns(path, key, columns) for path in paths]
    return {name: [value for table in tables for value in table[i]] for i, name in enumerate(columns)}


def check_columns(path: Path, key: str, columns: dict[str, Column]) -> None:
    """Raises, from the first line alone, what `read_columns` would raise about the columns."""
    with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
        try:
            first = file.readline().decode("utf-8-sig", errors="replace")
        except (OSError, EOFError, zlib.error):
            return  # which reading it in full reports
    if form(path) == ".jsonl":
        _json_columns(path, first, columns)
    elif form(path) == ".csv":
        _places(path, next(csv.reader([first]), []), columns)
    else:
        _places(path, first.rstrip("\r\n").split("\t"), columns)


def _tsv_rows(text: str) -> list[tuple[int, list[str]]]:
    return [(i, line.split("\t")) for i, line in enumerate(lines(text), 1) if line.strip()]


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num} is not CSV ({error}); mend its quotes") from None


def _unset(columns: dict[str, Column]) -> bool:
    return all(value is None for value in columns.values())


def _maybe_header(path: Path, what: str, columns: dict[str, Column]) -> ValueError:
    keys = " and ".join(f"data.{name}_column" for name in columns)
    return ValueError(
        f"{path}: its first row {what}; if it is a header, set {keys} to names in it; "
        f"if it is not, to numbers: {' and '.join(str(place) for place in range(len(columns)))}"
    )


def _places(path: Path, first: list[str], columns: dict[str, Column]) -> tuple[list[int], bool]:
    named = any(isinstance(value, str) for value in columns.values())
    has_header = named or (_unset(columns) and any(name in first for name in columns))
    if first and _unset(columns) and not has_header and {cell.strip().lower() for cell in first} <= NAMES:
        raise _maybe_header(path, f"holds {', '.join(first)}", columns)
    places: dict[str, int] = {}
    for name, value in columns.items():  # what the user set, before what follows from it
        key = f"data.{name}_column"
        if isinstance(value, int):
            places[name] = _checked_place(path, value, len(first), f"{key}={value}")
        elif value is not None:
            if value not in first:
                raise ValueError(_no_column(path, key, value, first))
            places[name] = first.index(value)
    for place, (name, value) in enumerate(columns.items()):
        if value is None and not has_header:
            places[name] = _checked_place(path, place, len(first), f"data.{name}_column=null, so {place},")
        elif value is None and name in first:
            places[name] = first.index(name)
    missing = [name for name in columns if name not in places]
    left = [place for place in range(len(first)) if place not in places.values()]
    if len(missing) == len(left) == 1:
        places[missing[0]] = left[0]
    elif missing:
        raise ValueError(_no_column(path, f"data.{missing[0]}_column", missing[0], first))
    return [places[name] for name in columns], has_header


def _checked_place(path: Path, place: int, n_columns: int, setting: str) -> int:
    if not 0 <= place < n_columns:
        raise ValueError(
            f"{setting} is no column of {path}, which has {n_columns}; count from 0 to {n_columns - 1}, "
            "and end the name of the file in what separates its columns, .tsv or .csv"
        )
    return place


def _no_column(path: Path, key: str, name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    have = ", ".join(other[:30] for other in names[:12])
    remedy = f"did you mean {near[0]}?" if near else f"set {key} to one of them, or to a number from 0 without a header"
    return f"{key}={name} is no column of {path}, which has {have}; {remedy}"


def _json_columns(path: Path, text: str, columns: dict[str, Column]) -> list[list[str]]:
    found: list[list[str]] = [[] for _ in columns]
    for i, line in enumerate(lines(text), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "too deeply nested"
            raise ValueError(f"{path}, line {i} is not JSON ({reason}); put one object on each line") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {i} is no JSON object; put one object with named values on each line")
        for column, (name, value) in zip(found, columns.items(), strict=True):
            wanted = name if value is None else str(value)
            if row.get(wanted) is None:
                raise ValueError(_no_column(Path(f"{path}, line {i}"), f"data.{name}_column", wanted, list(row)))
            column.append(_plain(row[wanted]))
    return found


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def hold_out(texts: Sequence[str], fraction: float) -> list[bool]:
    """Which rows are held out: those whose text has the smallest hashes, `fraction` of the distinct texts.

    Equal texts stay together, so that none is both learnt and tested; the order of rows has no say. At least one
    text is held out and, of two or more, at least one is not.
    """
    ranked = sorted(set(texts), key=stable_hash)
    count = min(max(1, round(len(ranked) * fraction)), len(ranked) - 1)
    held_out = set(ranked[:count])
    return [text in held_out for text in texts]


def with_validation(splits: dict[str, Rows], column: str, fraction: float) -> dict[str, Rows]:
    """The splits, "validation" held out of "train" by the text in `column` if it is missing."""
    if "validation" in splits:
        return splits
    train = splits["train"]
    held_out = hold_out(train[column], fraction)
    parts = {
        name: {
            key: [v for v, out in zip(values, held_out, strict=True) if out is part] for key, values in train.items()
        }
        for name, part in (("train", False), ("validation", True))
    }
    return {**splits, **parts}


def check_fraction(owner: str, fraction: float) -> None:
    if not 0 < fraction < 1:
        raise ValueError(
            f"{owner}: validation_fraction={fraction} is no share; set data.validation_fraction between 0 and 1, "
            "or name data.validation_files"
        )
