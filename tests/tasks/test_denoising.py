from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models

from triform.data.tokenizers import Char, Tokenizer
from triform.tasks.denoising import Denoising

WORDS = "It is so. Who? Me?! Yes, you. And"


def build(tokenizer: Tokenizer, family: str = "encoder_decoder", **changed: Any) -> Denoising:
    damage = {"infill_share": 0.3, "mean_span": 3.0, "delete_share": 0.0, "shuffle_sentences": False}
    arguments = damage | {"label_smoothing": 0.0, "smoothing": "torch", "z_loss": 0.0, "seq_len": 64, "seed": 0}
    return Denoising(family=family, tokenizer=tokenizer, labels=None, **arguments | changed)


def test_thirty_of_a_hundred_tokens_become_spans_of_three_on_average(tokenizer: Tokenizer) -> None:
    objective, rng, masks = build(tokenizer), np.random.default_rng(0), 0
    for _ in range(400):
        ids = np.arange(7, 47).repeat(3)[:100]
        source = objective.damage(rng, ids)
        kept = [token for token in source if token != tokenizer.mask_id]
        assert len(kept) == 70
        assert iter_contains(ids.tolist(), kept)
        masks += len(source) - len(kept)
    assert 10 < masks / 400 < 11.5  # 30 over a mean of 3, and the last one is cut


def iter_contains(text: list[int], kept: list[int]) -> bool:
    """Whether `kept` is what is left of `text` in its order."""
    rest = iter(text)
    return all(token in rest for token in kept)


def test_a_source_is_never_longer_than_its_text(tokenizer: Tokenizer) -> None:
    for share in (0.15, 0.3, 0.9):
        objective, rng = build(tokenizer, infill_share=share, mean_span=1.0), np.random.default_rng(1)
        for length in range(1, 21):
            for _ in range(20):
                assert len(objective.damage(rng, np.arange(7, 7 + length))) <= length


class Drawn(np.random.Generator):
    """Draws given lengths, and the rest by chance."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(np.random.PCG64(2))
        self.lengths = iter(lengths)

    def poisson(self, lam: Any = 1.0, size: Any = None) -> int:
        return next(self.lengths)


def test_a_span_of_no_length_inserts_a_mask(tokenizer: Tokenizer) -> None:
    """Ten tokens in spans of 4, 0, 0, 2 and 4, the last cut from 7."""
    objective = build(tokenizer, infill_share=0.5)
    source = objective.damage(Drawn([4, 0, 0, 2, 7]), np.arange(7, 27))
    assert (len(source), source.count(tokenizer.mask_id)) == (15, 5)


def test_sentences_change_places_whole() -> None:
    tokenizer = Char().train(iter([WORDS]))
    objective = build(tokenizer, infill_share=0.0, shuffle_sentences=True)
    ids, rng = np.array(tokenizer.encode(WORDS)), np.random.default_rng(3)
    seen = {tokenizer.decode(objective.damage(rng, ids)) for _ in range(300)}
    sentences = ["It is so.", " Who?", " Me?!", " Yes, you.", " And"]
    assert len(seen) > 60  # of 5! = 120
    assert {len(text) for text in seen} == {len(WORDS)}
    assert all(all(sentence in text for sentence in sentences) for text in seen)


def test_deleted_tokens_leave_no_trace(tokenizer: Tokenizer) -> None:
    objective, rng = build(tokenizer, infill_share=0.0, delete_share=0.2), np.random.default_rng(4)
    ids = np.arange(7, 47)
    left = [objective.damage(rng, ids) for _ in range(500)]
    assert all(iter_contains(ids.tolist(), source) for source in left)
    share = 1 - sum(map(len, left)) / (500 * 40)
    assert abs(share - 0.2) < 4 * np.sqrt(0.2 * 0.8 / (500 * 40))


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_the_target_is_the_text(tokenizer: Tokenizer, family: str) -> None:
    objective = build(tokenizer, family)
    row = {"ids": np.array([8, 9, 10, 3, 11, 12]), "documents": np.array([0, 0, 0, 0, 1, 1])}
    batch = objective.collate([row], [(0, 0)])
    assert [[t for t in labels if t >= 0] for labels in batch["labels"].tolist()] == [[8, 9, 10, 3], [11, 12, 3]]
    assert tokenizer.mask_id in batch["input_ids"]
    assert ("prefix_length" in batch) == (family == "decoder")


@pytest.mark.parametrize("family", ["decoder", "encoder_decoder"])
def test_rows_fit(tokenizer: Tokenizer, family: str) -> None:
    objective = build(tokenizer, family, mean_span=1.0)
    rows = [{"ids": np.full(objective.text_length() + 1, 9)}] * 20
    batch = objective.collate(rows, [(0, i) for i in range(20)])
    assert max(batch["input_ids"].shape[1], batch["labels"].shape[1]) <= 64


def test_noise_is_a_function_of_seed_epoch_and_index(tokenizer: Tokenizer) -> None:
    row = {"ids": np.arange(7, 40)}

    def source(key: tuple[int, int], seed: int = 0) -> tuple[int, ...]:
        return tuple(build(tokenizer, seed=seed).collate([row], [key])["input_ids"][0].tolist())

    assert source((2, 5)) == source((2, 5))
    assert len({source((2, 5)), source((3, 5)), source((2, 6)), source((2, 5), seed=1)}) == 4
    assert source((-1, 5), seed=1) == source((-1, 5)), "held-out text is damaged alike in all runs"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"infill_share": 1.0}, r"infill_share=1\.0 is not in \[0, 1\); set task\.infill_share"),
        ({"delete_share": -0.1}, r"delete_share=-0\.1 is not in \[0, 1\); set task\.delete_share"),
        ({"mean_span": 0.5}, r"mean_span=0\.5 is below 1; set task\.mean_span"),
        ({"infill_share": 0.0}, r".* leave the text as it is; set one of them, such as task\.infill_share=0\.3"),
    ],
)
def test_refusals(tokenizer: Tokenizer, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"Denoising: {message}"):
        build(tokenizer, **changed)


def test_a_tokenizer_without_a_mask_is_refused() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"<pad>": 0, "</s>": 1, "a": 2}, unk_token="a"))
    with pytest.raises(ValueError, match=r"no token that hides others; .* or task=span_corruption"):
        build(Tokenizer(backend, {"pad": "<pad>", "eos": "</s>"}))
