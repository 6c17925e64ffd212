"""Masked-token prediction."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from triform.data.tokenizers import Tokenizer
from triform.tasks.causal_lm import packed
from triform.tasks.noise import generator
from triform.tasks.objective import (
    IGNORED,
    Batch,
    Key,
    Model,
    Objective,
    Sample,
    model_inputs,
    pad,
    padding_mask,
    present,
)
from triform.tasks.token_loss import TokenLoss
from triform.tasks.words import Words


class MaskedLM(Objective):
    """Restores tokens that were hidden (Devlin et al. 2019, section 3.1).

    Of the chosen tokens 80 % become [MASK], 10 % a random ordinary token, 10 % stay. Chosen anew in each epoch, from
    (seed, epoch, index) alone; of held-out text (epoch -1) from the index, the same in all runs. Special tokens are
    never chosen, nor put in the place of others. Each row has at least one target.

    Args:
        mask_share: share of a row's tokens that is chosen, in (0, 1].
        whole_words: choose all tokens of a word or none (BERT's later models), see `Words`; what becomes of each is
            drawn alone, as in BERT's code.
        label_smoothing, smoothing, z_loss: see `CrossEntropy`.

    Raises:
        ValueError: `mask_share` is out of range, or the tokenizer has no [MASK].
    """

    kinds = ("text",)
    families = ("encoder",)
    packs = ("encoder",)
    measures = ("accuracy",)
    derived = ("perplexity",)

    def __init__(
        self,
        mask_share: float,
        whole_words: bool,
        label_smoothing: float,
        smoothing: str,
        z_loss: float,
        *,
        family: str,
        tokenizer: Tokenizer,
        labels: Sequence[str] | None,
        seq_len: int,
        seed: int,
    ) -> None:
        if not 0 < mask_share <= 1:
            raise ValueError(f"MaskedLM: mask_share={mask_share} is not in (0, 1]; set task.mask_share, 0.15 in BERT")
        if tokenizer.mask_id is None:
            raise ValueError(
                "MaskedLM: this tokenizer has no token that hides another; choose one that has, such as tokenizer=bpe"
            )
        self.mask_share, self.tokenizer, self.seed, self.seq_len = mask_share, tokenizer, seed, seq_len
        self.mask_id = tokenizer.mask_id
        self.words = Words(tokenizer) if whole_words else None
        self.criterion = TokenLoss(label_smoothing, smoothing, z_loss, tokenizer)

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        rows = [np.asarray(example["ids"][: self.seq_len], dtype=np.int64) for example in examples]
        noisy = [self._hide(row, key) for row, key in zip(rows, keys, strict=True)]
        batch: Batch = {
            "input_ids": pad([row for row, _ in noisy], self.tokenizer.pad_id),
            "padding_mask": padding_mask(rows),
            "labels": pad([labels for _, labels in noisy], IGNORED),
            "n_tokens": sum(map(len, rows)),
            "n_targets": sum(int((labels != IGNORED).sum()) for _, labels in noisy),
        }
        if any("documents" in example for example in examples):
            batch |= packed(
                [example["documents"][: self.seq_len] if "documents" in example else np.zeros(len(row), dtype=np.int64)
                 for example, row in zip(examples, rows, strict=True)]
            )  # fmt: skip
        return present(batch)

    def row_lengths(self, lengths: np.ndarray) -> np.ndarray:
        return np.minimum(lengths[:, 0], self.seq_len)

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        device = next(model.parameters()).device
        samples = []
        for index, example in enumerate(examples):
            batch = self.collate([{"ids": example["ids"][:48]}], [(0, index)])
            inputs = {key: value.to(device) for key, value in model_inputs(batch).items()}
            guesses = model(**inputs).logits.argmax(-1)[0].cpu()
            hidden = (batch["labels"][0] != IGNORED).nonzero().flatten().tolist()
            shown = batch["input_ids"][0].tolist()
            pieces = [
                f"[{hidden.index(i) + 1}]" if i in hidden else self._text([token]) for i, token in enumerate(shown)
            ]
            samples.append(
                Sample(
                    source="".join(pieces),
                    output=", ".join(f"{n + 1}: {self._text([int(guesses[i])])!r}" for n, i in enumerate(hidden)),
                    target=", ".join(
                        f"{n + 1}: {self._text([int(batch['labels'][0, i])])!r}" for n, i in enumerate(hidden)
                    ),
                )
            )
        return samples

    def _hide(self, row: np.ndarray, key: Key) -> tuple[np.ndarray, np.ndarray]:
        rng = generator(self.seed, key)
        labels, noisy = np.full_like(row, IGNORED), row.copy()
        ordinary = np.flatnonzero(np.isin(row, list(self.tokenizer.special_tokens), invert=True))
        if not len(ordinary):
            return noisy, labels
        # The unit that each ordinary token is of, counted from 0: itself, or its word.
        units = np.arange(len(ordinary)) if self.words is None else np.cumsum(self.words.begins(row))[ordinary]
        units = np.unique(units, return_inverse=True)[1]
        n_units = int(units[-1]) + 1
        picked = rng.random(n_units) < self.mask_share
        if not picked.any():
            picked[rng.integers(n_units)] = True
        chosen = ordinary[picked[units]]
        labels[chosen] = row[chosen]
        fate = rng.random(len(chosen))
        noisy[chosen[fate < 0.8]] = self.mask_id
        swapped = chosen[fate >= 0.9]
        known = self.tokenizer.ordinary_ids
        noisy[swapped] = known[rng.integers(len(known), size=len(swapped))]
        return noisy, labels

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids)
