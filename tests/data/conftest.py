"""Tiny data sets, and the real ones beside the project."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest

from triform.data.prepare import Prepared, prepare
from triform.data.sources.labelled import LabelledFiles
from triform.data.sources.pairs import PairFiles
from triform.data.sources.text import TextFiles
from triform.data.tokenizers import Char

multiprocessing.set_forkserver_preload(["lightning.pytorch", "triform.data.stream"])  # or each worker imports them

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"no real data at {SHARED}")
    return SHARED


@pytest.fixture
def text(tmp_path: Path) -> Callable[..., Prepared]:
    """Prepares documents as running text: train, validation."""

    def build(train: list[str], validation: list[str]) -> Prepared:
        names: dict[str, list[str]] = {"train": [], "validation": []}
        for split, documents in (("train", train), ("validation", validation)):
            for i, document in enumerate(documents):
                path = tmp_path / f"{split}{i}.txt"
                path.write_text(document, encoding="utf-8")
                names[split].append(str(path))
        source = TextFiles(names["train"], names["validation"], None, 0.1, "utf-8", None)
        return prepare(source, Char(), tmp_path / "cache", progress=False)

    return build


@pytest.fixture
def pairs(tmp_path: Path) -> Callable[..., Prepared]:
    """Prepares rows of (source, target)."""

    def build(train: list[tuple[str, str]], validation: list[tuple[str, str]]) -> Prepared:
        for split, rows in (("train", train), ("validation", validation)):
            table = "\n".join(f"{source}\t{target}" for source, target in rows)
            (tmp_path / f"{split}.tsv").write_text(table, encoding="utf-8")
        source = PairFiles(str(tmp_path / "train.tsv"), str(tmp_path / "validation.tsv"), None, 0.1, "utf-8", 0, 1)
        return prepare(source, Char(), tmp_path / "cache", progress=False)

    return build


@pytest.fixture
def labelled(tmp_path: Path) -> Callable[..., Prepared]:
    """Prepares rows of (text, label)."""

    def build(train: list[tuple[str, str]], validation: list[tuple[str, str]]) -> Prepared:
        for split, rows in (("train", train), ("validation", validation)):
            table = "\n".join(f"{text}\t{label}" for text, label in rows)
            (tmp_path / f"{split}.tsv").write_text(table, encoding="utf-8")
        source = LabelledFiles(str(tmp_path / "train.tsv"), str(tmp_path / "validation.tsv"), None, 0.1, "utf-8", 0, 1)
        return prepare(source, Char(), tmp_path / "cache", progress=False)

    return build
