"""Files as they are found in the world: each is read rightly, or refused in one line that names it."""

import bz2
import gzip
import lzma
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from triform.data.sources import files
from triform.data.sources.files import content_hash, hashes_kept_in, read_lines, read_text, resolve
from triform.data.sources.text import TextFiles

KEY = "data.train_files"
ENDINGS = (".txt", ".tsv")


def write(tmp_path: Path, data: str | bytes, name: str = "x.txt") -> Path:
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def test_resolves_names_lists_and_globs_in_order(tmp_path: Path) -> None:
    a, b = write(tmp_path, "a", "a.txt"), write(tmp_path, "b", "b.txt")
    assert resolve(str(a), KEY, ENDINGS) == [a]
    assert resolve([str(b), str(a)], KEY, ENDINGS) == [b, a]
    assert resolve(str(tmp_path / "*.txt"), KEY, ENDINGS) == [a, b]


def test_a_folder_is_its_files_of_a_known_ending(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    b, a = write(tmp_path, "b", "b.TSV"), write(tmp_path, gzip.compress(b"a", mtime=0), "a.txt.gz")
    write(tmp_path, "c", "c.png")
    write(tmp_path, "d", ".d.txt")
    assert resolve(str(tmp_path), KEY, ENDINGS) == resolve(str(tmp_path), KEY, ENDINGS) == [a, b]
    said = [record.message for record in caplog.records]
    assert said == [f"{KEY}={tmp_path} is a folder: 2 of its 3 files are read, by name"]


def test_links_that_lead_back_give_no_file_twice(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    a, b = write(tmp_path, "a", "a.txt"), write(tmp_path, "b", "folder/b.txt")
    (tmp_path / "folder/back").symlink_to("..")
    (tmp_path / "folder/c.txt").symlink_to("../a.txt")
    assert resolve(str(tmp_path / "**/*.txt"), KEY, ENDINGS) == [a, b]
    (tmp_path / "dead.txt").symlink_to("gone.txt")
    (tmp_path / "self.txt").symlink_to("self.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    for name, message in (
        ("dead.txt", r"is a link to gone\.txt, which does not exist; name a file$"),
        ("self.txt", r"self\.txt (is a link to self\.txt, which does not exist|cannot be read \(Too many levels)"),
        ("pipe.txt", r"is a pipe or a device, which can be read once at most; name a file$"),
    ):
        with pytest.raises(ValueError, match=message):
            resolve(str(tmp_path / name), KEY, ENDINGS)


def test_what_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that others have closed; asked for by a call of its own, as who runs this may read everything."""

    def closed(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", closed)
    with pytest.raises(ValueError, match=r"secret/x\.txt cannot be read \(Permission denied\); check who may read it"):
        resolve(str(tmp_path / "secret/x.txt"), KEY, ENDINGS)


def test_a_name_with_brackets_is_a_name_first(tmp_path: Path) -> None:
    path = write(tmp_path, "a", "a[1].txt")
    assert resolve(str(path), KEY, ENDINGS) == [path]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, r"data\.train_files is not set; name your files"),
        ("corpse.txt", r"corpse\.txt does not exist; did you mean .*corpus\.txt\?"),
        ("none/corpus.txt", r"none/corpus\.txt does not exist; nor does its folder"),
        ("*.csv", r"\*\.csv does not exist; see what is in"),
        ("fold*", r"fold\* matches folders only, .*folder first; name files"),
        ("empty.txt", r"empty\.txt is empty; name a file that has text"),
        ("folder", r"is a folder without a file that ends in \.txt, \.tsv, only others, such as x\.png; .* '.*/\*'"),
    ],
)
def test_refuses_files(tmp_path: Path, name: str | None, message: str) -> None:
    write(tmp_path, "text", "corpus.txt")
    write(tmp_path, "", "empty.txt")
    (tmp_path / "folder").mkdir()
    write(tmp_path, "x", "folder/x.png")
    with pytest.raises(ValueError, match=message) as caught:
        resolve(name and str(tmp_path / name), KEY, ENDINGS)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data", "encoding", "text"),
    [
        ("x.txt", "\ufeffé\r\n".encode(), "utf-8", "é\r\n"),
        ("x.txt", "\ufeffé\n".encode("utf-16-le"), "utf-8", "é\n"),
        ("x.txt", "\ufeffé\n".encode("utf-16-be"), "latin-1", "é\n"),
        ("x.txt", "\ufeffé\n".encode("utf-32-le"), "utf-8", "é\n"),
        ("x.txt", b"caf\xe9\n", "latin-1", "café\n"),
        ("x.txt", "é\n".encode("utf-16-le"), "utf-16-le", "é\n"),
        ("x.txt.gz", gzip.compress("\ufeffé\r\n".encode(), mtime=0), "utf-8", "é\r\n"),
        ("x.txt", gzip.compress(b"under a plain name", mtime=0), "utf-8", "under a plain name"),
        ("x.txt.gz", b"plain under .gz", "utf-8", "plain under .gz"),
        ("x.txt.gz", gzip.compress(b"one ", mtime=0) + gzip.compress(b"two", mtime=0), "utf-8", "one two"),
        ("x.txt", "a\u2028b\x85c\x0bd\x0ce\n".encode(), "utf-8", "a\u2028b\x85c\x0bd\x0ce\n"),
    ],
)
def test_reads_rightly(tmp_path: Path, name: str, data: bytes, encoding: str, text: str) -> None:
    assert read_text(write(tmp_path, data, name), KEY, encoding) == text


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that pieces end within lines, characters and CRLF."""
    monkeypatch.setattr(files, "READ", 3)
    return


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.txt", b"one\ntwo\nthr\xe9e\n", r"x\.txt, line 3 is not UTF-8 \(byte 0xe9\); set data\.encoding .* latin-1"),
        ("x.txt", b"one\r\ntwo\r\nthr\xe9e\r\n", r"x\.txt, line 3 is not UTF-8"),
        ("x.txt", b"one\rtwo\rthr\xe9e\r", r"x\.txt, line 3 is not UTF-8"),
        ("x.txt", "one\ntwo €".encode()[:-1], r"x\.txt, line 2 is not UTF-8"),
        ("x.txt", "\ufeffone\ntw".encode("utf-16-le") + b"o", r"x\.txt, line 2 is not UTF-16"),
        ("x.txt", b"one\r\ntwo\r\nthr\0e\n", r"x\.txt, line 3 holds a NUL character"),
        ("x.txt", "one".encode("utf-16-le"), r"x\.txt, line 1 holds a NUL .* such as utf-16-le, set data\.encoding"),
        (
            "x.txt.gz",
            gzip.compress(b"whole text" * 99, mtime=0)[:-12],
            r"x\.txt\.gz cannot be read \(its gzip data is cut short",
        ),
        (
            "x.txt.gz",
            gzip.compress(b"whole text", mtime=0)[:-8] + b"12345678",
            r"x\.txt\.gz cannot be read \(CRC check failed",
        ),
        ("x.txt.gz", gzip.compress(b"text", mtime=0) + b"more", r"x\.txt\.gz cannot be read \(Not a gzipped file"),
        ("x.txt.gz", gzip.compress(b"", mtime=0), r"x\.txt\.gz is empty"),
        ("x.txt", b"\xef\xbb\xbf", r"x\.txt is empty"),
        ("x.txt", "\ud800".encode("utf-8", "surrogatepass"), r"x\.txt, line 1 is not UTF-8 \(byte 0xed\)"),
    ],
)
def test_refuses_content(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_text(write(tmp_path, data, name), KEY, "utf-8")
    assert "\n" not in str(caught.value)


ZSTD = bytes.fromhex("28b52ffd0468690000") + b"text"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ZSTD, r"x\.txt is compressed by zstd; unpack it with zstd -d"),
        (bz2.compress(b"text"), r"is compressed by bzip2; unpack it with bunzip2"),
        (lzma.compress(b"text"), r"is compressed by xz; unpack it with xz -d"),
        (
            gzip.compress(gzip.compress(b"text", mtime=0), mtime=0),
            r"is compressed by gzip twice; unpack it once with gunzip",
        ),
        (b"PK\x03\x04\x14", r"is a zip archive; unpack it, and name the files that were in it"),
        (b"%PDF-1.7\n", r"is a PDF; take its text out"),
        (b"PAR1text", r"is Parquet; end its name in \.parquet"),
        (b"ARROW1\0\0", r"is Arrow; end its name in \.arrow"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_refuses_what_is_no_text(tmp_path: Path, data: bytes, message: str, encoding: str) -> None:
    """Whatever the encoding: latin-1 makes characters of any byte."""
    with pytest.raises(ValueError, match=message):
        read_text(write(tmp_path, data), KEY, encoding)


def test_text_that_begins_like_it_is_read(tmp_path: Path) -> None:
    assert read_text(write(tmp_path, "BZh PK %PDF"), KEY, "utf-8") == "BZh PK %PDF"


def test_a_file_that_is_there_twice_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A copy under another name, too; once."""
    train, other, copy = (write(tmp_path, text, f"{text}{i}.txt") for i, text in enumerate(("a", "b", "a")))
    source = TextFiles([str(train), str(other)], str(copy), None, 0.1, "utf-8", None)
    source.fingerprint()
    source.fingerprint()
    said = f"data.validation_files: {copy} holds the same as {train} of data.train_files"
    assert caplog.messages == [f"{said}, so figures of it are of text that is known from there"]
    caplog.clear()
    TextFiles([str(train)] * 3, str(other), None, 0.1, "utf-8", None).fingerprint()
    said = f"data.train_files: {train} holds the same as {train} of data.train_files"
    assert caplog.messages == [f"{said} (2 such files)"]


@pytest.mark.parametrize("read", [1, 2, 3, 4, 5, 1000])
def test_lines_end_at_line_feed_and_carriage_return_alone(
    tmp_path: Path, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ", read)
    path = write(tmp_path, "a\x0cb\u2028c\x85\r\n\r\rd\x0b\n\r\ne")
    assert list(read_lines(path, KEY, "utf-8")) == ["a\x0cb\u2028c\x85", "", "", "d\x0b", "", "e"]
    kept = list(read_lines(path, KEY, "utf-8", keep_ends=True))
    assert kept == ["a\x0cb\u2028c\x85\r\n", "\r", "\r", "d\x0b\n", "\r\n", "e"]
    assert list(read_lines(write(tmp_path, "a\n"), KEY, "utf-8")) == ["a"]
    assert list(read_lines(write(tmp_path, "a\r"), KEY, "utf-8")) == ["a"]
    assert list(read_lines(write(tmp_path, "\n"), KEY, "utf-8")) == [""]


def test_a_line_of_two_megabytes_is_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, "x" * 2_000_000 + "\ny\n")
    assert list(map(len, read_lines(path, KEY, "utf-8"))) == [2_000_000, 1]


def test_refuses_an_encoding_that_is_none() -> None:
    for name in ("latin1000", "undefined", "rot13"):
        with pytest.raises(ValueError, match=rf"encoding={name} is none that Python knows; set data\.encoding to one"):
            TextFiles("x", None, None, 0.1, name, None)


class TestContentHash:
    def count(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The files that are hashed from now on, as by a new process."""
        monkeypatch.setattr(files, "_known", files._Known())
        read: list[str] = []
        whole = files.hashlib.file_digest
        monkeypatch.setattr(
            files.hashlib, "file_digest", lambda file, name: (read.append(file.name), whole(file, name))[1]
        )
        return read

    def test_is_kept_for_the_next_start(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write(tmp_path, "some text")
        monkeypatch.setattr(files, "RACY", -1.0)
        with hashes_kept_in(tmp_path):
            first = content_hash(path)
        read = self.count(monkeypatch)
        with hashes_kept_in(tmp_path):
            assert content_hash(path) == first
        assert read == []
        write(tmp_path, "some more text")
        with hashes_kept_in(tmp_path):
            assert content_hash(path) != first
        assert read == [str(path)]

    def test_of_a_file_that_has_just_changed_is_not(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write(tmp_path, "some text")
        with hashes_kept_in(tmp_path):
            content_hash(path)
        read = self.count(monkeypatch)
        with hashes_kept_in(tmp_path):
            content_hash(path)
        assert read == [str(path)]

    @pytest.mark.parametrize("content", ["no JSON", "[]", '{"x": 3}'])
    def test_a_broken_file_of_hashes_is_no_harm(
        self, tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write(tmp_path, "some text")
        write(tmp_path, content, files.HASHES)
        monkeypatch.setattr(files, "RACY", -1.0)
        with hashes_kept_in(tmp_path):
            first = content_hash(path)
        read = self.count(monkeypatch)
        with hashes_kept_in(tmp_path):
            assert content_hash(path) == first
        assert read == []
