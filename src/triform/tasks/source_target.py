"""A source and a target in the form of each family."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from triform.data.tokenizers import Tokenizer
from triform.generation import generate
from triform.tasks.objective import IGNORED, Batch, Model, model_inputs, pad, padding_mask, present

FAMILIES = ("decoder", "encoder_decoder")


class SourceTarget:
    """Batches of sources and targets, and what a model writes for a source.

    An encoder-decoder reads the source and an end mark, and predicts the target from a start mark. A decoder reads
    source, separator and target as one row, with loss on the target alone.

    Args:
        both_ways: a decoder's source is seen both ways (Raffel et al. 2020, section 3.2.1), else each of its tokens
            from the left only.
        extra_tokens: marks beyond the tokenizer's vocabulary that a model writes, too; of what pads its table nothing.
    """

    def __init__(self, family: str, tokenizer: Tokenizer, both_ways: bool, extra_tokens: int = 0) -> None:
        self.two_stacks = family == "encoder_decoder"
        if tokenizer.is_separate and not self.two_stacks:
            raise ValueError(
                f"{type(self).__name__}: a {family} has one table of tokens, and source and target have a vocabulary "
                "each; set tokenizer.separate=false or model=encoder_decoder"
            )
        self.tokenizer, self.both_ways = tokenizer, both_ways
        self.n_tokens = tokenizer.vocab_size + extra_tokens

    def length(self, source: int, target: int) -> int:
        """Tokens of the longest row that a model reads for a source and a target of so many, its end included."""
        return max(source + 1, target) if self.two_stacks else source + target

    def batch(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> Batch:
        """The targets bring their own end."""
        return self._two_rows(sources, targets) if self.two_stacks else self._one_row(sources, targets)

    def hidden(self, model: Model, batch: Batch) -> Tensor:
        if not self.two_stacks:
            return model(**model_inputs(batch)).hidden
        return model(
            batch["input_ids"],
            batch["decoder_input_ids"],
            padding_mask=batch.get("padding_mask"),
            decoder_padding_mask=batch.get("decoder_padding_mask"),
        ).hidden

    def sources(self, batch: Batch) -> list[list[int]]:
        """What `batch` was made of."""
        ids, mask = batch["input_ids"].tolist(), batch.get("padding_mask")
        if self.two_stacks:
            lengths = [len(row) for row in ids] if mask is None else mask.sum(-1).tolist()
            return [row[: length - 1] for row, length in zip(ids, lengths, strict=True)]
        first = (batch["labels"] != IGNORED).int().argmax(-1).tolist()
        return [row[:length] for row, length in zip(ids, first, strict=True)]

    def write(
        self,
        model: Model,
        sources: Sequence[list[int]],
        limit: int,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        on_token: Callable[[Tensor], bool] | None = None,
    ) -> list[list[int]]:
        """The likeliest target of each source without its end, greedily or, of what is not seen both ways, by a search
        with `num_beams`; at most `limit` tokens. `on_token` is as of `triform.generation.generate`; a source that is
        seen both ways tells it nothing."""
        tokens, device = self.tokenizer, next(model.parameters()).device
        rows = [[*source, tokens.source.eos_id if self.two_stacks else tokens.sep_id] for source in sources]
        longest = max(map(len, rows))
        if self.two_stacks:
            ids, mask, skip = pad(rows, tokens.source.pad_id), padding_mask(rows), 1
        else:  # prompts end together
            ids = torch.tensor([[tokens.pad_id] * (longest - len(row)) + row for row in rows])
            mask = torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in rows])
            skip = longest
        ids, mask = ids.to(device), None if mask is None else mask.to(device)
        room = min(limit, limit if self.two_stacks else max(model.max_seq_len - skip, 1))
        if self.both_ways and not self.two_stacks:
            assert mask is not None
            assert num_beams == 1
            out = after_prefix(model, ids, mask, room, tokens.eos_id, self.n_tokens)
        else:
            out = generate(
                model,
                ids,
                mask,
                max_new_tokens=room,
                num_beams=num_beams,
                length_penalty=length_penalty,
                eos_id=tokens.eos_id,
                pad_id=tokens.pad_id,
                vocab_size=self.n_tokens,
                start_id=tokens.start_id if self.two_stacks else None,
                on_token=on_token,
            )
        return [_until(row[skip:], tokens.eos_id) for row in out.tolist()]

    def _two_rows(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> Batch:
        inputs = [[*source, self.tokenizer.source.eos_id] for source in sources]
        decoder_inputs = [[self.tokenizer.start_id, *target[:-1]] for target in targets]
        return present(
            {
                "input_ids": pad(inputs, self.tokenizer.source.pad_id),
                "padding_mask": padding_mask(inputs),
                "decoder_input_ids": pad(decoder_inputs, self.tokenizer.pad_id),
                "decoder_padding_mask": padding_mask(decoder_inputs),
                "labels": pad(targets, IGNORED),
                "n_tokens": sum(map(len, inputs)) + sum(map(len, decoder_inputs)),
                "n_targets": sum(map(len, targets)),
                "n_rows": len(targets),
            }
        )

    def _one_row(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> Batch:
        pairs = list(zip(sources, targets, strict=True))
        rows = [[*source, self.tokenizer.sep_id, *target[:-1]] for source, target in pairs]
        labels = [[IGNORED] * len(source) + target for source, target in pairs]
        prefixes = torch.tensor([len(source) + 1 for source in sources] or [0])
        return present(
            {
                "input_ids": pad(rows, self.tokenizer.pad_id),
                "padding_mask": padding_mask(rows),
                "prefix_length": prefixes if self.both_ways else None,
                "labels": pad(labels, IGNORED),
                "n_tokens": sum(map(len, rows)),
                "n_targets": sum(map(len, targets)),
                "n_rows": len(targets),
            }
        )


def _until(row: list[int], end: int) -> list[int]:
    return row[: row.index(end)] if end in row else row


@torch.inference_mode()
def after_prefix(model: Model, ids: Tensor, mask: Tensor, n_steps: int, eos_id: int, n_tokens: int) -> Tensor:
    """Greedy continuation of prompts that are seen both ways, each step reading everything anew: for samples.

    Args:
        n_tokens: those beyond it are never written.
    """
    prefix = torch.full((len(ids),), ids.shape[1], device=ids.device)
    was_training = model.training
    model.eval()
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for _ in range(n_steps):
        hidden = model(ids, mask, prefix_length=prefix).hidden[:, -1]
        tokens = model.head(hidden)[:, :n_tokens].argmax(-1)
        ids = torch.cat((ids, tokens[:, None]), dim=1)
        mask = torch.cat((mask, torch.ones_like(mask[:, :1])), dim=1)
        ended |= tokens == eos_id
        if bool(ended.all()):
            break
    model.train(was_training)
    return ids
