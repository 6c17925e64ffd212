import random
from pathlib import Path

import numpy as np
import pytest
import torch

from triform.data.prepare import Split
from triform.data.tokenizers import Tokenizer
from triform.tasks.figures import Figures
from triform.tasks.token_classification import Spans, TokenClassification

TAGS = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
NONE = -100
EXAMPLES = [
    {"ids": np.array([11, 12, 13, 14]), "tags": np.array([1, NONE, 4, NONE])},
    {"ids": np.array([15]), "tags": np.array([4])},
]


def build(tokenizer: Tokenizer, family: str = "encoder", labels: list[str] = TAGS, **changed) -> TokenClassification:
    arguments = {"label_smoothing": 0.0, "class_weights": None, "dropout": 0.0, "seq_len": 6, "seed": 0} | changed
    return TokenClassification(family=family, tokenizer=tokenizer, labels=labels, **arguments)


def test_an_encoder_tells_a_word_by_its_first_token_and_a_decoder_by_its_last(tokenizer: Tokenizer) -> None:
    batch = build(tokenizer).collate(EXAMPLES, [(0, 0)] * 2)
    assert batch["input_ids"].tolist() == [[4, 11, 12, 13, 14, 5], [4, 15, 5, 0, 0, 0]]
    assert batch["labels"].tolist() == [[NONE, 1, NONE, 4, NONE, NONE], [NONE, 4, NONE, NONE, NONE, NONE]]
    batch = build(tokenizer, "decoder").collate(EXAMPLES, [(0, 0)] * 2)
    assert batch["input_ids"].tolist() == [[11, 12, 13, 14], [15, 0, 0, 0]]
    assert batch["labels"].tolist() == [[NONE, 1, NONE, 4], [4, NONE, NONE, NONE]]
    assert (batch["n_tokens"], batch["n_targets"]) == (5, 3)


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_long_texts_are_cut_and_none_is_a_row_of_padding(tokenizer: Tokenizer, family: str) -> None:
    long = {"ids": np.arange(7, 30), "tags": np.full(23, 4)}
    objective = build(tokenizer, family)
    assert objective.collate([long], [(0, 0)])["input_ids"].shape == (1, 6)
    empty = objective.collate([], [])
    assert (empty["labels"] == NONE).all()
    assert empty["n_targets"] == 0


def by_conlleval(tags: list[str]) -> set[tuple[int, int, str]]:
    """First word, last word and kind of each span, word after word."""
    found, start = set(), None
    for i, tag in enumerate([*tags, "O"]):
        before = tags[i - 1] if i else "O"
        begins = tag.startswith("B-") or (tag != "O" and tag[1:] != before[1:])
        if start is not None and (begins or tag == "O"):
            found.add((start, i - 1, before[2:]))
            start = None
        if begins:
            start = i
    return found


def test_spans_are_those_of_conlleval() -> None:
    draw, spans = random.Random(5), Spans(TAGS)
    total = np.zeros(3)
    expected = np.zeros(3)
    for _ in range(60):
        truth, guesses = np.full((3, 14), NONE), np.full((3, 14), NONE)
        for row in range(3):
            words = sorted(draw.sample(range(14), draw.randrange(15)))
            true = draw.choices(TAGS, [2, 2, 3, 3, 3], k=len(words))
            said = [tag if draw.random() < 0.7 else draw.choice(TAGS) for tag in true]
            truth[row, words] = [TAGS.index(tag) for tag in true]
            guesses[row, words] = [TAGS.index(tag) for tag in said]
            a, b = by_conlleval(said), by_conlleval(true)
            expected += [len(a & b), len(a), len(b)]
        total += spans.counts(torch.tensor(guesses), torch.tensor(truth)).numpy()
    assert total.tolist() == expected.tolist()
    assert expected[0] > 50


class Says(torch.nn.Module):
    """Gives each token the tag that its id says, by its distance from 7."""

    def forward(self, input_ids: torch.Tensor, **masks: torch.Tensor) -> "Says":
        self.hidden = torch.nn.functional.one_hot((input_ids - 7).clamp(0, 4), 5).float()
        return self

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_figures_are_of_all_batches(tokenizer: Tokenizer, family: str) -> None:
    """True: PER(0-1) O | LOC(0). Said: PER(0-1) LOC(2) | O."""
    objective = build(tokenizer, family)
    examples = [
        {"ids": np.array([8, 10, 7]), "tags": np.array([1, 3, 4])},
        {"ids": np.array([11]), "tags": np.array([0])},
    ]
    figures = Figures(objective)
    figures.reset("cpu")
    for part in (examples[:1], examples[1:], []):
        figures.add(Says(), objective.collate(part, [(0, 0)] * len(part)))
    found = figures.means(None)
    assert found["accuracy"] == pytest.approx(2 / 4)
    assert found["span_f1"] == pytest.approx(2 * 1 / (2 + 2))
    assert found["macro_f1"] == pytest.approx((0 + 1 + 1 + 0) / 4)
    assert objective.monitor == ("span_f1", "max")


def test_tags_that_mark_no_spans_have_no_span_f1(tokenizer: Tokenizer) -> None:
    objective = build(tokenizer, labels=["NOUN", "VERB"])
    assert objective.derived == ("macro_f1",)
    assert objective.monitor == ("macro_f1", "max")
    assert objective.sums() == {"classes": 6}


def test_balanced_weights_count_words(tokenizer: Tokenizer, tmp_path: Path) -> None:
    np.array([0, NONE, NONE, 1, 1, NONE, 1]).tofile(tmp_path / "train.tags")
    np.array([3, 7]).tofile(tmp_path / "train.tags_ends")
    objective = build(tokenizer, labels=["NOUN", "VERB"], class_weights="balanced")
    objective.look(Split("tagged", tmp_path / "train", "uint16"))
    assert objective.criterion.choice.train_loss.class_weights is not None
    assert objective.criterion.choice.train_loss.class_weights.tolist() == pytest.approx([4 / 2, 4 / 6])


def test_one_tag_is_no_choice(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"TokenClassification: .* at least two are needed; check data\.tags_column"):
        build(tokenizer, labels=["O"])
