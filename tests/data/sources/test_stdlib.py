import ast
from collections import Counter

import pytest

from triform.data.sources.stdlib import Stdlib, StdlibDocs, StdlibModules, docstrings, python_files


def test_files_are_the_librarys_own_without_tests() -> None:
    files = python_files()
    assert {"abc.py", "asyncio/events.py", "json/decoder.py"} <= set(files)
    assert not [place for place in files if {"test", "tests", "site-packages"} & set(place.split("/"))]
    assert 8e6 < sum(map(len, files.values())) < 20e6


def test_stdlib_splits_whole_files() -> None:
    splits = Stdlib(0.05).load()
    train, validation = splits["train"]["text"], splits["validation"]["text"]
    assert len(train) + len(validation) == len([text for text in python_files().values() if text.strip()])
    assert 0.01 < len(validation) / len(train) < 0.1
    ast.parse(validation[0])
    # More held out keeps what was: a file's side depends on its path alone.
    assert set(validation) <= set(Stdlib(0.2).load()["validation"]["text"])


@pytest.mark.slow
def test_docs_are_docstrings_and_topics_once() -> None:
    splits = StdlibDocs(0.05).load()
    texts = [*splits["train"]["text"], *splits["validation"]["text"]]
    assert len(texts) == len(set(texts)) > 5000
    assert sum(map(len, texts)) > 1e6
    assert any("The assert statement" in " ".join(text.split()) or "Assert statements" in text for text in texts)


@pytest.mark.slow
def test_modules_are_twelve_without_their_names() -> None:
    source = StdlibModules(n_classes=12, validation_fraction=0.1)
    splits = source.load()
    rows = [row for split in splits.values() for row in split]
    assert len({row["label"] for row in rows}) == 12
    assert all(row["label"] not in row["text"].lower().split() for row in rows)
    texts = Counter(" ".join(row["text"].lower().split()) for row in rows)
    assert max(texts.values()) == 1
    assert set(Counter(row["label"] for row in splits["validation"])) == {row["label"] for row in rows}
    assert source.fingerprint() != StdlibModules(11, 0.1).fingerprint()


@pytest.mark.slow
def test_docstrings_name_their_file() -> None:
    found = dict(docstrings())
    assert found["json/decoder.py"]
