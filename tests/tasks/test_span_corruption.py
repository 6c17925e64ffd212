from collections import Counter
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models

from triform.data.tokenizers import Tokenizer
from triform.tasks.span_corruption import SpanCorruption


def build(tokenizer: Tokenizer, family: str = "encoder_decoder", **changed: Any) -> SpanCorruption:
    arguments = {"noise_share": 0.15, "mean_span": 3.0, "n_sentinels": 100, "seq_len": 64, "seed": 0} | changed
    return SpanCorruption(
        label_smoothing=0.0, smoothing="torch", z_loss=0.0, family=family, tokenizer=tokenizer, labels=None, **arguments
    )


def together(objective: SpanCorruption, source: list[int], target: list[int]) -> list[int]:
    """The text that source and target were made of."""
    assert target[-1] == objective.tokenizer.eos_id
    spans: dict[int, list[int]] = {}
    for token in target[:-1]:
        if token in objective.sentinels:
            assert token not in spans
            spans[token] = []
            last = spans[token]
        else:
            last.append(token)
    assert list(spans) == objective.sentinels[: len(spans)], "in order"
    assert [token for token in source if token in objective.sentinels] == list(spans)
    assert all(spans.values())
    return [token for mark in source for token in spans.get(mark, [mark])]


@pytest.mark.parametrize("mean_span", [1.0, 3.0])
@pytest.mark.parametrize("noise_share", [0.15, 0.25, 0.35, 0.45, 0.55])
def test_source_and_target_make_up_the_text(tokenizer: Tokenizer, noise_share: float, mean_span: float) -> None:
    objective = build(tokenizer, noise_share=noise_share, mean_span=mean_span)
    rng = np.random.default_rng(1)
    for length in range(1, 21):
        for _ in range(20):
            ids = rng.integers(7, tokenizer.vocab_size, size=length)
            source, target = objective.corrupt(rng, ids)
            assert together(objective, source, target) == ids.tolist()
            hidden = sum(token < tokenizer.vocab_size for token in target[:-1])
            assert hidden == min(max(round(length * noise_share), 1), max(length - 1, 1))


def test_any_place_of_a_short_text_is_hidden_alike(tokenizer: Tokenizer) -> None:
    """T5's own code always hides the end of a text with a single span."""
    objective, rng = build(tokenizer), np.random.default_rng(2)
    n, hidden = 2000, Counter()
    for _ in range(n):
        _, target = objective.corrupt(rng, np.arange(7, 13))
        hidden[target[1]] += 1
    assert set(hidden) == set(range(7, 13))
    assert all(abs(count - n / 6) < 4 * np.sqrt(n * 5 / 36) for count in hidden.values())


def test_a_row_of_512_is_that_of_t5(tokenizer: Tokenizer) -> None:
    """568 tokens of text become a source of 512 and a target of 114, ends included."""
    objective = build(tokenizer, seq_len=512)
    assert objective.text_length() == 568
    source, target = objective.corrupt(np.random.default_rng(0), np.full(568, 9))
    assert (len(source) + 1, len(target)) == (512, 114)
    batch = objective.collate([{"ids": np.full(569, 9)}], [(0, 0)])
    assert (batch["input_ids"].shape[1], batch["decoder_input_ids"].shape[1]) == (512, 114)


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
@pytest.mark.parametrize(("noise_share", "mean_span"), [(0.15, 3.0), (0.55, 1.0), (0.3, 1.0)])
def test_rows_fit_and_are_filled(tokenizer: Tokenizer, family: str, noise_share: float, mean_span: float) -> None:
    objective = build(tokenizer, family, noise_share=noise_share, mean_span=mean_span)
    batch = objective.collate([{"ids": np.full(objective.text_length() + 1, 9)}], [(0, 0)])
    longest = max(batch["input_ids"].shape[1], batch["labels"].shape[1])
    assert 62 <= longest <= 64


def test_a_decoder_sees_the_source_both_ways_and_learns_the_target(tokenizer: Tokenizer) -> None:
    objective = build(tokenizer, "decoder")
    batch = objective.collate([{"ids": np.arange(7, 18)}], [(0, 3)])
    prefix = int(batch["prefix_length"])
    row, labels = batch["input_ids"][0].tolist(), batch["labels"][0].tolist()
    assert row[prefix - 1] == tokenizer.sep_id
    assert labels[: prefix - 1] == [-100] * (prefix - 1)
    assert labels[prefix - 1 : -1] == row[prefix:]
    assert together(objective, row[: prefix - 1], labels[prefix - 1 :]) == list(range(7, 18))


def test_documents_of_a_row_are_rows_of_their_own(tokenizer: Tokenizer) -> None:
    objective = build(tokenizer)
    end = tokenizer.eos_id
    row = {"ids": np.array([8, 9, 10, end, end, 11, 12, end]), "documents": np.array([0, 0, 0, 0, 1, 2, 2, 2])}
    batch = objective.collate([row], [(0, 0)])
    assert batch["n_rows"] == 2, "nothing is left of an empty document"
    sources = objective.form.sources(batch)
    texts = [
        together(objective, source, [token for token in labels if token >= 0])
        for source, labels in zip(sources, batch["labels"].tolist(), strict=True)
    ]
    assert texts == [[8, 9, 10], [11, 12]]


def test_noise_is_a_function_of_seed_epoch_and_index(tokenizer: Tokenizer) -> None:
    row = {"ids": np.arange(7, 40)}

    def target(key: tuple[int, int], seed: int = 0) -> list[int]:
        return build(tokenizer, seed=seed).collate([row], [key])["labels"][0].tolist()

    assert target((2, 5)) == target((2, 5))
    assert len({tuple(target(key)) for key in ((2, 5), (3, 5), (2, 6))}) == 3
    assert target((2, 5), seed=1) != target((2, 5))
    assert target((-1, 5), seed=1) == target((-1, 5)), "held-out text is hidden alike in all runs"


def test_sentinels_are_beyond_the_vocabulary_the_first_one_last(tokenizer: Tokenizer) -> None:
    objective = build(tokenizer, n_sentinels=20)
    assert objective.extra_tokens == 20
    assert objective.sentinels[0] == tokenizer.vocab_size + 19
    assert objective.sentinels[-1] == tokenizer.vocab_size
    assert tokenizer.decode([11, objective.sentinels[0], 12]) == tokenizer.decode([11, 12])
    assert objective.text([11, objective.sentinels[1], 12]) == f"{tokenizer.decode([11])}<2>{tokenizer.decode([12])}"


def test_a_tokenizers_own_sentinels_are_used() -> None:
    words = ["<pad>", "</s>", "<unk>", "a", "b", "<extra_id_1>", "<extra_id_0>"]
    backend = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    own = Tokenizer(backend, {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"})
    objective = build(own, seq_len=16)
    assert (objective.sentinels, objective.extra_tokens) == ([6, 5], 0)
    with pytest.raises(ValueError, match=r"there are 2 sentinels; set task\.mean_span higher or data\.seq_len lower"):
        build(own, seq_len=64)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"noise_share": 1.0}, r"noise_share=1\.0 is not in \(0, 1\); set task\.noise_share"),
        ({"mean_span": 0.5}, r"mean_span=0\.5 is below 1; set task\.mean_span"),
        ({"n_sentinels": 0}, r"n_sentinels=0 is below 1; set task\.n_sentinels"),
        ({"n_sentinels": 2}, r"data\.seq_len=64 has 3 spans, but there are 2 sentinels; set task\.n_sentinels to 3"),
    ],
)
def test_refusals(tokenizer: Tokenizer, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"SpanCorruption: (a row of )?{message}"):
        build(tokenizer, **changed)


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_no_example_gives_a_row_without_targets(tokenizer: Tokenizer, family: str) -> None:
    batch = build(tokenizer, family).collate([], [])
    assert (batch["labels"] == -100).all()
    assert (batch["n_targets"], batch["n_rows"]) == (0, 0)
