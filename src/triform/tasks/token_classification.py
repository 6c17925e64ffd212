"""A tag for each word."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triform.data.prepare import Split
from triform.data.tokenise import words_of
from triform.data.tokenizers import Tokenizer
from triform.models.heads import ClassificationHead
from triform.tasks.choice import Choice, known_labels
from triform.tasks.f1 import micro_f1
from triform.tasks.objective import (
    IGNORED,
    Batch,
    Criterion,
    Key,
    Measures,
    Model,
    Objective,
    Sample,
    model_inputs,
    pad,
    padding_mask,
    present,
)

UNREAD = "?"
"""In place of a tag: the model has not read so far."""


class TokenClassification(Objective):
    """Tags each word of a text (Devlin et al. 2019, section 5.3).

    An encoder tells a word's tag from its first token, as in BERT; a decoder, which has not seen the rest of the word
    then, from its last. `accuracy` is the share of words that are tagged right, `macro_f1` the mean over tags. Where
    all tags are O, B- and I- ones, `span_f1` is that of the entities that they mark, as conlleval counts them: right if
    first word, last word and kind are; an I- that continues nothing begins one.

    Args:
        label_smoothing: share of the probability spread over the tags, in [0, 1).
        class_weights: see `Classification`; "balanced" counts words.
        dropout: before the classifier, in [0, 1).

    Raises:
        ValueError: unknown `class_weights`, fewer than two tags; see also `CrossEntropy`.
    """

    kinds = ("tagged",)
    families = ("encoder", "decoder")
    packs = ("encoder", "decoder")
    measures = ("accuracy",)

    def __init__(
        self,
        label_smoothing: float,
        class_weights: Sequence[float] | str | None,
        dropout: float,
        *,
        family: str,
        tokenizer: Tokenizer,
        labels: Sequence[str] | None,
        seq_len: int,
        seed: int,
    ) -> None:
        self.labels, self.dropout = known_labels("TokenClassification", labels, "data.tags_column"), dropout
        self.tokenizer, self.seq_len, self.two_sided = tokenizer, seq_len, family == "encoder"
        self.criterion: TagChoice = TagChoice("TokenClassification", self.labels, label_smoothing, class_weights)
        has_spans = self.criterion.spans is not None
        self.derived = ("macro_f1", "span_f1") if has_spans else ("macro_f1",)
        self.monitor = ("span_f1", "max") if has_spans else ("macro_f1", "max")

    def look(self, train: Split) -> None:
        self.criterion.choice.count(None if train.values is None else train.values.flat)

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        room, rows, tags = self.room(), [], []
        for example in examples:
            ids, own = example["ids"][:room].tolist(), np.asarray(example["tags"][:room], dtype=np.int64)
            if self.two_sided:
                rows.append([self.tokenizer.cls_id, *ids, self.tokenizer.sep_id])
                tags.append([IGNORED, *own.tolist(), IGNORED])
            else:
                rows.append(ids)
                tags.append(at_the_last_token(own).tolist())
        return present(
            {
                "input_ids": pad(rows, self.tokenizer.pad_id),
                "padding_mask": padding_mask(rows),
                "labels": pad(tags, IGNORED),
                "n_tokens": sum(map(len, rows)),
                "n_targets": sum(tag != IGNORED for row in tags for tag in row),
            }
        )

    def row_lengths(self, lengths: np.ndarray) -> np.ndarray:
        return np.minimum(lengths[:, 0], self.room()) + (2 if self.two_sided else 0)

    def room(self) -> int:
        return self.seq_len - 2 if self.two_sided else self.seq_len

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        device, samples = next(model.parameters()).device, []
        for example in examples:
            batch = self.collate([example], [(0, 0)])
            inputs = {key: value.to(device) for key, value in model_inputs(batch).items()}
            guesses = model(**inputs).logits.argmax(-1)[0].cpu()
            tagged = batch["labels"][0] != IGNORED
            ids, tags = example["ids"][: self.room()], example["tags"][: self.room()]
            words = [self.tokenizer.decode(word.tolist()).strip() for word in np.split(ids, np.flatnonzero(tags >= 0))]
            output, target = (
                " ".join(f"{word}/{self.labels[tag]}" for word, tag in zip(words[1:], one.tolist(), strict=True))
                for one in (guesses[tagged], batch["labels"][0][tagged])
            )
            samples.append(Sample(self.tokenizer.decode(ids.tolist()), output, target, output == target))
        return samples

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts, their words, which stand between blanks, tokenised one by one as in training."""
        return [ids.tolist() for ids, _ in map(self._words, texts)]

    def says(self, model: Model, texts: Sequence[str]) -> list[str]:
        """The tag of each word of a text, with a blank between them; `UNREAD` for words beyond what the model reads."""
        rows = [self._words(text) for text in texts]
        batch = self.collate([{"ids": ids, "tags": tags} for ids, tags in rows], [(0, 0)] * len(rows))
        device = next(model.parameters()).device
        inputs = {key: value.to(device) for key, value in model_inputs(batch).items()}
        guesses = model(**inputs).logits.argmax(-1).cpu()
        said = []
        for guess, labels, (_, tags) in zip(guesses, batch["labels"], rows, strict=True):
            found = [self.labels[tag] for tag in guess[labels != IGNORED].tolist()]
            said.append(" ".join(found + [UNREAD] * (int((tags != IGNORED).sum()) - len(found))))
        return said

    def _words(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids of a text's words, and tags that say where its words stand."""
        words = [word if i == 0 else f" {word}" for i, word in enumerate(text.split())]
        found = words_of(words, self.tokenizer)
        tags = [np.where(np.arange(len(ids)) == place, 0, IGNORED) for ids, place in found]
        return np.concatenate([ids for ids, _ in found]).astype(np.int64), np.concatenate(tags)

    def model_arguments(self) -> dict[str, Any]:
        head = partial(ClassificationHead, n_classes=len(self.labels), dropout=self.dropout, transform=None)
        return {"head": head}


def at_the_last_token(tags: np.ndarray) -> np.ndarray:
    """Tags that stand at the first token of each word, moved to its last."""
    first = np.flatnonzero(tags != IGNORED)
    moved = np.full_like(tags, IGNORED)
    moved[np.append(first[1:], len(tags))[: len(first)] - 1] = tags[first]
    return moved


class TagChoice(Criterion):
    """A `Choice` for each word, and the spans that tags mark."""

    def __init__(
        self, task: str, labels: Sequence[str], label_smoothing: float, class_weights: Sequence[float] | str | None
    ) -> None:
        self.choice = Choice(task, labels, label_smoothing, class_weights)
        self.spans = Spans(labels) if Spans.fit(labels) else None

    def loss(self, model: Model, hidden: Tensor, batch: Batch) -> Tensor:
        return self.choice.loss(model, hidden, batch)

    def evaluate(self, model: Model, hidden: Tensor, batch: Batch) -> Measures:
        logits, labels = model.head(hidden), batch["labels"]
        measures = self.choice.measures(logits, batch)
        if self.spans is None:
            return measures
        guesses = logits.argmax(-1).masked_fill(labels == IGNORED, IGNORED)
        return replace(measures, sums={**measures.sums, "spans": self.spans.counts(guesses, labels)})

    def sums(self) -> Mapping[str, int]:
        return {**self.choice.sums(), **({} if self.spans is None else {"spans": 3})}

    def conclude(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        figures = self.choice.conclude(sums)
        return figures if self.spans is None else figures | {"span_f1": micro_f1(sums["spans"])}


class Spans:
    """The entities that tags mark: B-KIND on the first word of one, I-KIND on those that go on, O on all others."""

    def __init__(self, labels: Sequence[str]) -> None:
        kinds = sorted({label[2:] for label in labels if label != "O"})
        self.kind = torch.tensor([-1 if label == "O" else kinds.index(label[2:]) for label in labels])
        self.is_first = torch.tensor([label.startswith("B-") for label in labels])

    @staticmethod
    def fit(labels: Sequence[str]) -> bool:
        """Whether these are such tags."""
        return any(label != "O" for label in labels) and all(
            label == "O" or label.startswith(("B-", "I-")) for label in labels
        )

    def counts(self, guesses: Tensor, truth: Tensor) -> Tensor:
        """Spans that are guessed right, guessed, and true, in rows of tags, -100 where there is none."""
        words = truth != IGNORED
        order = words.int().argsort(dim=-1, descending=True, stable=True)  # the words of each row, side by side
        guessed, true = (self._starts_and_ends(tags.gather(-1, order)) for tags in (guesses, truth))
        right = guessed[0] & true[0] & (guessed[1] == true[1]) & (guessed[2] == true[2])
        return torch.stack([right.sum(), guessed[0].sum(), true[0].sum()])

    def _starts_and_ends(self, tags: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each word whether a span starts there, where the next span's end is, and the kind of span it is in."""
        known = tags.clamp_min(0)
        kind = self.kind.to(tags.device)[known].masked_fill(tags == IGNORED, -1)
        before = torch.nn.functional.pad(kind, (1, 0), value=-1)[:, :-1]
        starts = (kind >= 0) & (self.is_first.to(tags.device)[known] | (kind != before))
        behind = torch.nn.functional.pad(kind, (0, 1), value=-1)[:, 1:]
        starts_behind = torch.nn.functional.pad(starts, (0, 1), value=False)[:, 1:]
        ends = (kind >= 0) & ((behind != kind) | starts_behind)
        place = torch.arange(tags.shape[-1], device=tags.device).expand_as(tags)
        end = place.masked_fill(~ends, tags.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
        return starts, end, kind
