"""Windows of text from files: everything once an epoch, from any position on, whatever stands where a block ends."""

import gzip
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest

from triform.data.corpus import BEGINNING, Blocks, Corpus, Parts, PlainBlocks, Position, Window
from triform.data.sources.streamed import Streamed
from triform.data.sources.text import TextFiles

LINES = [f"{'word ' * (i % 13)}{i}: ä€𝄞" for i in range(90)]
ENDLESS = "x" * 400 + "€" * 300  # neither a blank nor a line end


def source(files: str | Sequence[str], validation: str | None = None, encoding: str = "utf-8") -> TextFiles:
    return TextFiles(files, validation, None, 0.1, encoding, None)


def epoch(corpus: Corpus, number: int = 0) -> list[Window]:
    """All windows of an epoch."""
    found = []
    for window in corpus.windows(Position(number, 0, 0)):
        if window.position.epoch != number:
            return found
        found.append(window)
    raise AssertionError


def texts(windows: Sequence[Window]) -> list[str]:
    return [passage.text for window in windows for passage in window.read()]


def plain(path: Path, text: str) -> PlainBlocks:
    path.write_text(text, encoding="utf-8")
    return PlainBlocks(path, "data.train_files", lambda: iter(()))


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "a.txt").write_text("\n".join(LINES), encoding="utf-8")
    (tmp_path / "b.txt").write_text(ENDLESS, encoding="utf-8")
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES), encoding="utf-8")
    return [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.jsonl")]


@pytest.mark.parametrize("block", [64, 65, 71, 200, 10**5])
@pytest.mark.parametrize(
    "text", ["\n".join(LINES), ENDLESS, "one\r\ntwo\r\n" * 30, "a b", "\ufeffmarked at the beginning"]
)
def test_blocks_hold_everything_once(tmp_path: Path, text: str, block: int) -> None:
    file = plain(tmp_path / "x.txt", text)
    found = [passage for start in range(0, file.size, block) for passage in file.between(start, start + block)]
    joined = "".join(passage.text for passage in found)
    assert joined.split() == text.removeprefix("\ufeff").split()  # blocks of nothing but blanks are left out
    assert [passage.is_end for passage in found] == [False] * (len(found) - 1) + [True]
    if text.startswith("one"):  # short lines
        assert all(passage.text.endswith("\n") for passage in found)


@pytest.mark.parametrize("window", [64, 1000, 10**6])
def test_an_epoch_reads_everything_once_in_an_order_of_its_own(files: list[str], window: int) -> None:
    text = Streamed(source(files, files[0]), 1).corpus(window, seed=5)
    assert isinstance(text, Blocks)
    first, second = texts(epoch(text)), texts(epoch(text, 1))
    everything = "".join(["\n".join(LINES), ENDLESS, *LINES])
    for found in (first, second):
        assert sorted("".join(found).replace("\n", "")) == sorted(everything.replace("\n", ""))
        assert set(LINES) & set(found) == set(LINES)  # the lines of the table, whole
    assert first != second
    assert first == texts(epoch(Streamed(source(files, files[0]), 1).corpus(window, seed=5)))
    assert first != texts(epoch(Streamed(source(files, files[0]), 1).corpus(window, seed=6))) or window == 10**6
    assert all(sum(len(p.text.encode()) for p in w.read()) <= 2 * max(window, 64) + 2000 for w in epoch(text))


def packed(tmp_path: Path) -> list[str]:
    with gzip.open(tmp_path / "a.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(LINES))
    with gzip.open(tmp_path / "c.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": line}) + "\n" for line in LINES)
    (tmp_path / "d.txt").write_text("plain, and last\n", encoding="utf-8")
    return [str(tmp_path / name) for name in ("a.txt.gz", "c.jsonl.gz", "d.txt")]


@pytest.mark.parametrize("window", [64, 1000, 10**6])
def test_files_that_cannot_be_entered_are_read_one_after_the_other(tmp_path: Path, window: int) -> None:
    text = Streamed(source(packed(tmp_path), packed(tmp_path)[2]), 1).corpus(window, seed=5)
    assert isinstance(text, Parts)
    windows = epoch(text)
    assert [window.position for window in windows] == sorted(window.position for window in windows)
    found = texts(windows)
    assert sorted("".join(found)) == sorted("".join(["\n".join(LINES), *LINES, "plain, and last\n"]))
    assert set(LINES) <= set(found)
    ends = [passage.is_end for window in windows for passage in window.read()]
    assert sum(ends) == len(LINES) + 2
    assert {window.position.part for window in windows} == {0, 1, 2}


@pytest.mark.parametrize("kind", ["blocks", "parts"])
def test_reading_goes_on_from_any_window(tmp_path: Path, files: list[str], kind: str) -> None:
    chosen = files if kind == "blocks" else packed(tmp_path)
    text = Streamed(source(chosen, files[0]), 1).corpus(300, seed=3)
    whole = list(islice(text.windows(BEGINNING), 25))
    for i in range(24):
        again = next(text.windows(whole[i].after))
        assert again.position == whole[i + 1].position
        assert list(again.read()) == list(whole[i + 1].read())


@pytest.mark.parametrize("kind", ["blocks", "parts"])
def test_text_held_out_is_at_the_beginning_and_in_no_window(tmp_path: Path, files: list[str], kind: str) -> None:
    chosen = files if kind == "blocks" else packed(tmp_path)
    text = Streamed(source(chosen), 0.0005 if kind == "blocks" else 1e-4).corpus(1000, seed=3)
    held = [row["text"] for row in text.held_out()]
    assert "".join(held).startswith(LINES[0])
    rest = "".join(texts(epoch(text)))
    lines = [line for line in LINES if line and line in "".join(held).split("\n")]
    assert lines
    if kind == "blocks":
        assert "\n".join(LINES).startswith("".join(held))
        assert len("".join(held).encode()) == pytest.approx(500, abs=100)
    everything = "".join(["\n".join(LINES), ENDLESS, *LINES] if kind == "blocks" else ["\n".join(LINES), *LINES])
    rest = rest.removesuffix("plain, and last\n").replace("plain, and last\n", "")
    assert sorted("".join(held).replace("\n", "") + rest.replace("\n", "")) == sorted(everything.replace("\n", ""))


def test_of_a_file_that_cannot_be_entered_whole_lines_are_held_out(tmp_path: Path) -> None:
    text = Streamed(source(packed(tmp_path)[:1]), 1e-4).corpus(1000, seed=3)
    held = [row["text"] for row in text.held_out()]
    rest = texts(epoch(text))
    assert "".join(held) + "".join(rest) == gzip.decompress(Path(packed(tmp_path)[0]).read_bytes()).decode()
    assert held[-1][-1] == "\n"
    assert 100 <= len("".join(held).encode()) < 200


def test_nothing_but_held_out_text_is_refused(tmp_path: Path) -> None:
    text = Streamed(source(packed(tmp_path)[:1]), 1).corpus(1000, seed=3)
    with pytest.raises(ValueError, match=r"nothing is left to learn from beside the 1 MB .*data\.validation_mb"):
        next(text.windows(BEGINNING))
    with pytest.raises(ValueError, match=r"nothing is left to learn from beside the 1 MB .*data\.validation_mb"):
        list(Streamed(source(packed(tmp_path)[:1]), 1).load()["train"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"fine\n" * 9 + b"na\xefve\n", r"x\.txt, byte 47 is not UTF-8 \(0xef\); set data\.encoding"),
        (b"fine\n" * 9 + b"na\0ve\n", r"x\.txt, byte 47 is a NUL character"),
    ],
)
def test_what_is_no_text_is_named_by_its_byte(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.txt").write_bytes(content)
    text = Streamed(source(str(tmp_path / "x.txt"), str(tmp_path / "x.txt")), 1).corpus(640, seed=3)
    with pytest.raises(ValueError, match=message):
        texts(epoch(text))


def test_a_line_that_is_no_json_is_named_by_its_byte(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n' * 5 + "{\n")
    text = Streamed(source(str(tmp_path / "x.jsonl"), str(tmp_path / "x.jsonl")), 1).corpus(640, seed=3)
    with pytest.raises(ValueError, match=r"x\.jsonl, byte 70 is not JSON"):
        texts(epoch(text))


def test_the_sample_is_from_many_places(files: list[str]) -> None:
    def found(n: int) -> Iterator[str]:
        return (row["text"] for row in Streamed(source(files, files[0]), 1).corpus(64 * 20, 3).sample(n))

    assert len("".join(found(10**6)).encode()) > 4000
    few = "".join(found(1000))
    assert 500 < len(few.encode()) < 2000
    assert LINES[0] in few
    assert LINES[-3] in few or LINES[-2] in few or LINES[-1] in few


def test_files_are_known_by_size_and_samples(files: list[str]) -> None:
    before = Streamed(source(files), 1).fingerprint()
    assert Streamed(source(files), 1).fingerprint() == before
    assert Streamed(source(files), 2).fingerprint() != before
    path = Path(files[0])
    path.write_text(path.read_text(encoding="utf-8").replace("word", "Word", 1), encoding="utf-8")
    assert Streamed(source(files), 1).fingerprint() != before
