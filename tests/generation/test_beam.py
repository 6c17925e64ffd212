"""Beam search over tables of transitions, where every row can be scored by hand."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from tests.models.composed import VOCAB_SIZE, build
from triform.generation import generate
from triform.generation.beam import BLOCK, MANY, likeliest, settled
from triform.generation.rows import closed_up

END, PAD, BEGIN = 0, 36, 4
# Probabilities of 0 (the end), 1, 2, 3 after each of 1, 2, 3 and BEGIN: ending at once is likelier than any row of a
# length, but the mean log-probability of a row grows with its length.
TABLE = {
    1: [0.30, 0.60, 0.05, 0.05],
    2: [0.15, 0.05, 0.70, 0.10],
    3: [0.40, 0.20, 0.10, 0.30],
    BEGIN: [0.34, 0.22, 0.23, 0.21],
}
START_ROW = [BEGIN] * 3


class Transitions(nn.Module):
    """A head that gives the log-probabilities of what follows the last token."""

    def __init__(self, table: dict[int, list[float]], embedding: nn.Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.following = torch.full((VOCAB_SIZE, VOCAB_SIZE), -1e4)
        for token, probabilities in table.items():
            self.following[token, : len(probabilities)] = torch.tensor(probabilities).log()

    def forward(self, hidden: Tensor) -> Tensor:
        return self.following[torch.cdist(hidden, self.embedding.weight).argmin(-1)]


def model_of(table: dict[int, list[float]]) -> nn.Module:
    """A decoder whose hidden state is the embedding of the token itself."""
    model = build("decoder", "model/position=none")
    for layer in model.stack.layers:
        nn.init.zeros_(layer.attention.out_proj.weight)
        nn.init.zeros_(layer.feed_forward.down_proj.weight)
    model.stack.final_norm = nn.Identity()
    model.head = Transitions(table, model.embedding.table)
    return model


def best(n_steps: int, length_penalty: float) -> list[int]:
    """The best of all rows, each scored by the definition."""

    def score(row: tuple[int, ...]) -> float:
        steps = zip((BEGIN, *row), row, strict=False)
        return sum(math.log(TABLE[a][b]) for a, b in steps) / len(row) ** length_penalty

    rows = [(*row, END)[:n_steps] for n in range(n_steps + 1) for row in itertools.product((1, 2, 3), repeat=n)]
    return list(max(rows, key=score))


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("n_steps", [1, 2, 4])
def test_with_beams_for_all_rows_the_best_is_found(n_steps: int, length_penalty: float) -> None:
    """Whatever ends early: a search goes on while a longer row can still win."""
    out = generate(
        model_of(TABLE), torch.tensor([START_ROW]), max_new_tokens=n_steps, num_beams=3**n_steps, eos_id=END,
        pad_id=PAD, length_penalty=length_penalty, early_stopping="never", vocab_size=5,
    )  # fmt: skip
    expected = best(n_steps, length_penalty)
    assert out[0].tolist() == START_ROW + expected


def test_lengths_count_new_tokens_alone() -> None:
    """Tokens of equal probability: with the mean log-probability all lengths are equal, with the sum short ones win."""
    table = {BEGIN: [0.5, 0.5], 1: [0.5, 0.5]}

    def written(length_penalty: float, n_rows: int) -> list[list[int]]:
        return generate(
            model_of(table), torch.tensor([[BEGIN] * 8] * n_rows), max_new_tokens=3, num_beams=2, eos_id=END,
            pad_id=PAD, length_penalty=length_penalty, vocab_size=2,
        )[:, 8:].tolist()  # fmt: skip

    for n_rows in (1, 4):
        assert written(0.0, n_rows) == [[END]] * n_rows
        assert written(0.9, n_rows) == [[END]] * n_rows
    assert {len(row) for row in written(1.1, 4)} == {3}


def test_the_search_goes_on_when_its_best_beam_has_ended() -> None:
    """At first the end is likeliest, but its mean is below that of a long row."""
    table = {BEGIN: [0.5, 0.4, 0.1], 1: [0.02, 0.97, 0.01], 2: [0.9, 0.05, 0.05]}
    model, prompt = model_of(table), torch.tensor([[BEGIN]])
    how = {"max_new_tokens": 6, "eos_id": END, "pad_id": PAD, "vocab_size": 3}
    assert generate(model, prompt, **how).tolist() == [[BEGIN, END]]
    assert generate(model, prompt, num_beams=2, length_penalty=0.0, **how).tolist() == [[BEGIN, END]]
    assert generate(model, prompt, num_beams=2, length_penalty=1.0, **how).tolist() == [[BEGIN, 1, 1, 1, 1, 1, 1]]


@pytest.mark.parametrize("num_beams", [5, 8, 40])
def test_more_beams_than_tokens(num_beams: int) -> None:
    """The first step has fewer continuations than beams."""
    out = generate(
        model_of(TABLE), torch.tensor([START_ROW]), max_new_tokens=3, num_beams=num_beams, eos_id=END, pad_id=PAD,
        length_penalty=1.0, early_stopping="never", vocab_size=4,
    )  # fmt: skip
    assert out[0].tolist() == START_ROW + best(3, 1.0)


def test_a_vocabulary_of_the_end_alone() -> None:
    out = generate(model_of(TABLE), torch.tensor([[1]]), max_new_tokens=3, num_beams=2, eos_id=END, vocab_size=1)
    assert out.tolist() == [[1, END]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_beams": 0}, r"num_beams=0 searches nothing; set it to at least 1"),
        ({"early_stopping": "always"}, "early_stopping='always' is unknown; set it to False, True or 'never'"),
        ({"length_penalty": math.inf}, "length_penalty=inf is beyond what 3 tokens allow; set it to a small"),
        ({"length_penalty": -1e9}, r"length_penalty=-1000000000\.0 is beyond"),
        ({"length_penalty": math.nan}, "length_penalty=nan is beyond"),
        ({"num_beams": 2, "do_sample": True}, "num_beams=2 searches and do_sample draws"),
    ],
)
def test_refuses_in_one_line(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        generate(model_of(TABLE), torch.tensor([[1]]), max_new_tokens=3, **arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("n_tokens", [7, MANY, MANY + BLOCK + 3])
def test_the_likeliest_of_all_sums_are_found(n_tokens: int) -> None:
    """Also in a last block that is not whole, and of a beam that no longer counts."""
    log_probabilities, scores = torch.randn(6, n_tokens), torch.randn(2, 3)
    scores[1, 2] = -torch.inf
    log_probabilities[1, -1] = 9.0
    found, places = likeliest(log_probabilities, scores, 6)
    sums = (scores[:, :, None] + log_probabilities.view(2, 3, n_tokens)).flatten(1)
    expected = sums.topk(6)
    assert torch.equal(found, expected.values)
    assert torch.equal(places, expected.indices)


def test_no_more_are_found_than_there_are() -> None:
    log_probabilities = torch.randn(1, MANY + 5)
    found, places = likeliest(log_probabilities, torch.zeros(1, 1), 2 * MANY)
    assert torch.equal(found[0], log_probabilities[0].sort(descending=True).values)
    assert sorted(places[0].tolist()) == list(range(MANY + 5))


def test_beams_stay_in_their_places() -> None:
    """Only one whose parent has an earlier child moves, into the place of one without."""
    parents = torch.tensor([[2, 1, 2, 2, 0], [4, 3, 2, 1, 0], [1, 1, 1, 1, 1]])
    order = settled(parents)
    assert order.tolist() == [[4, 1, 0, 2, 3], [4, 3, 2, 1, 0], [1, 0, 2, 3, 4]]
    assert parents.take_along_dim(order, dim=1).tolist() == [[0, 1, 2, 2, 2], [0, 1, 2, 3, 4], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("going", "expected"), [("11", [0, 1]), ("01011", [3, 1, 4]), ("11000", [0, 1]), ("001", [2]), ("00", [])]
)
def test_the_last_ones_fill_the_gaps(going: str, expected: list[int]) -> None:
    assert closed_up(torch.tensor([character == "1" for character in going])).tolist() == expected
