import numpy as np
import pytest
import torch

from triform.data.tokenizers import Tokenizer
from triform.tasks.figures import Figures
from triform.tasks.multi_label import MultiLabel

EXAMPLES = [
    {"ids": np.array([11, 12, 13]), "labels": np.array([2, 0])},
    {"ids": np.array([14]), "labels": np.array([], dtype=np.int64)},
    {"ids": np.array([15]), "labels": np.array([1])},
]


def build(tokenizer: Tokenizer, family: str = "encoder") -> MultiLabel:
    return MultiLabel("first", 0.0, family=family, tokenizer=tokenizer, labels=["a", "b", "c"], seq_len=6, seed=0)


@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder_decoder"])
def test_each_class_of_each_text_is_a_target(tokenizer: Tokenizer, family: str) -> None:
    batch = build(tokenizer, family).collate(EXAMPLES, [(0, 0)] * 3)
    assert batch["labels"].int().tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert (batch["n_targets"], batch["n_rows"]) == (9, 3)


class Says(torch.nn.Module):
    """Gives logits by the first token of a text."""

    def __init__(self, logits: dict[int, list[float]]) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, input_ids: torch.Tensor, *masks: torch.Tensor) -> "Says":
        rows = [self.logits.get(int(row[-1 if len(row) < 2 else 1]), [5.0] * 3) for row in input_ids]
        self.hidden = torch.tensor(rows)[:, None].requires_grad_()
        return self

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def test_figures_are_of_all_batches(tokenizer: Tokenizer) -> None:
    """Right: a and c of the first, none of the second; b of the third is missed, and c is said."""
    model = Says({11: [1.0, -1.0, 2.0], 14: [-1.0, -2.0, -3.0], 15: [-1.0, -1.0, 1.0]})
    objective = build(tokenizer)
    figures = Figures(objective)
    figures.reset("cpu")
    for part in (EXAMPLES[:2], EXAMPLES[2:], []):
        figures.add(model, objective.collate(part, [(0, 0)] * len(part)))
    found = figures.means(None)
    assert found["accuracy"] == pytest.approx(7 / 9)
    assert found["exact_match"] == pytest.approx(2 / 3)
    assert found["micro_f1"] == pytest.approx(2 * 2 / (3 + 3))
    assert found["macro_f1"] == pytest.approx((1 + 0 + 2 / 3) / 3)
    logits = torch.tensor([[1.0, -1, 2], [-1, -2, -3], [-1, -1, 1]])
    labels = torch.tensor([[1.0, 0, 1], [0, 0, 0], [0, 1, 0]])
    assert found["loss"] == pytest.approx(torch.nn.functional.binary_cross_entropy_with_logits(logits, labels).item())


def test_a_batch_without_examples_trains_nothing(tokenizer: Tokenizer) -> None:
    objective, model = build(tokenizer), Says({})
    loss = objective.loss(model, objective.collate([], []))
    loss.backward()
    assert loss.item() == 0
    assert not model.hidden.grad.any()


def test_one_label_is_no_choice(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"MultiLabel: .* labels \['a'\], at least two .* data\.labels_column"):
        MultiLabel("first", 0.0, family="encoder", tokenizer=tokenizer, labels=["a"], seq_len=6, seed=0)
