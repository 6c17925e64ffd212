import numpy as np
import torch

from triform.data.tokenizers import Tokenizer
from triform.tasks.figures import Figures, VectorSum
from triform.tasks.seq2seq import Seq2Seq


def test_sums_are_kept_in_float64() -> None:
    total = VectorSum(2)
    for _ in range(3):
        total.update(torch.tensor([2**24, 1]))
    total.update(torch.tensor([1.0, 0.5]))
    assert total.compute().tolist() == [3 * 2**24 + 1, 3.5]


class Even(torch.nn.Module):
    """Gives all of 60 tokens the same chance."""

    def forward(self, input_ids: torch.Tensor, **masks: torch.Tensor) -> "Even":
        self.hidden = torch.zeros(*input_ids.shape, 60)
        return self

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def test_a_validation_in_which_nothing_is_written_has_no_figures_of_it(tokenizer: Tokenizer) -> None:
    """And no warning, which is an error here."""
    objective = Seq2Seq(
        0.0, "torch", 0.0, "test",
        family="decoder", tokenizer=tokenizer, labels=None, seq_len=9, seed=0,
    )  # fmt: skip
    figures = Figures(objective)
    figures.reset("cpu")
    figures.add(Even(), objective.collate([{"source_ids": np.array([8]), "target_ids": np.array([9, 10])}], [(0, 0)]))
    found = figures.means(None)
    assert set(found) == {"loss", "accuracy", "exact_match", "perplexity"}
    assert abs(found["loss"] - np.log(60)) < 1e-6
