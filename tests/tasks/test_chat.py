import numpy as np
import pytest

from triform.data.tokenizers import Tokenizer
from triform.tasks.chat import Chat


@pytest.fixture
def objective(tokenizer: Tokenizer) -> Chat:
    return Chat(0.0, "torch", 0.0, 5, family="decoder", tokenizer=tokenizer, labels=None, seq_len=6, seed=0)


def test_only_learned_tokens_are_predicted_each_from_those_before_it(objective: Chat) -> None:
    example = {
        "ids": np.array([10, 11, 12, 13, 14, 15]),
        "learned": np.array([False, False, True, True, False, True]),
    }
    batch = objective.collate([example, {"ids": np.array([16, 17]), "learned": np.array([True, True])}], [(0, 0)] * 2)
    assert batch["input_ids"].tolist() == [[10, 11, 12, 13, 14], [16, 0, 0, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 12, 13, -100, 15], [17, -100, -100, -100, -100]]
    assert (batch["n_tokens"], batch["n_targets"]) == (6, 4)


def test_a_long_conversation_loses_its_end(objective: Chat) -> None:
    batch = objective.collate([{"ids": np.arange(7, 27), "learned": np.ones(20, dtype=bool)}], [(0, 0)])
    assert batch["input_ids"].tolist() == [list(range(7, 13))]
    assert batch["labels"].tolist() == [list(range(8, 14))]


def test_a_conversation_without_an_answer_has_no_target(objective: Chat) -> None:
    batch = objective.collate([{"ids": np.array([10, 11]), "learned": np.array([False, False])}], [(0, 0)])
    assert batch["n_targets"] == 0
    assert (objective.collate([], [])["labels"] == -100).all()
