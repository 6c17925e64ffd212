import numpy as np
import pytest

from triform.data.tokenizers import Tokenizer
from triform.tasks.prefix_lm import PrefixLM


def build(tokenizer: Tokenizer, seed: int = 0, family: str = "decoder") -> PrefixLM:
    return PrefixLM(0.0, "torch", 0.0, 5, family=family, tokenizer=tokenizer, labels=None, seq_len=6, seed=seed)


def test_the_rest_is_predicted_and_the_prefix_is_not(tokenizer: Tokenizer) -> None:
    objective, seen = build(tokenizer), set()
    for index in range(60):
        batch = objective.collate([{"ids": np.array([7, 8, 9, 10, 11])}], [(0, index)])
        prefix = int(batch["prefix_length"])
        seen.add(prefix)
        assert batch["input_ids"].tolist() == [[7, 8, 9, 10]]
        assert batch["labels"].tolist() == [[-100] * (prefix - 1) + [7, 8, 9, 10, 11][prefix:]]
        assert (batch["n_tokens"], batch["n_targets"]) == (4, 5 - prefix)
    assert seen == {1, 2, 3, 4}


def test_two_stacks_divide_a_text_as_one_does(tokenizer: Tokenizer) -> None:
    one, two = build(tokenizer), build(tokenizer, family="encoder_decoder")
    for index in range(20):
        example = [{"ids": np.array([7, 8, 9, 10, 11, 12])}]
        prefix = int(one.collate(example, [(0, index)])["prefix_length"])
        batch = two.collate(example, [(0, index)])
        source, target = [7, 8, 9, 10, 11, 12][:prefix], [7, 8, 9, 10, 11, 12][prefix:]
        assert batch["input_ids"].tolist() == [[*source, tokenizer.eos_id]]
        assert batch["labels"].tolist() == [target]
        assert batch["decoder_input_ids"].tolist() == [[tokenizer.start_id, *target[:-1]]]
        assert batch["input_ids"].shape[1] <= two.seq_len


def test_documents_of_a_row_are_rows_of_their_own(tokenizer: Tokenizer) -> None:
    row = {"ids": np.array([7, 8, 3, 9, 10, 11, 3]), "documents": np.array([0, 0, 0, 1, 1, 1, 1])}
    batch = build(tokenizer).collate([row, {"ids": np.array([12])}], [(0, 0), (0, 1)])
    assert batch["input_ids"].tolist() == [[7, 8, 0], [9, 10, 11]]
    assert batch["padding_mask"].tolist() == [[True, True, False], [True, True, True]]
    assert batch["labels"][:, -1].tolist() == [-100, 3]
    assert batch["labels"][0, 1] == 3, "the end of a document is predicted"
    assert batch["n_targets"] == (batch["labels"] >= 0).sum()


def test_places_are_a_function_of_seed_epoch_and_index(tokenizer: Tokenizer) -> None:
    rows = [{"ids": np.arange(7, 14)}] * 40

    def places(epoch: int, seed: int = 0) -> list[int]:
        return build(tokenizer, seed).collate(rows, [(epoch, i) for i in range(40)])["prefix_length"].tolist()

    assert places(2) == places(2)
    assert places(2) != places(3)
    assert places(2) != places(2, seed=1)
    assert places(-1) == places(-1, seed=1), "held-out text is divided alike in all runs"


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_no_example_gives_a_row_without_targets(tokenizer: Tokenizer, family: str) -> None:
    batch = build(tokenizer, family=family).collate([], [])
    assert (batch["labels"] == -100).all()
    assert batch["n_targets"] == 0
