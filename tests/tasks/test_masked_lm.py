import re

import numpy as np
import pytest

from triform.data.tokenizers import Char, Tokenizer
from triform.tasks.masked_lm import MaskedLM


def build(tokenizer: Tokenizer, share: float = 0.15, seed: int = 0, whole_words: bool = False) -> MaskedLM:
    return MaskedLM(
        share, whole_words, 0.0, "torch", 0.0,
        family="encoder", tokenizer=tokenizer, labels=None, seq_len=100, seed=seed,
    )  # fmt: skip


def test_shares_are_those_of_bert_and_special_tokens_stay(tokenizer: Tokenizer) -> None:
    rng = np.random.default_rng(3)
    rows = [rng.integers(7, tokenizer.vocab_size, size=100) for _ in range(400)]
    for row in rows:
        row[::10] = tokenizer.eos_id
    batch = build(tokenizer).collate([{"ids": row} for row in rows], [(0, i) for i in range(400)])
    before, after, labels = np.stack(rows), batch["input_ids"].numpy(), batch["labels"].numpy()
    chosen = labels != -100
    assert not chosen[:, ::10].any()
    assert (after[~chosen] == before[~chosen]).all()
    assert (labels[chosen] == before[chosen]).all()
    n, share = 400 * 90, chosen.sum() / (400 * 90)
    assert abs(share - 0.15) < 3 * np.sqrt(0.15 * 0.85 / n)
    masked = (after[chosen] == tokenizer.mask_id).mean()
    kept = (after[chosen] == before[chosen]).mean()
    k = chosen.sum()
    by_chance = 0.1 / (tokenizer.vocab_size - 7)  # a random token may be the right one
    assert abs(masked - 0.8) < 3 * np.sqrt(0.8 * 0.2 / k)
    assert abs(kept - 0.1 - by_chance) < 3 * np.sqrt(0.1 * 0.9 / k)
    assert (after[chosen][after[chosen] != tokenizer.mask_id] >= 7).all()
    assert batch["n_targets"] == k


def test_noise_is_a_function_of_seed_epoch_and_index(tokenizer: Tokenizer) -> None:
    row = {"ids": np.arange(7, 40)}
    one = build(tokenizer).collate([row], [(2, 5)])["input_ids"]
    assert one.equal(build(tokenizer).collate([{"ids": row["ids"]}, row], [(0, 1), (2, 5)])["input_ids"][1:])
    for other in ((3, 5), (2, 6)):
        assert not one.equal(build(tokenizer).collate([row], [other])["input_ids"])
    assert not one.equal(build(tokenizer, seed=1).collate([row], [(2, 5)])["input_ids"])


def test_held_out_text_is_masked_alike_in_all_runs(tokenizer: Tokenizer) -> None:
    rows = [{"ids": np.arange(7, 40)}] * 2
    first, second = (build(tokenizer, seed=seed).collate(rows, [(-1, 5), (-1, 6)])["input_ids"] for seed in (0, 1))
    assert first.equal(second)
    assert not first[0].equal(first[1])


def test_a_short_row_still_has_a_target(tokenizer: Tokenizer) -> None:
    for index in range(50):
        assert build(tokenizer, share=0.01).collate([{"ids": np.array([9])}], [(0, index)])["n_targets"] == 1


def test_a_row_of_special_tokens_has_none(tokenizer: Tokenizer) -> None:
    assert build(tokenizer).collate([{"ids": np.array([3, 3])}], [(0, 0)])["n_targets"] == 0


def test_share_out_of_range_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"MaskedLM: mask_share=0 is not in \(0, 1\]; set task\.mask_share"):
        build(tokenizer, share=0)


def test_whole_words_are_chosen_or_none_of_them() -> None:
    text = "the cat sat on mats, and a dog (his) ran 4 miles"
    letters = Char().train(iter([text]))
    ids = np.array(letters.encode(text))
    words = [match.span() for match in re.finditer(r"\w+|\W", text)]
    objective = build(letters, 0.15, whole_words=True)
    batch = objective.collate([{"ids": ids}] * 400, [(0, i) for i in range(400)])
    chosen = batch["labels"].numpy() >= 0
    for start, end in words:
        assert (chosen[:, start:end].all(1) | ~chosen[:, start:end].any(1)).all(), text[start:end]
    assert abs(chosen.mean() - 0.15) < 0.015
    fates = batch["input_ids"].numpy()[:, 4:7][chosen[:, 4:7].all(1)] == letters.mask_id
    assert (fates.any(1) & ~fates.all(1)).any(), "each token of a word has a fate of its own"


def test_special_tokens_of_a_row_are_never_chosen_with_a_word(tokenizer: Tokenizer) -> None:
    ids = np.array([7, 8, tokenizer.eos_id, 9, 10, tokenizer.unk_id])
    batch = build(tokenizer, 0.9, whole_words=True).collate([{"ids": ids}] * 50, [(0, i) for i in range(50)])
    assert (batch["labels"][:, [2, 5]] == -100).all()
