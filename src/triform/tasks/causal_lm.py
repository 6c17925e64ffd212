"""Next-token prediction."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from triform.data.tokenizers import Tokenizer
from triform.generation import generate
from triform.tasks.objective import (
    IGNORED,
    Batch,
    Ids,
    Key,
    Model,
    Objective,
    Sample,
    pad,
    padding_mask,
    present,
)
from triform.tasks.token_loss import TokenLoss


class CausalLM(Objective):
    """Predicts each token from those before it (Radford et al. 2018, equation 1).

    The one shift happens here: position t of `input_ids` is labelled with token t + 1. Documents in one row do not
    see each other. The end mark of a document opens the next one, so that every token but a row's first is predicted.

    Args:
        label_smoothing, smoothing, z_loss: see `CrossEntropy`.
        prompt: text that the sample shown at the end continues; null: the beginning of the held-out text.
        sample_tokens: length of that sample in tokens.
        temperature: of that sample; 0 takes the likeliest token.
    """

    kinds = ("text",)
    families = ("decoder",)
    packs = ("decoder",)
    measures = ("accuracy",)
    derived = ("perplexity", "bits_per_byte")

    def __init__(
        self,
        label_smoothing: float,
        smoothing: str,
        z_loss: float,
        prompt: str | None,
        sample_tokens: int,
        temperature: float,
        *,
        family: str,
        tokenizer: Tokenizer,
        labels: Sequence[str] | None,
        seq_len: int,
        seed: int,
    ) -> None:
        self.prompt, self.sample_tokens, self.temperature = prompt, sample_tokens, temperature
        self.tokenizer, self.seed = tokenizer, seed
        self.criterion = TokenLoss(label_smoothing, smoothing, z_loss, tokenizer)

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        rows = [np.append(example["opening"], example["ids"]) if "opening" in example else example["ids"]
                for example in examples]  # fmt: skip
        inputs = [row[:-1] for row in rows]
        labels = [row[1:] for row in rows]
        batch: Batch = {
            "input_ids": pad(inputs, self.tokenizer.pad_id),
            "padding_mask": padding_mask(inputs),
            "labels": pad(labels, IGNORED),
            "n_tokens": sum(map(len, inputs)),
            "n_targets": sum(map(len, labels)),
        }
        if any("documents" in example for example in examples):
            batch |= packed(
                [example["documents"][1:] if "documents" in example else np.zeros(len(row), dtype=np.int64)
                 for example, row in zip(examples, inputs, strict=True)]
            )  # fmt: skip
        return present(batch)

    def row_lengths(self, lengths: np.ndarray) -> np.ndarray:
        return lengths[:, 0]

    def derive(self, loss: float, n_targets: float, n_bytes: int | None) -> dict[str, float]:
        figures = super().derive(loss, n_targets, n_bytes)
        if n_bytes:
            figures["bits_per_byte"] = loss * n_targets / math.log(2) / n_bytes
        return figures

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        if self.prompt is not None:
            prompts = [self.tokenizer.encode(self.prompt)]
        else:
            prompts = [list(map(int, example["ids"][: max(1, len(example["ids"]) // 4)])) for example in examples]
        return [
            Sample(self.tokenizer.decode(prompt), self.tokenizer.decode(self._continuation(model, prompt)))
            for prompt in prompts
            if prompt
        ]

    def _continuation(self, model: Model, prompt: list[int]) -> list[int]:
        room = min(self.sample_tokens, model.max_seq_len - len(prompt))
        device = next(model.parameters()).device
        ids = generate(
            model,
            torch.tensor([prompt], device=device),
            max_new_tokens=max(room, 1),
            do_sample=self.temperature > 0,
            temperature=self.temperature or 1.0,
            pad_id=self.tokenizer.pad_id,
            vocab_size=self.tokenizer.vocab_size,
            seed=self.seed,
        )
        return ids[0, len(prompt) :].tolist()


def packed(documents: Sequence[Ids]) -> Batch:
    """Document of each token, counted from 1 within the row (0: padding), and its position in its document."""
    numbers, positions = [], []
    for row in documents:
        lengths = [len(list(run)) for _, run in itertools.groupby(row)]
        numbers.append([n for n, length in enumerate(lengths, start=1) for _ in range(length)])
        positions.append([p for length in lengths for p in range(length)])
    return {"document_ids": pad(numbers, 0), "position_ids": pad(positions, 0)}
