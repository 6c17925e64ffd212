"""Folders in the layout of the hub, without a network."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.data.sources.reading import rows_of
from triform.data.prepare import prepare
from triform.data.sources.hub import Hub
from triform.data.tokenizers import Byte

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


def hub(
    path: Path | str,
    data_kind: str = "labelled",
    columns: Mapping[str, str] | None = None,
    config: str | None = None,
    validation_split: str | None = None,
    test_split: str | None = None,
) -> Hub:
    return Hub(
        path=str(path),
        config=config,
        revision=None,
        data_kind=data_kind,
        columns=columns,
        train_split="train",
        validation_split=validation_split,
        test_split=test_split,
        validation_fraction=0.25,
        label_separator="|",
        template="{role}: {content}\n",
    )


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_splits_by_the_names_of_files(tmp_path: Path) -> None:
    jsonl(tmp_path / "d/train.jsonl", [{"sentence": "é\u2028a", "label": "x"}, {"sentence": "b", "label": "y"}])
    jsonl(tmp_path / "d/test.jsonl", [{"sentence": "c", "label": "x"}])
    source = hub(tmp_path / "d", columns={"text": "sentence"}, test_split="test")
    assert rows_of(source) == {
        "train": [{"text": "é\u2028a", "label": "x"}, {"text": "b", "label": "y"}],
        "test": [{"text": "c", "label": "x"}],
    }


def test_configs_of_a_card(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    for name in ("small", "large"):
        jsonl(folder / name / "train.jsonl", [{"text": name}])
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: small\n  data_files: small/*.jsonl\n"
        "- config_name: large\n  data_files: large/*.jsonl\n---\n"
    )
    assert rows_of(hub(folder, "text", config="large")) == {"train": [{"text": "large"}]}
    with pytest.raises(ValueError, match=r"data\.train_split=train of data\.path=.* cannot be read \(.*small"):
        rows_of(hub(folder, "text"))


def test_class_numbers_have_their_names(tmp_path: Path) -> None:
    names = datasets.ClassLabel(names=["O", "B"])
    features = {"tokens": datasets.List(datasets.Value("string")), "tags": datasets.List(names)}
    data = {"tokens": [["a", "b"], ["c"]], "tags": [[1, 0], [0]]}
    (tmp_path / "d").mkdir()
    datasets.Dataset.from_dict(data, features=datasets.Features(features)).to_parquet(str(tmp_path / "d/train.parquet"))
    assert rows_of(hub(tmp_path / "d", "tagged"))["train"] == [
        {"tokens": ["a", "b"], "tags": ["B", "O"]},
        {"tokens": ["c"], "tags": ["O"]},
    ]


@pytest.mark.parametrize(
    ("kind", "row", "expected"),
    [
        ("pairs", {"source": "a", "target": "b"}, {"source": "a", "target": "b"}),
        ("multilabelled", {"text": "a", "labels": "x|y"}, {"text": "a", "labels": ["x", "y"]}),
        ("scored", {"text": "a", "score": 2}, {"text": "a", "score": 2.0}),
        (
            "chat",
            {"messages": [{"role": "assistant", "content": "a"}]},
            {"turns": [("assistant: ", False), ("a", True), ("\n", True)]},
        ),
    ],
)
def test_kinds(tmp_path: Path, kind: str, row: dict[str, Any], expected: dict[str, Any]) -> None:
    jsonl(tmp_path / "d/train.jsonl", [row])
    source = hub(tmp_path / "d", kind)
    assert source.kind == kind == Hub.kind_of({"data_kind": kind})
    assert rows_of(source)["train"] == [expected]


def test_is_prepared_once_and_again_when_a_file_changes(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "d/train.jsonl", [{"text": f"text {i}", "label": i % 3} for i in range(40)])
    first = prepare(hub(tmp_path / "d"), Byte(), tmp_path / "cache", progress=False)
    assert {name: len(split) for name, split in first.splits.items()} == {"train": 30, "validation": 10}
    assert first.labels == ["0", "1", "2"]
    assert prepare(hub(tmp_path / "d"), Byte(), tmp_path / "cache", progress=False).folder == first.folder
    (tmp_path / "d").rename(tmp_path / "elsewhere")
    assert hub(tmp_path / "elsewhere").fingerprint() == hub(tmp_path / "elsewhere").fingerprint()
    before = hub(tmp_path / "elsewhere").fingerprint()
    jsonl(tmp_path / "elsewhere" / file.name, [{"text": "other", "label": 1}])
    assert hub(tmp_path / "elsewhere").fingerprint() != before


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"text": "a", "class": "x"}],
            r"d \(train\), row 1 has no column 'label', only text, class; set data\.columns",
        ),
        ([{"text": "a", "label": "x"}, {"text": None, "label": "x"}], r"row 2 has null for 'text'; set data\.columns"),
        ([{"text": ["a"], "label": "x"}], r"row 1: data\.text_column holds a list, no text"),
    ],
)
def test_faults_of_rows_are_named(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    jsonl(tmp_path / "d/train.jsonl", rows)
    with pytest.raises(ValueError, match=message):
        rows_of(hub(tmp_path / "d"))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("train.parquet", b"PAR1 and no more"),
        ("train.jsonl", b'{"text": "a", "label"'),
        ("train.jsonl.gz", gzip.compress(b'{"text": "a", "label": "b"}\n' * 99, mtime=0)[:-12]),
        ("train.xyz", b"unknown"),
    ],
)
def test_faults_of_files_are_one_line(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / name).write_bytes(data)
    with pytest.raises(
        ValueError, match=r"Hub: data\.train_split=train of data\.path=.*d cannot be read \(.*\)"
    ) as caught:
        rows_of(hub(tmp_path / "d"))
    assert "\n" not in str(caught.value)


def test_a_split_that_is_not_there(tmp_path: Path) -> None:
    jsonl(tmp_path / "d/train.jsonl", [{"text": "a", "label": "x"}])
    with pytest.raises(ValueError, match=r"data\.validation_split=dev of data\.path=.* cannot be read \(.*dev"):
        rows_of(hub(tmp_path / "d", validation_split="dev"))


def test_refuses_what_is_seen_before(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data_kind=labeled is none; set data\.data_kind to one of text, pairs"):
        hub(tmp_path, "labeled")
    with pytest.raises(
        ValueError, match=r"names 'sentence', which labelled has not; set data\.columns for text, label"
    ):
        hub(tmp_path, columns={"sentence": "text"})
    with pytest.raises(ValueError, match=r"data\.path=.*none does not exist; name a folder, or a data set of the hub"):
        hub(tmp_path / "none").check()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"is a folder without files"):
        hub(tmp_path / "empty").check()
