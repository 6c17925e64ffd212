"""One label for a text."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from triform.data.tokenizers import Tokenizer
from triform.layers.losses import CrossEntropy
from triform.models.heads import ClassificationHead, Transform
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


class Classification(Objective):
    """Chooses one class (Devlin et al. 2019, section 4; Radford et al. 2018, section 3.2; Lewis et al. 2020, 3.2).

    The head reads one state: of the encoder's first token ([CLS]) or their mean, of the decoder's last token ([EOS]),
    or of the start mark in the decoder of an encoder-decoder.

    Args:
        label_smoothing: share of the probability spread over the classes, in [0, 1).
        pooling: "first" or "mean"; of an encoder only.
        dropout: before the classifier, in [0, 1).

    Raises:
        ValueError: unknown `pooling`, or fewer than two classes.
    """

    kinds = ("labelled",)
    families = ("encoder", "decoder", "encoder_decoder")
    monitor = ("accuracy", "max")
    measures = ("accuracy",)

    def __init__(
        self,
        label_smoothing: float,
        pooling: str,
        dropout: float,
        *,
        family: str,
        tokenizer: Tokenizer,
        labels: Sequence[str] | None,
        seq_len: int,
        seed: int,
    ) -> None:
        if pooling not in ("first", "mean"):
            raise ValueError(f"Classification: pooling={pooling!r} is unknown; set task.pooling to first or mean")
        if labels is None or len(labels) < 2:
            raise ValueError(
                f"Classification: the training data has the labels {list(labels or [])}, at least two are needed;"
                " check data.label_column"
            )
        self.family, self.tokenizer, self.labels, self.seq_len = family, tokenizer, list(labels), seq_len
        self.pooling, self.dropout = pooling, dropout
        self.train_loss, self.plain_loss = CrossEntropy(label_smoothing), CrossEntropy(0.0)

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        rows = [self.row(example["ids"]) for example in examples]
        return self.inputs(rows) | {
            "labels": torch.tensor([int(example["label"]) for example in examples] or [IGNORED]),
            "n_targets": len(rows),
        }

    def row(self, ids: Ids) -> list[int]:
        """Token ids with the marks that the family's head reads from, cut to `seq_len`."""
        tokens = self.tokenizer
        if self.family == "encoder":
            return [tokens.cls_id, *map(int, ids[: self.room()]), tokens.sep_id]
        return [*map(int, ids[: self.room()]), tokens.eos_id]

    def room(self) -> int:
        return self.seq_len - (2 if self.family == "encoder" else 1)

    def inputs(self, rows: Sequence[Ids]) -> Batch:
        """Batch without labels."""
        batch: Batch = {
            "input_ids": pad(rows, self.tokenizer.pad_id),
            "padding_mask": padding_mask(rows),
            "n_tokens": sum(map(len, rows)),
        }
        if self.family == "encoder_decoder":
            batch["decoder_input_ids"] = torch.full((len(rows) or 1, 1), self.tokenizer.start_id)
            batch["n_tokens"] += len(rows)
        return present(batch)

    def hidden(self, model: Model, batch: Batch) -> Tensor:
        mask = batch.get("padding_mask")
        if self.family == "encoder_decoder":
            return model(batch["input_ids"], batch["decoder_input_ids"], padding_mask=mask).hidden[:, 0]
        hidden = model(batch["input_ids"], mask).hidden
        if self.family == "encoder":
            return hidden[:, 0] if self.pooling == "first" else _mean(hidden, mask)
        return (
            hidden[:, -1]
            if mask is None
            else hidden[torch.arange(len(mask), device=mask.device), (mask.sum(-1) - 1).clamp_min(0)]
        )

    def loss(self, model: Model, batch: Batch) -> Tensor:
        return model.head(self.hidden(model, batch), batch["labels"], self.train_loss)

    def evaluate(self, model: Model, batch: Batch) -> Measures:
        logits, labels = model.head(self.hidden(model, batch)), batch["labels"]
        right = (logits.argmax(-1) == labels).sum()
        return Measures(self.plain_loss(logits, labels), batch["n_targets"], {"accuracy": (right, len(labels))})

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        device = next(model.parameters()).device
        batch = self.inputs([self.row(example["ids"]) for example in examples])
        batch = {key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()}
        guesses = model.head(self.hidden(model, batch)).argmax(-1).tolist()
        return [
            Sample(
                self.tokenizer.decode(list(example["ids"])),
                self.labels[guess],
                self.labels[int(example["label"])],
                guess == int(example["label"]),
            )
            for example, guess in zip(examples, guesses, strict=True)
        ]

    def model_arguments(self) -> dict[str, Any]:
        dense = partial(Transform, activation=nn.Tanh, norm=None, bias=True)
        return {"head": partial(ClassificationHead, n_classes=len(self.labels), dropout=self.dropout, transform=dense)}


def _mean(hidden: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return hidden.mean(1)
    weights = mask[..., None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1)
