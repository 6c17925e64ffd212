"""What a tokenizer does not know is counted and said."""

import logging
from pathlib import Path

import pytest

from triform.data.prepare import prepare
from triform.data.sources.text import TextFiles
from triform.data.tokenizers import BPE, Word


def test_the_share_of_unknown_tokens_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, lines in (("train", "a b a\n"), ("validation", "a z z b y\n")):
        (tmp_path / f"{name}.txt").write_text(lines, encoding="utf-8")
    files = [str(tmp_path / "train.txt")], [str(tmp_path / "validation.txt")]
    source = TextFiles(*files, None, 0.1, "utf-8", None)
    prepared = prepare(source, Word(9, lowercase=True, split_punctuation=True), tmp_path / "cache", progress=False)
    assert prepared.unknown_shares == {"validation": 3 / 6}  # the end of the document is a token, too
    assert "validation: 50 % of the tokens are unknown ones: what they stand for is lost" in caplog.text
    assert "train:" not in caplog.text
    caplog.clear()
    again = prepare(source, Word(9, lowercase=True, split_punctuation=True), tmp_path / "cache", progress=False)
    assert again.unknown_shares == prepared.unknown_shares
    assert not caplog.text


def test_nothing_is_unknown_in_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "train.txt").write_text("a b a\n", encoding="utf-8")
    (tmp_path / "validation.txt").write_text("😀 z\n", encoding="utf-8")
    files = [str(tmp_path / "train.txt")], [str(tmp_path / "validation.txt")]
    source = TextFiles(*files, None, 0.1, "utf-8", None)
    with caplog.at_level(logging.WARNING):
        prepared = prepare(source, BPE(263, lowercase=False), tmp_path / "cache", progress=False)
    assert prepared.unknown_shares == {}
    assert not caplog.text
