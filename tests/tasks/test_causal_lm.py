import numpy as np
import pytest

from triform.data.tokenizers import Tokenizer
from triform.tasks.causal_lm import CausalLM


@pytest.fixture
def objective(tokenizer: Tokenizer) -> CausalLM:
    return CausalLM(
        0.0, "torch", 0.0, None, 8, 0.0, family="decoder", tokenizer=tokenizer, labels=None, seq_len=6, seed=0
    )


def test_labels_are_shifted_exactly_once(objective: CausalLM) -> None:
    batch = objective.collate([{"ids": np.array([7, 8, 9, 10])}, {"ids": np.array([7, 8])}], [(0, 0), (0, 1)])
    assert batch["input_ids"].tolist() == [[7, 8, 9], [7, 0, 0]]
    assert batch["labels"].tolist() == [[8, 9, 10], [8, -100, -100]]
    assert batch["padding_mask"].tolist() == [[True, True, True], [True, False, False]]
    assert (batch["n_tokens"], batch["n_targets"]) == (4, 4)


def test_full_rows_carry_no_mask(objective: CausalLM) -> None:
    batch = objective.collate([{"ids": np.array([7, 8, 9])}], [(0, 0)])
    assert set(batch) == {"input_ids", "labels", "n_tokens", "n_targets"}


def test_the_end_of_a_document_opens_the_next_and_every_token_is_predicted(objective: CausalLM) -> None:
    row = {"ids": np.array([7, 8, 3, 9, 10, 3, 11]), "documents": np.array([4, 4, 4, 5, 5, 5, 6])}
    batch = objective.collate([row], [(0, 0)])
    assert batch["labels"].tolist() == [[8, 3, 9, 10, 3, 11]]
    assert batch["document_ids"].tolist() == [[1, 1, 2, 2, 2, 3]]
    assert batch["position_ids"].tolist() == [[0, 1, 0, 1, 2, 0]]


def test_no_example_gives_a_row_of_padding(objective: CausalLM) -> None:
    batch = objective.collate([], [])
    assert batch["input_ids"].tolist() == [[0]]
    assert batch["padding_mask"].tolist() == [[False]]
    assert batch["labels"].tolist() == [[-100]]
    assert (batch["n_tokens"], batch["n_targets"]) == (0, 0)


def test_bits_per_byte_counts_bytes_not_tokens(objective: CausalLM) -> None:
    figures = objective.derive(loss=np.log(2) * 3, n_targets=100, n_bytes=200)
    assert figures["bits_per_byte"] == pytest.approx(1.5)
    assert figures["perplexity"] == pytest.approx(8)
