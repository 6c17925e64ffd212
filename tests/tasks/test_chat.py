from pathlib import Path

import numpy as np
import pytest

from triform.data.prepare import Split
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


def learned(folder: Path, rows: list[list[bool]]) -> Split:
    split = Split("chat", folder / "train", "uint16")
    np.array([value for row in rows for value in row], dtype=bool).tofile(folder / "train.learned")
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    ends.tofile(folder / "train.learned_ends")
    ends.tofile(folder / "train.text.ids_ends")
    return split


def test_conversations_that_train_nothing_are_said(
    objective: Chat, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 7 tokens that are read: nothing learned there, nothing at all, the first one alone, and two that speak."""
    late, never, first = [False] * 7 + [True], [False] * 3, [True]
    speaking = [[False] * 6 + [True], [True, True]]
    objective.look(learned(tmp_path, [late, never, first, *speaking]))
    assert "in 3 of 5 training conversations the assistant does not speak within the first 7 tokens" in caplog.text
    with pytest.raises(
        ValueError, match=r"Chat: in none of the 2 .* the first 7 tokens, .*; set data\.seq_len above 6"
    ):
        objective.look(learned(tmp_path, [late, never]))
    caplog.clear()
    objective.look(learned(tmp_path, speaking))
    assert not caplog.messages
