from pathlib import Path

import pytest

from tests.data.sources.reading import rows_of, splits_of
from triform.data.sources.pairs import PairFiles


def parallel(tmp_path: Path, source: str, target: str) -> PairFiles:
    (tmp_path / "a.en").write_text(source, encoding="utf-8")
    (tmp_path / "a.de").write_text(target, encoding="utf-8")
    return PairFiles([str(tmp_path / "a.en"), str(tmp_path / "a.de")], None, None, 0.2, "utf-8", None, None)


def test_parallel_files_in_the_order_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = parallel(tmp_path, "one\ntwo\x0c\n\nfour\n \t\nsix\nseven\n", "eins\nzwei\n\nvier\nfünf\n\nsieben\n")
    splits = splits_of(source, tmp_path)
    pairs = {pair for split in splits.values() for pair in split}
    assert pairs == {("one", "eins"), ("two\x0c", "zwei"), ("four", "vier"), ("seven", "sieben")}
    assert len(splits["validation"]) == 1
    assert [record.message for record in caplog.records] == [
        f"3 of 7 rows have no text and are left out; the first is {tmp_path}/a.en, line 3"
    ]


def test_tables_after_each_other(tmp_path: Path) -> None:
    (tmp_path / "1.tsv").write_text("a\tA\nb\tB\n")
    (tmp_path / "2.jsonl").write_text('{"source": "c", "target": "C"}\n')
    source = PairFiles([str(tmp_path / "1.tsv"), str(tmp_path / "2.jsonl")], None, None, 0.3, "utf-8", None, None)
    assert [(row["source"], row["target"]) for row in rows_of(source)["train"]] == [("a", "A"), ("b", "B"), ("c", "C")]


def test_a_list_of_two_tables_is_not_parallel(tmp_path: Path) -> None:
    (tmp_path / "1.tsv").write_text("a\tA\n")
    (tmp_path / "2.tsv").write_text("b\tB\nc\tC\n")
    source = PairFiles(str(tmp_path / "*.tsv"), None, None, 0.3, "utf-8", 0, 1)
    assert len(rows_of(source)["train"]) == 3


@pytest.mark.parametrize(("source", "target", "n"), [("one\ntwo\n", "eins\n", (2, 1)), ("a\n", "b\nc\n\n", (1, 3))])
def test_refuses_files_of_different_length(tmp_path: Path, source: str, target: str, n: tuple[int, int]) -> None:
    message = rf"a\.en has {n[0]} lines and .*a\.de {n[1]}; give files whose lines correspond"
    with pytest.raises(ValueError, match=message):
        rows_of(parallel(tmp_path, source, target))


def test_refuses_one_file_that_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\n")
    source = PairFiles(str(tmp_path / "a.en"), None, None, 0.1, "utf-8", None, None)
    with pytest.raises(ValueError, match=r"data\.train_files names 1 file.*data\.train_files=\[a\.en,a\.de\]"):
        source.check()


def test_multi30k(shared: Path) -> None:
    folder = shared / "multi30k"
    files = {name: sorted(map(str, folder.rglob(f"{name}*.gz")), reverse=True) for name in ("train", "val")}
    source = PairFiles(files["train"], files["val"], None, 0.1, "utf-8", None, None)
    rows = rows_of(source)
    assert {name: len(split) for name, split in rows.items()} == {"train": 29000, "validation": 1014}
    assert rows["train"][0]["source"] == "Two young, White males are outside near many bushes."
    assert rows["train"][0]["target"].startswith("Zwei junge weiße Männer")


def test_cmudict(shared: Path) -> None:
    folder = shared / "cmudict"
    source = PairFiles(
        str(folder / "train.tsv.gz"), str(folder / "valid.tsv"), str(folder / "test.tsv"), 0.1, "utf-8", 0, 1
    )
    assert {name: len(split) for name, split in rows_of(source).items()} == {
        "train": 114786,
        "validation": 3000,
        "test": 5000,
    }
