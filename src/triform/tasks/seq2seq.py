"""One text to another."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from triform.data.tokenizers import Tokenizer
from triform.generation import generate
from triform.layers.losses import CrossEntropy
from triform.tasks.objective import (
    IGNORED,
    Batch,
    Ids,
    Key,
    Measures,
    Model,
    Objective,
    Sample,
    pad,
    padding_mask,
    present,
)


class Seq2Seq(Objective):
    """Target text from source text (Sutskever et al. 2014; Vaswani et al. 2017, section 3).

    An encoder-decoder reads the source and its end mark, and predicts the target and its end mark from a start mark.
    A decoder reads source, separator and target as one row, with loss on the target alone.

    `exact_match` is the share of targets of which every token is the likeliest one after the right ones before it:
    the targets that greedy decoding reproduces, without decoding.

    Args:
        label_smoothing: share of the target's probability spread over the vocabulary, in [0, 1); 0.1 in the paper.
    """

    kinds = ("pairs",)
    families = ("decoder", "encoder_decoder")
    monitor = ("loss", "min")
    measures = ("accuracy", "exact_match")

    def __init__(
        self,
        label_smoothing: float,
        *,
        family: str,
        tokenizer: Tokenizer,
        labels: Sequence[str] | None,
        seq_len: int,
        seed: int,
    ) -> None:
        self.tokenizer, self.seq_len = tokenizer, seq_len
        self.two_stacks = family == "encoder_decoder"
        self.train_loss, self.plain_loss = CrossEntropy(label_smoothing), CrossEntropy(0.0)

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        sources = [self._cut(example["source_ids"]) for example in examples]
        targets = [self._ended(example["target_ids"]) for example in examples]
        return self._two_rows(sources, targets) if self.two_stacks else self._one_row(sources, targets)

    def room(self) -> int:
        return self.seq_len - 1 if self.two_stacks else (self.seq_len - 1) // 2

    def hidden(self, model: Model, batch: Batch) -> Tensor:
        if not self.two_stacks:
            return model(batch["input_ids"], batch.get("padding_mask")).hidden
        return model(
            batch["input_ids"],
            batch["decoder_input_ids"],
            padding_mask=batch.get("padding_mask"),
            decoder_padding_mask=batch.get("decoder_padding_mask"),
        ).hidden

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return model.head(self.hidden(model, batch), batch["labels"], self.train_loss)

    def evaluate(self, model: Model, batch: Batch) -> Measures:
        logits, labels = model.head(self.hidden(model, batch)), batch["labels"]
        target, right = labels != IGNORED, logits.argmax(-1) == labels
        whole = (right | ~target).all(-1) & target.any(-1)
        return Measures(
            self.plain_loss(logits, labels),
            batch["n_targets"],
            {"accuracy": ((right & target).sum(), batch["n_targets"]), "exact_match": (whole.sum(), batch["n_rows"])},
        )

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        sources = [self.tokenizer.decode(self._cut(example["source_ids"])) for example in examples]
        targets = [self.tokenizer.decode(self._cut(example["target_ids"])) for example in examples]
        outputs = self.answer(model, [self._cut(example["source_ids"]) for example in examples])
        return [
            Sample(source, output, target, output == target)
            for source, output, target in zip(sources, outputs, targets, strict=True)
        ]

    def answer(self, model: Model, sources: Sequence[Ids]) -> list[str]:
        """The likeliest target of each source (token ids without marks), greedily."""
        device, tokens = next(model.parameters()).device, self.tokenizer
        mark = tokens.eos_id if self.two_stacks else tokens.sep_id
        rows = [[*source, mark] for source in sources]
        if self.two_stacks:
            ids, mask, skip = pad(rows, tokens.pad_id), padding_mask(rows), 1
        else:  # prompts end together
            longest = max(map(len, rows))
            ids = torch.tensor([[tokens.pad_id] * (longest - len(row)) + row for row in rows])
            mask = torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in rows])
            skip = longest
        room = self.seq_len if self.two_stacks else max(model.max_seq_len - skip, 1)
        out = generate(
            model,
            ids.to(device),
            None if mask is None else mask.to(device),
            max_new_tokens=min(self.seq_len, room),
            eos_id=tokens.eos_id,
            pad_id=tokens.pad_id,
            start_id=tokens.bos_id if self.two_stacks else None,
        )
        return [tokens.decode(row[skip:]) for row in out.tolist()]

    def _cut(self, ids: Ids) -> list[int]:
        return [int(token) for token in ids[: self.room()]]

    def _ended(self, target: Ids) -> list[int]:
        """The target and its end mark; one that is cut has no end to learn."""
        cut = self._cut(target)
        return cut if len(target) > len(cut) else [*cut, self.tokenizer.eos_id]

    def _two_rows(self, sources: list[list[int]], targets: list[list[int]]) -> Batch:
        start, end = self.tokenizer.bos_id, self.tokenizer.eos_id
        inputs = [[*source, end] for source in sources]
        decoder_inputs = [[start, *target[:-1]] for target in targets]
        return present(
            {
                "input_ids": pad(inputs, self.tokenizer.pad_id),
                "padding_mask": padding_mask(inputs),
                "decoder_input_ids": pad(decoder_inputs, self.tokenizer.pad_id),
                "decoder_padding_mask": padding_mask(decoder_inputs),
                "labels": pad(targets, IGNORED),
                "n_tokens": sum(map(len, inputs)) + sum(map(len, decoder_inputs)),
                "n_targets": sum(map(len, targets)),
                "n_rows": len(targets),
            }
        )

    def _one_row(self, sources: list[list[int]], targets: list[list[int]]) -> Batch:
        pairs = list(zip(sources, targets, strict=True))
        rows = [[*source, self.tokenizer.sep_id, *target[:-1]] for source, target in pairs]
        labels = [[IGNORED] * len(source) + target for source, target in pairs]
        return present(
            {
                "input_ids": pad(rows, self.tokenizer.pad_id),
                "padding_mask": padding_mask(rows),
                "labels": pad(labels, IGNORED),
                "n_tokens": sum(map(len, rows)),
                "n_targets": sum(map(len, targets)),
                "n_rows": len(rows),
            }
        )
