from pathlib import Path

import numpy as np
import pytest
import torch

from triform.data.prepare import Split
from triform.data.tokenizers import Tokenizer
from triform.tasks.classification import Classification
from triform.tasks.figures import Figures


def build(
    tokenizer: Tokenizer,
    family: str,
    pooling: str = "first",
    labels: tuple[str, ...] = ("no", "yes"),
    class_weights: list[float] | str | None = None,
) -> Classification:
    return Classification(
        0.0, class_weights, pooling, 0.0, family=family, tokenizer=tokenizer, labels=labels, seq_len=6, seed=0
    )


EXAMPLES = [{"ids": np.array([11, 12, 13]), "label": 1}, {"ids": np.array([14]), "label": 0}]


def test_marks_of_each_family(tokenizer: Tokenizer) -> None:
    rows = {
        family: build(tokenizer, family).collate(EXAMPLES, [(0, 0), (0, 1)])
        for family in ("encoder", "decoder", "encoder_decoder")
    }
    assert rows["encoder"]["input_ids"].tolist() == [[4, 11, 12, 13, 5], [4, 14, 5, 0, 0]]
    assert rows["decoder"]["input_ids"].tolist() == [[11, 12, 13, 3], [14, 3, 0, 0]]
    assert rows["encoder_decoder"]["decoder_input_ids"].tolist() == [[2], [2]]
    assert all(batch["labels"].tolist() == [1, 0] for batch in rows.values())


class Echo(torch.nn.Module):
    """Its state at each position is the position's token."""

    def forward(self, input_ids: torch.Tensor, *rest: torch.Tensor, **masks: torch.Tensor) -> "Echo":
        self.hidden = (rest[0] if masks and rest else input_ids)[..., None].float()
        return self


def test_the_head_reads_the_familys_state(tokenizer: Tokenizer) -> None:
    def states(family: str, pooling: str = "first") -> list[float]:
        objective = build(tokenizer, family, pooling)
        return objective.hidden(Echo(), objective.collate(EXAMPLES, [(0, 0), (0, 1)])).flatten().tolist()

    assert states("encoder") == [4, 4]
    assert states("encoder", "mean") == pytest.approx([(4 + 11 + 12 + 13 + 5) / 5, (4 + 14 + 5) / 3])
    assert states("decoder") == [3, 3]
    assert states("encoder_decoder") == [2, 2]


def test_long_texts_keep_their_marks(tokenizer: Tokenizer) -> None:
    ids = np.arange(7, 30)
    assert build(tokenizer, "encoder").text.row(ids) == [4, 7, 8, 9, 10, 5]
    assert build(tokenizer, "decoder").text.row(ids) == [7, 8, 9, 10, 11, 3]


def test_refusals(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"pooling='last' is unknown; set task\.pooling to first or mean"):
        build(tokenizer, "encoder", "last")
    with pytest.raises(ValueError, match=r"labels \['no'\], at least two .* data\.label_column"):
        build(tokenizer, "encoder", labels=("no",))


def test_balanced_weights_make_classes_count_alike(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """n_texts / (n_classes * texts of the class), as scikit-learn's."""
    np.array([0, 1, 1, 1, 1, 1]).tofile(tmp_path / "train.labels")
    objective = build(tokenizer, "encoder", class_weights="balanced")
    objective.look(Split("labelled", tmp_path / "train", "uint16"))
    assert objective.criterion.train_loss.class_weights is not None
    assert objective.criterion.train_loss.class_weights.tolist() == pytest.approx([6 / (2 * 1), 6 / (2 * 5)])
    logits, labels = torch.randn(2, 2), torch.tensor([1, 0])
    plain = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(objective.criterion.train_loss(logits, labels), (plain * torch.tensor([0.6, 3.0])).sum())


def test_weights_that_do_not_fit_the_labels_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(
        ValueError, match=r"class_weights are 3 numbers, the 2 labels are no, yes; set task\.class_weights"
    ):
        build(tokenizer, "encoder", class_weights=[1.0, 2.0, 3.0])
    with pytest.raises(
        ValueError, match=r"class_weights are 'even', the 2 labels are no, yes; .*to balanced or to null"
    ):
        build(tokenizer, "encoder", class_weights="even")


def test_figures_are_of_all_batches(tokenizer: Tokenizer) -> None:
    """Guesses 0 1 1 2 0 of 0 1 2 2 1: F1 of the classes 2/3, 1/2, 2/3."""
    objective = build(tokenizer, "encoder", labels=("a", "b", "c", "never"))
    guesses, truth = [0, 1, 1, 2, 0], [0, 1, 2, 2, 1]
    figures = Figures(objective)
    figures.reset("cpu")
    for part in (slice(0, 2), slice(2, 5), slice(5, 5)):
        examples = [{"ids": np.array([g + 7]), "label": t} for g, t in zip(guesses[part], truth[part], strict=True)]
        figures.add(Reads(4), objective.collate(examples, [(0, 0)] * len(examples)))
    found = figures.means(None)
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1 / 2 + 2 / 3) / 3)


class Reads(torch.nn.Module):
    """Guesses the class that the second token of a row says, by its distance from 7."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = n_classes

    def forward(self, input_ids: torch.Tensor, *masks: torch.Tensor) -> "Reads":
        said = input_ids[:, 1 if input_ids.shape[1] > 1 else 0] - 7
        self.hidden = torch.nn.functional.one_hot(said.clamp(0), self.n_classes).float()[:, None]
        return self

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden
