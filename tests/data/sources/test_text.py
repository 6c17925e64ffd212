from pathlib import Path

import pytest

from tests.data.sources.reading import rows_of, splits_of
from triform.data.prepare import prepare
from triform.data.sources.text import TextFiles
from triform.data.tokenizers import Char


def test_each_file_is_a_document_and_the_last_part_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0123456789")
    (tmp_path / "b.txt").write_text("abcdefghij")
    source = TextFiles(str(tmp_path / "*.txt"), None, None, 0.25, "utf-8", None)
    assert splits_of(source, tmp_path) == {"train": ["0123456789", "abcde"], "validation": ["fghij"]}


def test_the_last_part_is_counted_in_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("aé€😀" * 100_000, encoding="utf-8")  # more than one block of 10 bytes each
    source = TextFiles(str(tmp_path / "a.txt"), None, None, 0.625, "utf-8", None)
    train, validation = splits_of(source, tmp_path).values()
    assert (len(train[0]), len(validation[0])) == (150_000, 250_000)
    assert train[0] + validation[0] == "aé€😀" * 100_000


def test_own_files_for_each_split(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).write_text(name)
    source = TextFiles(str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "c"), 0.1, "utf-8", None)
    assert splits_of(source, tmp_path) == {"train": ["a"], "validation": ["b"], "test": ["c"]}


def test_fingerprint_follows_content_and_settings_but_not_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("same")
    (tmp_path / "b.txt").write_text("same")
    (tmp_path / "c.txt").write_text("else")
    prints = [
        TextFiles(str(tmp_path / name), None, None, 0.1, "utf-8", None).fingerprint()
        for name in ("a.txt", "b.txt", "c.txt")
    ]
    assert prints[0] == prints[1] != prints[2]
    assert TextFiles(str(tmp_path / "a.txt"), None, None, 0.2, "utf-8", None).fingerprint() != prints[0]


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_refuses_a_share_that_is_none(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"validation_fraction=.* set data\.validation_fraction between 0 and 1"):
        TextFiles("x", None, None, fraction, "utf-8", None)


def test_tinyshakespeare(shared: Path, tmp_path: Path) -> None:
    source = TextFiles(str(shared / "tinyshakespeare" / "*.txt"), None, None, 0.1, "utf-8", None)
    prepared = prepare(source, Char(), tmp_path, progress=False)
    assert prepared.tokenizer.vocab_size == 7 + 65
    assert {name: split.n_bytes for name, split in prepared.splits.items()} == {
        "train": 1003854,  # as in other people's split at 90 %
        "validation": 111540,
    }


def test_line_ends_stay_as_they_are(tmp_path: Path) -> None:
    data = "\ufeffone\r\ntwo\rthree\u2028\x85\x0b\x0c\n\n".encode()
    (tmp_path / "a.txt").write_bytes(data)
    train, validation = splits_of(TextFiles(str(tmp_path / "a.txt"), None, None, 0.3, "utf-8", None), tmp_path).values()
    assert (train[0] + validation[0]).encode() == data[3:]


def test_refuses_a_blank_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n \n\t\n")
    with pytest.raises(ValueError, match=r"a\.txt holds nothing but blanks; name a file that has text"):
        rows_of(TextFiles(str(tmp_path / "a.txt"), None, None, 0.3, "utf-8", None))


def test_rows_of_tables_are_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one\\n", "n": 1}\n{"text": " ", "n": 1}\n{"text": "two", "n": 2}\n')
    (tmp_path / "b.csv").write_text('n,text\n1,"three, four"\n')
    (tmp_path / "c.txt").write_text("five\nsix\n")
    source = TextFiles(str(tmp_path), None, None, 0.3, "utf-8", None)
    assert [row["text"] for row in rows_of(source)["train"]] == ["one\n", "two", "three, four", "five\nsix\n"]


def test_the_column_of_a_text_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("n,sentence\n1,three\n")
    with pytest.raises(ValueError, match=r"data\.text_column=text is no column of .*b\.csv, which has n, sentence"):
        TextFiles(str(tmp_path / "b.csv"), None, None, 0.3, "utf-8", None).check()
    source = TextFiles(str(tmp_path / "b.csv"), None, None, 0.3, "utf-8", "sentence")
    assert rows_of(source)["train"] == [{"text": "three"}]
