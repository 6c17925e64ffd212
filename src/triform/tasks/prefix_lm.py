"""The rest of a text from its beginning."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from triform.data.tokenizers import Tokenizer
from triform.tasks.noise import documents, generator
from triform.tasks.objective import (
    IGNORED,
    Batch,
    Key,
    Model,
    Objective,
    Sample,
    pad,
    padding_mask,
    present,
)
from triform.tasks.source_target import after_prefix
from triform.tasks.token_loss import TokenLoss


class PrefixLM(Objective):
    """Predicts a text from its beginning, which is seen both ways (Raffel et al. 2020, sections 3.2.1 and 3.2.3).

    Where a text is divided is drawn anew in each epoch, every place equally likely, from (seed, epoch, index) alone;
    of held-out text from the index, the same in all runs. Documents that meet in a row become rows of their own, as a
    row has one prefix; one of a single token has nothing to predict.

    Args:
        label_smoothing, smoothing, z_loss: see `CrossEntropy`.
        sample_tokens: length of the samples shown at the end, in tokens.
    """

    kinds = ("text",)
    families = ("decoder",)
    packs = ("decoder",)
    measures = ("accuracy",)
    derived = ("perplexity",)

    def __init__(
        self,
        label_smoothing: float,
        smoothing: str,
        z_loss: float,
        sample_tokens: int,
        *,
        family: str,
        tokenizer: Tokenizer,
        labels: Sequence[str] | None,
        seq_len: int,
        seed: int,
    ) -> None:
        self.tokenizer, self.seq_len, self.seed, self.sample_tokens = tokenizer, seq_len, seed, sample_tokens
        self.criterion = TokenLoss(label_smoothing, smoothing, z_loss, tokenizer)

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        rows, labels, prefixes = [], [], []
        for example, key in zip(examples, keys, strict=True):
            rng = generator(self.seed, key)
            for ids in documents(example, self.seq_len + 1):
                if len(ids) < 2:
                    continue
                prefix = int(rng.integers(1, len(ids)))
                rows.append(ids[:-1])
                labels.append([IGNORED] * (prefix - 1) + ids[prefix:].tolist())
                prefixes.append(prefix)
        return present(
            {
                "input_ids": pad(rows, self.tokenizer.pad_id),
                "padding_mask": padding_mask(rows),
                "prefix_length": torch.tensor(prefixes or [0]),
                "labels": pad(labels, IGNORED),
                "n_tokens": sum(map(len, rows)),
                "n_targets": sum(len(row) - prefix + 1 for row, prefix in zip(rows, prefixes, strict=True)),
            }
        )

    def row_lengths(self, lengths: np.ndarray) -> np.ndarray:
        return np.clip(lengths[:, 0] - 1, 0, self.seq_len)

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        device, samples = next(model.parameters()).device, []
        for example in examples:
            ids = documents(example, self.seq_len)[0]
            prefix = torch.as_tensor(ids[: max(len(ids) // 2, 1)], device=device)[None]
            room = min(self.sample_tokens, model.max_seq_len - prefix.shape[1] + 1)
            mask, tokens = torch.ones_like(prefix, dtype=torch.bool), self.tokenizer
            out = after_prefix(model, prefix, mask, room, tokens.eos_id, tokens.vocab_size)
            texts = (prefix[0], out[0, prefix.shape[1] :], ids[prefix.shape[1] :])
            given, written, expected = (self.tokenizer.decode(text.tolist()) for text in texts)
            samples.append(Sample(given, written, expected))
        return samples
