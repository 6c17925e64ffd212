from collections.abc import Callable
from math import log2

import pytest

from triform.data import baselines
from triform.data.baselines import label_baselines, text_baselines
from triform.data.prepare import Prepared


def test_text_figures_by_hand(text: Callable[..., Prepared]) -> None:
    prepared = text(["aab"], ["ab"])
    figures = text_baselines(prepared.splits["train"], prepared.splits["validation"])
    # One context of 3 bytes, 2 of them different, interpolated with 1/256; then after "a": a and b, once each.
    a, b = (2 + 2 / 256) / 5, (1 + 2 / 256) / 5
    assert figures["uniform"] == 8
    assert figures["unigram"] == pytest.approx(-(log2(a) + log2(b)) / 2)
    assert figures["trigram"] == pytest.approx(-(log2(a) + log2((1 + 2 * b) / 4)) / 2)


def test_chances_add_up_to_one(text: Callable[..., Prepared]) -> None:
    """Over all bytes that could come third, seen before or not."""
    total = 0.0
    for third in [*"abcdefgh", "?"]:
        prepared = text(["abcabdabefgh" * 3 + "bcc"], ["ab" + third])
        two = text(["abcabdabefgh" * 3 + "bcc"], ["ab"])
        bits = [text_baselines(p.splits["train"], p.splits["validation"])["trigram"] for p in (prepared, two)]
        chance = 2 ** -(3 * bits[0] - 2 * bits[1])
        total += chance * (256 - 8 if third == "?" else 1)
    assert total == pytest.approx(1)


def test_more_context_predicts_better(text: Callable[..., Prepared]) -> None:
    prepared = text(["the cat sat on the mat and the rat sat on the cat " * 20], ["the rat sat on the mat "])
    figures = text_baselines(prepared.splits["train"], prepared.splits["validation"])
    assert figures["trigram"] < figures["unigram"] < figures["uniform"]


def test_label_figures(labelled: Callable[..., Prepared]) -> None:
    train = [("good fine film", "1"), ("bad dull film", "0"), ("good film", "1"), ("dull plot", "0"), ("film", "0")]
    prepared = labelled(train, [("a GOOD plot", "1"), ("dull dull", "0"), ("fine", "1"), ("unheard", "0")])
    figures = label_baselines(prepared.splits["train"], prepared.splits["validation"])
    assert figures == {"majority": 0.5, "naive_bayes": 1.0}


def test_no_more_is_read_than_the_cap(
    text: Callable[..., Prepared], labelled: Callable[..., Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = [("good", "1"), ("bad", "0"), ("bad", "1"), ("bad", "1"), ("ugly", "0"), ("ugly", "0")]
    words = labelled(train, [("good", "1"), ("bad", "1")]).splits
    long, short = text(["aab", "zzzz"], ["abxyz"]).splits, text(["aab"], ["abx"]).splits
    assert label_baselines(words["train"], words["validation"])["naive_bayes"] == 1.0
    expected = text_baselines(short["train"], short["validation"])
    monkeypatch.setattr(baselines, "READ", 7)  # "good" and "bad"
    assert label_baselines(words["train"], words["validation"])["naive_bayes"] == 0.5
    monkeypatch.setattr(baselines, "READ", 3)
    assert text_baselines(long["train"], long["validation"]) == expected
