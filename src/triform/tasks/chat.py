"""An assistant's turns of a conversation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from triform.data.tokenizers import Tokenizer
from triform.generation import generate
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
from triform.tasks.token_loss import TokenLoss


class Chat(Objective):
    """Predicts what the assistant says, given all that was said before (Ouyang et al. 2022, section 3.5).

    The loss is on the tokens that the data calls learned: the assistant's, with the mark that ends a turn. The one
    shift happens here: position t of `input_ids` is labelled with token t + 1. A conversation longer than `seq_len`
    loses its end.

    Args:
        label_smoothing, smoothing, z_loss: see `CrossEntropy`.
        sample_tokens: of the answers shown at the end, at most.
    """

    kinds = ("chat",)
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
        self.tokenizer, self.seq_len, self.sample_tokens = tokenizer, seq_len, sample_tokens
        self.criterion = TokenLoss(label_smoothing, smoothing, z_loss, tokenizer)

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        rows = [np.asarray(example["ids"][: self.room()], dtype=np.int64) for example in examples]
        inputs = [row[:-1] for row in rows]
        labels = [
            np.where(example["learned"][1 : len(row)], row[1:], IGNORED)
            for example, row in zip(examples, rows, strict=True)
        ]
        return present(
            {
                "input_ids": pad(inputs, self.tokenizer.pad_id),
                "padding_mask": padding_mask(inputs),
                "labels": pad(labels, IGNORED),
                "n_tokens": sum(map(len, inputs)),
                "n_targets": sum(int((row != IGNORED).sum()) for row in labels),
            }
        )

    def room(self) -> int:
        return self.seq_len + 1

    def row_lengths(self, lengths: np.ndarray) -> np.ndarray:
        return np.clip(lengths[:, 0] - 1, 0, self.seq_len)

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        """What the model says, greedily, in place of the assistant's last turn."""
        device, samples = next(model.parameters()).device, []
        for example in examples:
            learned = np.asarray(example["learned"])
            turns = np.flatnonzero(np.diff(learned.astype(int), prepend=0) == 1)
            turns = turns[(turns > 0) & (turns < min(model.max_seq_len, len(learned)))]
            if not len(turns):
                continue
            start = int(turns[-1])
            length = int(learned[start:].argmin()) or len(learned) - start
            prompt, target = example["ids"][:start].tolist(), example["ids"][start : start + length].tolist()
            out = generate(
                model,
                torch.tensor([prompt], device=device),
                max_new_tokens=min(length, self.sample_tokens, model.max_seq_len - start + 1),
                pad_id=self.tokenizer.pad_id,
                vocab_size=self.tokenizer.vocab_size,
            )
            given, written, expected = map(self.tokenizer.decode, (prompt, out[0, start:].tolist(), target))
            samples.append(Sample(given, written, expected))
        return samples
