"""An assistant's turns of a conversation."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from triform.data.prepare import Ragged, Split
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

log = logging.getLogger(__name__)


class Chat(Objective):
    """Predicts what the assistant says, given all that was said before (Ouyang et al. 2022, section 3.5).

    The loss is on the tokens that the data calls learned: the assistant's, with the mark that ends a turn. The one
    shift happens here: position t of `input_ids` is labelled with token t + 1. A conversation longer than `seq_len`
    loses its end, and trains nothing where the assistant has not spoken before.

    Args:
        label_smoothing, smoothing, z_loss: see `CrossEntropy`.
        sample_tokens: of the answers shown at the end, at most.

    Raises:
        ValueError: `look`: in no training conversation the assistant speaks within `seq_len`.
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

    def look(self, train: Split) -> None:
        assert train.values is not None
        n, n_silent = len(train), n_silent_rows(train.values, self.room())
        if n_silent == n:
            raise ValueError(
                f"Chat: in none of the {n} training conversations the assistant speaks within the first {self.room()} "
                f"tokens, so there is nothing to learn; set data.seq_len above {self.seq_len}"
            )
        if n_silent:
            log.warning(
                "in %d of %d training conversations the assistant does not speak within the first %d tokens "
                "(data.seq_len=%d): they train nothing",
                n_silent,
                n,
                self.room(),
                self.seq_len,
            )

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


def n_silent_rows(learned: Ragged, room: int) -> int:
    """In how many rows nothing is learned among the first `room` tokens: the very first one is predicted from none."""
    n_silent, step = 0, 1 << 14
    for first in range(0, len(learned), step):
        ends = learned.ends[first : first + step]
        lengths = learned.lengths[first : first + step]
        start = int(ends[0] - lengths[0])
        flat = np.append(learned.flat[start : int(ends[-1])], [False, False])  # so that every place is one of it
        starts = ends - lengths - start + 1
        places = np.stack([starts, starts + np.clip(lengths, 1, room) - 1], axis=1)
        speaks = np.logical_or.reduceat(flat, places.ravel())[::2] & (places[:, 0] < places[:, 1])
        n_silent += len(speaks) - int(speaks.sum())
    return n_silent
