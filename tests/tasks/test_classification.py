import numpy as np
import pytest
import torch

from triform.data.tokenizers import Tokenizer
from triform.tasks.classification import Classification


def build(tokenizer: Tokenizer, family: str, pooling: str = "first", labels: tuple[str, ...] = ("no", "yes")):
    return Classification(0.0, pooling, 0.0, family=family, tokenizer=tokenizer, labels=labels, seq_len=6, seed=0)


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
    assert build(tokenizer, "encoder").row(ids) == [4, 7, 8, 9, 10, 5]
    assert build(tokenizer, "decoder").row(ids) == [7, 8, 9, 10, 11, 3]


def test_refusals(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"pooling='last' is unknown; set task\.pooling to first or mean"):
        build(tokenizer, "encoder", "last")
    with pytest.raises(ValueError, match=r"labels \['no'\], at least two .* data\.label_column"):
        build(tokenizer, "encoder", labels=("no",))
