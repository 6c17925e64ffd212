import numpy as np
import pytest
import torch

from triform.data.tokenizers import Tokenizer
from triform.tasks.figures import VectorSum
from triform.tasks.seq2seq import Seq2Seq

EXAMPLES = [
    {"source_ids": np.array([11, 12]), "target_ids": np.array([21, 22, 23])},
    {"source_ids": np.array([13, 14, 15, 16]), "target_ids": np.array([24])},
]
KEYS = [(0, 0), (0, 1)]


def build(tokenizer: Tokenizer, family: str, seq_len: int = 9, generate_metrics: str = "test") -> Seq2Seq:
    return Seq2Seq(
        0.1, "torch", 0.0, generate_metrics, family=family, tokenizer=tokenizer, labels=None, seq_len=seq_len, seed=0
    )


def test_two_stacks_read_source_with_end_and_predict_target_with_end_from_a_start(tokenizer: Tokenizer) -> None:
    batch = build(tokenizer, "encoder_decoder").collate(EXAMPLES, KEYS)
    assert batch["input_ids"].tolist() == [[11, 12, 3, 0, 0], [13, 14, 15, 16, 3]]
    assert batch["decoder_input_ids"].tolist() == [[2, 21, 22, 23], [2, 24, 0, 0]]
    assert batch["labels"].tolist() == [[21, 22, 23, 3], [24, 3, -100, -100]]
    assert (batch["n_tokens"], batch["n_targets"], batch["n_rows"]) == (3 + 5 + 4 + 2, 6, 2)


def test_one_stack_has_loss_on_the_target_alone(tokenizer: Tokenizer) -> None:
    batch = build(tokenizer, "decoder").collate(EXAMPLES, KEYS)
    assert batch["input_ids"].tolist() == [[11, 12, 5, 21, 22, 23], [13, 14, 15, 16, 5, 24]]
    assert batch["labels"].tolist() == [
        [-100, -100, 21, 22, 23, 3],
        [-100, -100, -100, -100, 24, 3],
    ]


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_rows_never_exceed_seq_len(tokenizer: Tokenizer, family: str) -> None:
    long = [{"source_ids": np.arange(7, 27), "target_ids": np.arange(7, 27)}]
    batch = build(tokenizer, family, seq_len=9).collate(long, [(0, 0)])
    assert batch["input_ids"].shape[1] <= 9
    assert batch["labels"].shape[1] <= 9
    assert 3 not in batch["labels"], "a target that is cut has no end to learn"


class Oracle(torch.nn.Module):
    """Says each label with certainty, but for what `wrong` names as (row, position)."""

    def __init__(self, labels: torch.Tensor, wrong: list[tuple[int, int]]) -> None:
        super().__init__()
        said = labels.clamp_min(0).clone()
        for place in wrong:
            said[place] += 1
        self.logits = torch.nn.functional.one_hot(said, 60).float() * 9

    def forward(self, *ids: torch.Tensor, **masks: torch.Tensor) -> "Oracle":
        return self

    @property
    def hidden(self) -> torch.Tensor:
        return self.logits

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def test_exact_match_is_the_share_of_targets_without_a_wrong_token(tokenizer: Tokenizer) -> None:
    objective = build(tokenizer, "encoder_decoder")
    batch = objective.collate(EXAMPLES, KEYS)
    measures = objective.evaluate(Oracle(batch["labels"], wrong=[(0, 2)]), batch)
    assert {name: (int(total), count) for name, (total, count) in measures.ratios.items()} == {
        "accuracy": (5, 6),
        "exact_match": (1, 2),
    }
    padded = objective.evaluate(Oracle(batch["labels"], wrong=[(1, 3)]), batch)  # beyond the end: no target
    assert int(padded.ratios["exact_match"][0]) == 2


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_no_example_gives_a_row_without_targets(tokenizer: Tokenizer, family: str) -> None:
    batch = build(tokenizer, family).collate([], [])
    assert (batch["labels"] == -100).all()
    assert batch["n_targets"] == 0


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_what_is_written_is_compared_with_the_raw_target(
    tokenizer: Tokenizer, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference is the target's text, also where the tokenizer lost some of it or the row was cut."""
    objective = build(tokenizer, family)
    hypotheses = ["the cat sat on the mat", "a dog"]
    references = ["the cat sat on the mat", "the dog ran away quickly today"]
    examples = [
        example | {"texts": {"source": "", "target": text}} for example, text in zip(EXAMPLES, references, strict=True)
    ]
    said = {tuple(example["source_ids"].tolist()): text for example, text in zip(EXAMPLES, hypotheses, strict=True)}
    monkeypatch.setattr(objective.form, "write", lambda model, sources, *more: [said[tuple(s)] for s in sources])
    monkeypatch.setattr(tokenizer, "decode", lambda text: text)
    whole, parts = VectorSum(10), VectorSum(10)
    whole.update(objective.write(None, objective.collate(examples, KEYS))["bleu"])
    for example, key in zip(examples, KEYS, strict=True):
        parts.update(objective.write(None, objective.collate([example], [key]))["bleu"])
    assert whole.compute().equal(parts.compute())
    edits = objective.write(None, objective.collate(examples, KEYS))["edits"].numpy()
    sums = {"bleu": whole.compute().numpy(), "chrf": np.zeros(18), "edits": edits}
    assert objective.conclude(sums)["bleu"] == pytest.approx(56.0479, abs=1e-4)
    assert objective.write(None, objective.collate([], [])) == {}


def test_when_it_writes(tokenizer: Tokenizer) -> None:
    when = {
        choice: [build(tokenizer, "decoder", generate_metrics=choice).writes(final) for final in (False, True)]
        for choice in ("never", "test", "validation")
    }
    assert when == {"never": [False, False], "test": [False, True], "validation": [True, True]}
    assert not build(tokenizer, "decoder", generate_metrics="never").signatures()
    with pytest.raises(ValueError, match=r"generate_metrics='always' is unknown; set task\.generate_metrics to never"):
        build(tokenizer, "decoder", generate_metrics="always")
