from pathlib import Path

import pytest

from triform.data.sources.pairs import PairFiles


def parallel(tmp_path: Path, source: str, target: str) -> PairFiles:
    (tmp_path / "a.en").write_text(source, encoding="utf-8")
    (tmp_path / "a.de").write_text(target, encoding="utf-8")
    return PairFiles([str(tmp_path / "a.en"), str(tmp_path / "a.de")], None, None, 0.2, None, None)


def test_parallel_files_in_the_order_given(tmp_path: Path) -> None:
    source = parallel(tmp_path, "one\ntwo\x0c\n\nfour\nfive\n", "eins\nzwei\n\nvier\nfünf\n")
    source.check()
    rows = source.load()
    pairs = {(row["source"], row["target"]) for split in rows.values() for row in split}
    assert pairs == {("one", "eins"), ("two\x0c", "zwei"), ("", ""), ("four", "vier"), ("five", "fünf")}
    assert len(rows["validation"]) == 1


def test_tables_after_each_other(tmp_path: Path) -> None:
    (tmp_path / "1.tsv").write_text("a\tA\nb\tB\n")
    (tmp_path / "2.jsonl").write_text('{"source": "c", "target": "C"}\n')
    source = PairFiles([str(tmp_path / "1.tsv"), str(tmp_path / "2.jsonl")], None, None, 0.3, None, None)
    source.check()
    pairs = [(row["source"], row["target"]) for split in source.load().values() for row in split]
    assert sorted(pairs) == [("a", "A"), ("b", "B"), ("c", "C")]


def test_a_list_of_two_tables_is_not_parallel(tmp_path: Path) -> None:
    (tmp_path / "1.tsv").write_text("a\tA\n")
    (tmp_path / "2.tsv").write_text("b\tB\nc\tC\n")
    source = PairFiles(str(tmp_path / "*.tsv"), None, None, 0.3, 0, 1)
    assert sum(len(split) for split in source.load().values()) == 3


def test_refuses_files_of_different_length(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.en has 2 lines and .*a\.de 1; give files whose lines correspond"):
        parallel(tmp_path, "one\ntwo\n", "eins\n").load()


def test_refuses_one_file_that_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_text("one\n")
    source = PairFiles(str(tmp_path / "a.en"), None, None, 0.1, None, None)
    with pytest.raises(ValueError, match=r"data\.train_files names 1 file.*data\.train_files=\[a\.en,a\.de\]"):
        source.check()


def test_multi30k(shared: Path) -> None:
    folder = shared / "multi30k"
    files = {name: sorted(map(str, folder.rglob(f"{name}*.gz")), reverse=True) for name in ("train", "val")}
    source = PairFiles(files["train"], files["val"], None, 0.1, None, None)
    source.check()
    rows = source.load()
    assert {name: len(split) for name, split in rows.items()} == {"train": 29000, "validation": 1014}
    assert rows["train"][0]["source"] == "Two young, White males are outside near many bushes."
    assert rows["train"][0]["target"].startswith("Zwei junge weiße Männer")


def test_cmudict(shared: Path) -> None:
    folder = shared / "cmudict"
    source = PairFiles(str(folder / "train.tsv.gz"), str(folder / "valid.tsv"), str(folder / "test.tsv"), 0.1, 0, 1)
    source.check()
    assert {name: len(split) for name, split in source.load().items()} == {
        "train": 114786,
        "validation": 3000,
        "test": 5000,
    }
