"""The rest of a text from its beginning."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
from triform.tasks.source_target import FAMILIES, SourceTarget, after_prefix
from triform.tasks.token_loss import TokenLoss


class PrefixLM(Objective):
    """Predicts a text from its beginning, which is seen both ways (Raffel et al. 2020, sections 3.2.1 and 3.2.3).

    A decoder reads both in one row; an encoder-decoder reads the beginning and an end mark, and predicts the rest.

    Where a text is divided is drawn anew in each epoch, every place equally likely, from (seed, epoch, index) alone;
    of held-out text from the index, the same in all runs. Documents that meet in a row become rows of their own, as a
    row has one prefix; one of a single token has nothing to predict.

    Args:
        label_smoothing, smoothing, z_loss: see `CrossEntropy`.
        sample_tokens: length of the samples shown at the end, in tokens.
    """

    kinds = ("text",)
    families = FAMILIES
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
        self.form = SourceTarget(family, tokenizer, both_ways=True)
        # Of one row the last token is none that is read; of two the end mark stands beside a beginning.
        self.length = seq_len if self.form.two_stacks else seq_len + 1

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        texts, prefixes = [], []
        for example, key in zip(examples, keys, strict=True):
            rng = generator(self.seed, key)
            for ids in documents(example, self.length):
                if len(ids) > 1:
                    texts.append(ids.tolist())
                    prefixes.append(int(rng.integers(1, len(ids))))
        if self.form.two_stacks:
            pairs = list(zip(texts, prefixes, strict=True))
            return self.form.batch([ids[:prefix] for ids, prefix in pairs], [ids[prefix:] for ids, prefix in pairs])
        return self._one_row(texts, prefixes)

    def hidden(self, model: Model, batch: Batch) -> Tensor:
        return self.form.hidden(model, batch)

    def row_lengths(self, lengths: np.ndarray) -> np.ndarray:
        return np.clip(lengths[:, 0] - 1, 0, self.seq_len)

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        samples = []
        for example in examples:
            ids = documents(example, self.seq_len)[0].tolist()
            half = max(len(ids) // 2, 1)
            texts = (ids[:half], self._rest(model, ids[:half]), ids[half:])
            given, written, expected = map(self.tokenizer.decode, texts)
            samples.append(Sample(given, written, expected))
        return samples

    def _rest(self, model: Model, beginning: list[int]) -> list[int]:
        if self.form.two_stacks:
            return self.form.write(model, [beginning], self.sample_tokens)[0]
        prompt = torch.tensor([beginning], device=next(model.parameters()).device)
        room = min(self.sample_tokens, model.max_seq_len - len(beginning) + 1)
        mask = torch.ones_like(prompt, dtype=torch.bool)
        out = after_prefix(model, prompt, mask, room, self.tokenizer.eos_id, self.tokenizer.vocab_size)
        rest: list[int] = out[0, len(beginning) :].tolist()
        return rest

    def _one_row(self, texts: Sequence[list[int]], prefixes: Sequence[int]) -> Batch:
        rows = [ids[:-1] for ids in texts]
        labels = [[IGNORED] * (prefix - 1) + ids[prefix:] for ids, prefix in zip(texts, prefixes, strict=True)]
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
