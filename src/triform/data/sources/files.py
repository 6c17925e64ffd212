"""Reading the user's own files: names, globs, folders, compression, encodings, and what can be wrong with each.

Every fault is a ValueError of one line that names the file, the line where there is one, and the key that named it.
All is read in pieces: no file need fit into memory.
"""

import codecs
import difflib
import glob
import gzip
import hashlib
import io
import json
import logging
import os
import re
import secrets
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from triform.data.sources.base import digest

log = logging.getLogger(__name__)

Files = str | Sequence[str] | None

READ = 1 << 18  # bytes read at a time

BYTE_ORDER_MARKS = (  # the longest first: that of UTF-32 begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

NO_TEXT = (
    (rb"\x1f\x8b", "compressed by gzip twice", "unpack it once with gunzip"),
    (rb"\x28\xb5\x2f\xfd", "compressed by zstd", "unpack it with zstd -d"),
    (rb"BZh[1-9]1AY&SY", "compressed by bzip2", "unpack it with bunzip2"),
    (rb"\xfd7zXZ\0", "compressed by xz", "unpack it with xz -d"),
    (rb"\x04\x22\x4d\x18", "compressed by lz4", "unpack it with lz4 -d"),
    (rb"PK\x03\x04", "a zip archive", "unpack it, and name the files that were in it"),
    (rb"%PDF-", "a PDF", "take its text out, for example with pdftotext"),
    (rb"PAR1", "Parquet", "end its name in .parquet"),
    (rb"ARROW1", "Arrow", "end its name in .arrow"),
)
"""How files begin that hold no text, what they are, and what helps."""

SAME_FORM = {".json": ".jsonl", ".ndjson": ".jsonl", ".tab": ".tsv", ".feather": ".arrow"}
"""Endings of files that are read as those of another one."""


def check_encoding(encoding: str) -> None:
    """Refuses one that Python does not know."""
    try:
        "".encode(encoding)
    except (LookupError, UnicodeError):
        raise ValueError(
            f"encoding={encoding} is none that Python knows; set data.encoding to one, such as utf-8, latin-1 or utf-16"
        ) from None


def own_code() -> str:
    """How files are read."""
    return digest(code.read_bytes() for code in sorted(Path(__file__).parent.glob("*.py")))


def resolve(files: Files, key: str, endings: tuple[str, ...]) -> list[Path]:
    """The files that a name, a list of names, a glob or a folder stands for; of the last two in order of name.

    Args:
        key: that set `files`, such as "data.train_files".
        endings: of the files in a folder that are meant.
    """
    if not files:
        raise ValueError(f"{key} is not set; name your files, for example {key}=my.txt")
    return [
        path for name in ([files] if isinstance(files, str) else files) for path in _expand(str(name), key, endings)
    ]


def _expand(name: str, key: str, endings: tuple[str, ...]) -> list[Path]:
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            return _files_of(path, name, key, endings)
        if path.is_file():
            if path.stat().st_size == 0:
                raise ValueError(f"{key}={name} is empty; name a file that has text")
            return [path]
        if path.exists():
            raise ValueError(f"{key}={name} is a pipe or a device, which can be read once at most; name a file")
        if path.is_symlink():
            raise ValueError(f"{key}={name} is a link to {os.readlink(path)}, which does not exist; name a file")
    except OSError as error:
        raise ValueError(f"{key}={name} cannot be read ({error.strerror}); check who may read it") from None
    matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
    if not matches:
        raise ValueError(f"{key}={name} does not exist; {_nearest_file(path)}")
    files: dict[str, Path] = {}  # links that lead back to a folder above give a file many names: its first is taken
    for match in filter(Path.is_file, matches):
        files.setdefault(os.path.realpath(match), match)
    if not files:
        raise ValueError(f"{key}={name} matches folders only, {matches[0]} first; name files, as in '{name}/*'")
    return [file for match in files.values() for file in _expand(str(match), key, endings)]


def _files_of(folder: Path, name: str, key: str, endings: tuple[str, ...]) -> list[Path]:
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    found = [path for path in files if form(path) in endings]
    if not found:
        other = f", only others, such as {files[0].name}" if files else ""
        raise ValueError(
            f"{key}={name} is a folder without a file that ends in {', '.join(endings)}{other}; name files in it, for "
            f"example '{key}={name.rstrip('/')}/*'"
        )
    say_once(f"{key}={name} is a folder: {len(found)} of its {len(files)} files are read, by name")
    return [file for path in found for file in _expand(str(path), key, endings)]


@cache
def say_once(message: str) -> None:
    log.warning(message)


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"nor does its folder; relative names start from {Path.cwd()}"
    near = difflib.get_close_matches(path.name, [other.name for other in path.parent.iterdir()], n=1, cutoff=0.5)
    return f"did you mean {path.parent / near[0]}?" if near else f"see what is in {path.parent.absolute()}"


def form(path: Path) -> str:
    """The ending that says how a file is read, ".gz" left out: ".tsv" of x.tsv.gz."""
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    return SAME_FORM.get(ending, ending)


@contextmanager
def open_file(path: Path, key: str) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed where it begins as gzip does, whatever its name.

    Raises:
        ValueError: it cannot be read, or the gzip data is broken or cut short.
    """
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not compressed:
                yield file
                return
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast(BinaryIO, unpacked)
    except (OSError, EOFError, zlib.error) as error:
        reason = (
            "its gzip data is cut short" if isinstance(error, EOFError) else getattr(error, "strerror", None) or error
        )
        raise ValueError(f"{key}: {path} cannot be read ({reason}); check the file, or copy it again") from None


def is_plain_utf8(path: Path, key: str, encoding: str) -> bool:
    """Whether a file is UTF-8 that is not compressed, as far as its first bytes and the user say."""
    with open_file(path, key) as file:
        if isinstance(file, gzip.GzipFile):
            return False
        first = file.read(4)
    found = next((name for mark, name in BYTE_ORDER_MARKS if first.startswith(mark)), encoding)
    return codecs.lookup(found).name in ("utf-8", "utf-8-sig")


def read_pieces(path: Path, key: str, encoding: str) -> Iterator[str]:
    """The text of a file in pieces, a byte-order mark left out, line ends as they are.

    Raises:
        ValueError: it cannot be read, is empty, holds no text (see `NO_TEXT`) or a NUL character, or is not in the
            encoding.
    """
    line, is_empty, half = 1, True, False
    with open_file(path, key) as file:
        first = file.read(READ)
        _check_text(path, key, first)
        encoding = next((name for mark, name in BYTE_ORDER_MARKS if first.startswith(mark)), encoding)
        decoder, data = codecs.getincrementaldecoder(encoding)(), first
        while True:
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                before = error.object[: error.start].decode(encoding, errors="ignore")
                raise ValueError(
                    f"{key}: {path}, line {line + count_lines(before)} is not {_written(encoding)} "
                    f"(byte {error.object[error.start]:#04x}); set data.encoding to what it is, such as latin-1, "
                    "or convert the file"
                ) from None
            if "\0" in text:
                place = line + count_lines(text[: text.index("\0")])
                raise ValueError(
                    f"{key}: {path}, line {place} holds a NUL character; if it is text in another encoding, such as "
                    "utf-16-le, set data.encoding to it, else take NUL out"
                )
            if text:
                is_empty = False
                yield text
                line += count_lines(text) - (half and text[0] == "\n")  # of a CRLF that was read in two
                half = text[-1] == "\r"
            if not data:
                break
            data = file.read(READ)
    if is_empty:
        raise ValueError(f"{key}={path} is empty; name a file that has text")


def _check_text(path: Path, key: str, first: bytes) -> None:
    for begins, what, remedy in NO_TEXT:
        if re.match(begins, first):
            raise ValueError(f"{key}: {path} is {what}; {remedy}")


def _written(encoding: str) -> str:
    return {"utf-8-sig": "UTF-8"}.get(encoding, encoding.upper())


def count_lines(text: str) -> int:
    """Line ends in a text: LF, CRLF or CR."""
    return text.count("\n") + (text.count("\r") - text.count("\r\n") if "\r" in text else 0)


def read_text(path: Path, key: str, encoding: str) -> str:
    """The whole text of `read_pieces`."""
    return "".join(read_pieces(path, key, encoding))


def read_lines(path: Path, key: str, encoding: str, keep_ends: bool = False) -> Iterator[str]:
    """What stands between line ends: LF, CRLF or CR. Unlike `str.splitlines`, form feed, U+0085 or U+2028 ends none."""
    rest = ""
    for piece in read_pieces(path, key, encoding):
        text = rest + piece if rest else piece
        held = "\r" if text.endswith("\r") else ""  # which may be the first half of CRLF
        found = io.StringIO(text[: len(text) - len(held)], newline="" if keep_ends else None).readlines()
        rest = held
        if found and not found[-1].endswith(("\n", "\r")):
            rest = found.pop() + held
        yield from found if keep_ends else (line[:-1] for line in found)
    if rest:
        yield rest if keep_ends else rest.removesuffix("\r")


HASHES = "hashes.json"
SAMPLES, SAMPLED = 5, 1 << 12  # places of a file, and bytes at each, that `sampled_hash` reads
SAMPLED_MARK = "samples "
RACY = 2.0  # seconds: a file changed so shortly before may change again within the clock's resolution


class _Known:
    """path -> [size, time of change, inode, hash]: of this process, and those kept in a file of the cache."""

    def __init__(self) -> None:
        self.hashes: dict[str, list[Any]] = {}
        self.used: dict[str, list[Any]] = {}


_known = _Known()


@contextmanager
def hashes_kept_in(folder: Path) -> Iterator[None]:
    """Let `content_hash` remember in `folder`, where there is one, what it finds, for the next start.

    The file is written aside and renamed. Of two processes at once one may lose an entry, and hashes once more.
    """
    file, before = folder / HASHES, _known.used
    kept, _known.used = _read_hashes(file), {}
    _known.hashes = kept | _known.hashes
    try:
        yield
    finally:
        used, _known.used = _known.used, before
    if not folder.is_dir() or all(kept.get(name) == value for name, value in used.items()):
        return
    temporary = file.with_name(f"{file.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_text(json.dumps(_read_hashes(file) | used, indent=0), encoding="utf-8")
        os.replace(temporary, file)
    except OSError:  # a cache that others own: no harm
        temporary.unlink(missing_ok=True)


def content_hash(path: Path) -> str:
    """Of a file's bytes, which are read again when its size or the time of its last change is another."""
    state, name = path.stat(), str(path.absolute())
    now = [state.st_size, state.st_mtime_ns, state.st_ino]
    if _known.hashes.get(name, [])[:3] != now:
        try:
            with path.open("rb") as file:
                _known.hashes[name] = [*now, hashlib.file_digest(file, "blake2b").hexdigest()]
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror}); check the file") from None
    if time.time() - state.st_mtime > RACY:
        _known.used[name] = _known.hashes[name]
    return str(_known.hashes[name][3])


def sampled_hash(path: Path) -> str:
    """Of a file's size and of a few places in it: of files too large to be read for a hash."""
    size = path.stat().st_size
    state = hashlib.blake2b(str(size).encode(), digest_size=16)
    try:
        with path.open("rb") as file:
            for i in range(SAMPLES):
                file.seek(max(size - SAMPLED, 0) * i // (SAMPLES - 1))
                state.update(file.read(SAMPLED))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); check the file") from None
    return f"{SAMPLED_MARK}{state.hexdigest()}"


def has_content(path: Path, known: str) -> bool:
    """Whether a file has the hash that it had, of either kind."""
    return (sampled_hash if known.startswith(SAMPLED_MARK) else content_hash)(path) == known


def _read_hashes(file: Path) -> dict[str, list[Any]]:
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and all(isinstance(value, list) for value in found.values()) else {}


def check_fraction(owner: str, fraction: float) -> None:
    if not 0 < fraction < 1:
        raise ValueError(
            f"{owner}: validation_fraction={fraction} is no share; set data.validation_fraction between 0 and 1, "
            "or name data.validation_files"
        )
