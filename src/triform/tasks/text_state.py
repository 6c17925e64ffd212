"""The state that stands for a text."""

from collections.abc import Sequence

import torch
from torch import Tensor

from triform.data.tokenizers import Tokenizer
from triform.tasks.objective import Batch, Ids, Model, pad, padding_mask, present

FAMILIES = ("encoder", "decoder", "encoder_decoder")
POOLINGS = ("first", "mean")


class TextState:
    """One state for each text.

    Devlin et al. 2019, section 4; Radford et al. 2018, section 3.2; Lewis et al. 2020, section 3.2. Of the encoder's
    first token ([CLS]) or the mean of all, of the decoder's last token ([EOS]), or of the start mark in the decoder of
    an encoder-decoder.

    Args:
        pooling: "first" or "mean"; of an encoder only.
        seq_len: most tokens of a row, marks counted; what a text has beyond is cut.
        task: its name, for messages.

    Raises:
        ValueError: unknown `pooling`.
    """

    def __init__(self, family: str, tokenizer: Tokenizer, seq_len: int, pooling: str, task: str) -> None:
        if pooling not in POOLINGS:
            raise ValueError(f"{task}: pooling={pooling!r} is unknown; set task.pooling to {' or '.join(POOLINGS)}")
        self.family, self.tokenizer, self.seq_len, self.pooling = family, tokenizer, seq_len, pooling

    def room(self) -> int:
        """Tokens of a text that are read."""
        return self.seq_len - (2 if self.family == "encoder" else 1)

    def row(self, ids: Ids) -> list[int]:
        """Token ids with the marks that the family's head reads from, cut to `seq_len`."""
        tokens = self.tokenizer
        if self.family == "encoder":
            return [tokens.cls_id, *map(int, ids[: self.room()]), tokens.sep_id]
        return [*map(int, ids[: self.room()]), tokens.eos_id]

    def inputs(self, texts: Sequence[Ids]) -> Batch:
        """A batch without labels."""
        rows = [self.row(ids) for ids in texts]
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
        """The state of each text."""
        mask = batch.get("padding_mask")
        if self.family == "encoder_decoder":
            return model(batch["input_ids"], batch["decoder_input_ids"], padding_mask=mask).hidden[:, 0]
        hidden = model(batch["input_ids"], mask).hidden
        if self.family == "encoder":
            return hidden[:, 0] if self.pooling == "first" else _mean(hidden, mask)
        if mask is None:
            return hidden[:, -1]
        return hidden[torch.arange(len(mask), device=mask.device), (mask.sum(-1) - 1).clamp_min(0)]

    def outputs(self, model: Model, texts: Sequence[Ids]) -> Tensor:
        """What the head makes of texts."""
        device = next(model.parameters()).device
        batch = {
            key: value.to(device) if isinstance(value, Tensor) else value for key, value in self.inputs(texts).items()
        }
        return model.head(self.hidden(model, batch))


def _mean(hidden: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return hidden.mean(1)
    weights = mask[..., None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp_min(1)
