import random

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from triform.tasks.written import Corpus, edit_distance

HYPOTHESES = ["the cat sat on the mat", "a dog"]
REFERENCES = ["the cat sat on the mat", "the dog ran away quickly today"]


def score(*batches: tuple[list[str], list[str]]) -> dict[str, float]:
    corpus = Corpus()
    counted = [corpus.sums(*batch) for batch in batches]
    return corpus.conclude({name: sum(one[name].numpy() for one in counted) for name in corpus.sizes})


def test_figures_are_of_the_corpus_not_means_over_batches() -> None:
    """One sentence in each of two batches: 56.0479, where the mean of batches is 50.0 and that of sentences 53.38."""
    found = score((HYPOTHESES[:1], REFERENCES[:1]), (HYPOTHESES[1:], REFERENCES[1:]))
    assert found["bleu"] == pytest.approx(56.0479, abs=1e-4)
    assert found["bleu"] == pytest.approx(BLEU().corpus_score(HYPOTHESES, [REFERENCES]).score)
    assert found["chrf"] == pytest.approx(CHRF().corpus_score(HYPOTHESES, [REFERENCES]).score)
    assert found == score((HYPOTHESES, REFERENCES))


def test_a_text_counted_twice_would_be_another_figure() -> None:
    found = score((HYPOTHESES, REFERENCES), (HYPOTHESES[:1], REFERENCES[:1]))
    assert found["bleu"] == pytest.approx(72.03, abs=0.01)


def test_signatures_say_how() -> None:
    found = Corpus().signatures()
    assert found["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert found["chrf"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def test_character_error_rate() -> None:
    assert score((["kitten", ""], ["sitting", "abc"]))["character_error_rate"] == pytest.approx((3 + 3) / (7 + 3))


def test_nothing_written_has_no_figures() -> None:
    corpus = Corpus()
    assert corpus.conclude({name: np.zeros(size) for name, size in corpus.sizes.items()}) == {}


def by_cells(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        before, row = row, [i]
        for j, y in enumerate(b, start=1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y)))
    return row[-1]


def test_edit_distance_is_that_of_the_table() -> None:
    draw = random.Random(3)
    for _ in range(300):
        a, b = ("".join(draw.choices("abcü", k=draw.randrange(90))) for _ in range(2))
        assert edit_distance(a, b) == by_cells(a, b), (a, b)
