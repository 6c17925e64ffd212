from collections import Counter
from pathlib import Path

import pytest

from tests.data.sources.reading import rows_of, splits_of
from triform.data.baselines import label_baselines
from triform.data.prepare import prepare
from triform.data.sources.labelled import LabelledFiles
from triform.data.tokenizers import Byte


def test_rows_and_a_held_out_share(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("".join(f"text {i % 20}\t{i % 3}\n" for i in range(60)))
    splits = splits_of(LabelledFiles(str(tmp_path / "x.tsv"), None, None, 0.1, "utf-8", None, None), tmp_path)
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 54, "validation": 6}
    assert not set(splits["train"]) & set(splits["validation"])


def test_a_wrong_label_column_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("sentence\tlabel\na b\t1\n")
    source = LabelledFiles(str(tmp_path / "x.tsv"), None, None, 0.1, "utf-8", "sentence", "labels")
    with pytest.raises(ValueError, match=r"data\.label_column=labels is no column of .*did you mean label\?"):
        source.check()


@pytest.mark.parametrize(
    ("train", "dev", "n_rows", "n_positive"),
    [
        ("train.tsv", "dev.tsv", 6920, 3610),
        ("glue/train.tsv.gz", "glue/dev.tsv", 67349, None),
    ],
)
def test_sst2(shared: Path, tmp_path: Path, train: str, dev: str, n_rows: int, n_positive: int | None) -> None:
    folder = shared / "sst2"
    source = LabelledFiles(str(folder / train), str(folder / dev), None, 0.1, "utf-8", None, None)
    rows = rows_of(source)
    assert len(rows["train"]) == n_rows
    assert len(rows["validation"]) == 872
    assert Counter(row["label"] for row in rows["validation"]) == {"1": 444, "0": 428}
    if n_positive is not None:
        assert Counter(row["label"] for row in rows["train"])["1"] == n_positive
        prepared = prepare(source, Byte(), tmp_path, progress=False)
        figures = label_baselines(prepared.splits["train"], prepared.splits["validation"])
        assert figures["majority"] == pytest.approx(444 / 872)
        assert figures["naive_bayes"] > 0.78  # 0.82 on the test split, by others


def test_trec(shared: Path) -> None:
    folder = shared / "trec"
    source = LabelledFiles(str(folder / "train.tsv"), str(folder / "test.tsv"), None, 0.1, "utf-8", None, "coarse")
    rows = rows_of(source)["train"]
    assert (len(rows), len({row["label"] for row in rows})) == (5452, 6)
    raw = LabelledFiles(str(folder / "raw" / "train.label"), None, None, 0.1, "utf-8", 0, 0)
    with pytest.raises(ValueError, match=r"train\.label, line \d+ is not UTF-8 \(byte 0xf0\)"):
        rows_of(raw)
