import math

import numpy as np
import pytest
import torch

from triform.data.tokenizers import Tokenizer
from triform.tasks.figures import Figures
from triform.tasks.regression import Regression, pearson

SCORES, SAID = [2.5, -1.0, 4.0, 0.5], [1.0, -0.5, 1.5, 0.5]  # what the model says is (score - 1) / 2, or near it


def build(tokenizer: Tokenizer, family: str = "encoder", scale: float = 2.0) -> Regression:
    return Regression(
        1.0, scale, "first", 0.0, family=family, tokenizer=tokenizer, labels=None, seq_len=6, seed=0
    )  # fmt: skip


def examples() -> list[dict]:
    return [{"ids": np.array([7 + i] * (i + 1)), "score": score} for i, score in enumerate(SCORES)]


class Says(torch.nn.Module):
    """Gives a number by the first token of a text."""

    def forward(self, input_ids: torch.Tensor, *masks: torch.Tensor) -> "Says":
        first = input_ids[:, 1 if input_ids.shape[1] > 1 else 0]
        self.hidden = torch.tensor([SAID[int(i) - 7] if i >= 7 else 99.0 for i in first])[:, None].requires_grad_()
        return self

    def head(self, hidden: torch.Tensor, labels: object = None, loss: object = None) -> torch.Tensor:
        return hidden if loss is None else loss(hidden, labels)  # type: ignore[operator]


def test_scores_are_centred_and_scaled(tokenizer: Tokenizer) -> None:
    batch = build(tokenizer).collate(examples(), [(0, 0)] * 4)
    assert batch["labels"].tolist() == [0.75, -1.0, 1.5, -0.25]
    assert batch["n_targets"] == 4


def test_figures_are_of_all_batches_and_of_scores_as_they_are(tokenizer: Tokenizer) -> None:
    objective = build(tokenizer)
    figures = Figures(objective)
    figures.reset("cpu")
    for part in (examples()[:1], examples()[1:], []):
        figures.add(Says(), objective.collate(part, [(0, 0)] * len(part)))
    found = figures.means(None)
    outputs = np.array(SAID) * 2 + 1
    assert found["mse"] == pytest.approx(np.mean((outputs - SCORES) ** 2))
    assert found["mae"] == pytest.approx(np.mean(np.abs(outputs - SCORES)))
    assert found["pearson"] == pytest.approx(np.corrcoef(outputs, SCORES)[0, 1])
    assert found["loss"] == pytest.approx(found["mse"] / 4)


def test_a_batch_without_examples_trains_nothing(tokenizer: Tokenizer) -> None:
    objective, model = build(tokenizer), Says()
    loss = objective.loss(model, objective.collate([], []))
    loss.backward()
    assert loss.item() == 0
    assert not model.hidden.grad.any()


def test_no_correlation_where_nothing_varies() -> None:
    assert math.isnan(pearson(0, 0, 0, 0, 0, 0))
    assert math.isnan(pearson(2, 2, 3, 2, 5, 3))


def test_a_scale_of_zero_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"Regression: center=1\.0, scale=0\.0; .*task\.scale to one above 0"):
        build(tokenizer, scale=0.0)
