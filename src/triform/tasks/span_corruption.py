"""The missing spans of a text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from triform.data.tokenizers import Tokenizer
from triform.tasks.noise import gaps, generator, parts, spans, texts
from triform.tasks.objective import Batch, Key, Model, Objective, Sample
from triform.tasks.source_target import FAMILIES, SourceTarget
from triform.tasks.token_loss import TokenLoss


class SpanCorruption(Objective):
    """Restores spans that a mark of their own stands for (Raffel et al. 2020, section 3.1.4: T5).

    The source is the text with each span replaced by a sentinel, the target each sentinel with the tokens it stands
    for, and an end. Spans are as many, and as long on average, as in T5's code; unlike there, any place is equally
    likely, also the beginning, and a short text does not always lose its end. As in that code, and unlike figure 2, no
    last sentinel follows the last span. Drawn anew in each epoch, from (seed, epoch, index) alone; of held-out text
    from the index, the same in all runs.

    A row of `text_length` tokens becomes source and target of at most `seq_len`: of a decoder, which reads both in one
    row and sees the source both ways, together. Documents that meet in a row become rows of their own. Sentinels are
    the tokenizer's <extra_id_0> and so on; where it has none, rows of the model's table beyond the vocabulary, of which
    the last is the first sentinel, as in T5.

    Args:
        noise_share: share of a text's tokens that is hidden, in (0, 1).
        mean_span: tokens of a span on average, at least 1.
        n_sentinels: how many there are where the tokenizer has none; 100 in T5.
        label_smoothing, smoothing, z_loss: see `CrossEntropy`.

    Raises:
        ValueError: an argument out of range, or a row of `seq_len` has more spans than there are sentinels.
    """

    kinds = ("text",)
    families = FAMILIES
    packs = ("decoder",)
    measures = ("accuracy",)
    derived = ("perplexity",)

    def __init__(
        self,
        noise_share: float,
        mean_span: float,
        n_sentinels: int,
        label_smoothing: float,
        smoothing: str,
        z_loss: float,
        *,
        family: str,
        tokenizer: Tokenizer,
        labels: Sequence[str] | None,
        seq_len: int,
        seed: int,
    ) -> None:
        if not 0 < noise_share < 1:
            raise ValueError(
                f"SpanCorruption: noise_share={noise_share} is not in (0, 1); set task.noise_share, 0.15 in T5"
            )
        if not mean_span >= 1:
            raise ValueError(f"SpanCorruption: mean_span={mean_span} is below 1; set task.mean_span, 3 in T5")
        if n_sentinels < 1:
            raise ValueError(f"SpanCorruption: n_sentinels={n_sentinels} is below 1; set task.n_sentinels, 100 in T5")
        self.noise_share, self.mean_span = noise_share, mean_span
        self.tokenizer, self.seq_len, self.seed = tokenizer, seq_len, seed
        self.criterion = TokenLoss(label_smoothing, smoothing, z_loss, tokenizer)
        self.sentinels = own_sentinels(tokenizer)
        if not self.sentinels:
            self.extra_tokens = n_sentinels
            self.sentinels = [tokenizer.vocab_size + i for i in reversed(range(n_sentinels))]
        self.form = SourceTarget(family, tokenizer, both_ways=True, extra_tokens=self.extra_tokens)
        self.length = self._longest()
        n_spans = self.n_hidden(self.length)[1]
        if n_spans > len(self.sentinels):
            remedy = f"task.n_sentinels to {n_spans} or more, " if self.extra_tokens else ""
            raise ValueError(
                f"SpanCorruption: a row of data.seq_len={seq_len} has {n_spans} spans, but there are "
                f"{len(self.sentinels)} sentinels; set {remedy}task.mean_span higher or data.seq_len lower"
            )

    def n_hidden(self, length: int) -> tuple[int, int]:
        """How many tokens are hidden of a text of `length`, and in how many spans."""
        n_noise = min(max(round(length * self.noise_share), 1), max(length - 1, 1))
        n_spans = min(max(round(n_noise / self.mean_span), 1), n_noise, length - n_noise + 1)
        return n_noise, n_spans

    def corrupt(self, rng: np.random.Generator, ids: np.ndarray) -> tuple[list[int], list[int]]:
        """Source, without its end, and target, with it, of a text of at least one token."""
        n_noise, n_spans = self.n_hidden(len(ids))
        hidden = spans(gaps(rng, len(ids) - n_noise, n_spans, apart=1), parts(rng, n_noise, n_spans))
        source, target, place = [], [], 0
        for sentinel, (first, end) in zip(self.sentinels, hidden, strict=False):
            source += [*ids[place:first].tolist(), sentinel]
            target += [sentinel, *ids[first:end].tolist()]
            place = end
        return source + ids[place:].tolist(), [*target, self.tokenizer.eos_id]

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        pairs = [
            self.corrupt(rng, ids)
            for example, key in zip(examples, keys, strict=True)
            for rng in [generator(self.seed, key)]
            for ids in texts(example, self.length, self.tokenizer.eos_id)
        ]
        return self.form.batch([source for source, _ in pairs], [target for _, target in pairs])

    def row_lengths(self, lengths: np.ndarray) -> np.ndarray:
        return np.array([self._row_length(n) for n in range(self.length + 1)])[np.minimum(lengths[:, 0], self.length)]

    def text_length(self) -> int:
        return self.length

    def hidden(self, model: Model, batch: Batch) -> Tensor:
        return self.form.hidden(model, batch)

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        pairs = [
            self.corrupt(generator(self.seed, (0, index)), text)
            for index, example in enumerate(examples)
            for text in texts(example, self.length, self.tokenizer.eos_id)[:1]
        ]
        if not pairs:
            return []
        outputs = self.form.write(model, [source for source, _ in pairs], max(len(target) for _, target in pairs))
        return [
            Sample(self.text(source), self.text(output), self.text(target))
            for (source, target), output in zip(pairs, outputs, strict=True)
        ]

    def text(self, ids: Sequence[int]) -> str:
        """As people read it, the sentinels as <1>, <2>."""
        number = {sentinel: i for i, sentinel in enumerate(self.sentinels, start=1)}
        words = ""
        run: list[int] = []
        for token in [*ids, self.tokenizer.eos_id]:
            if token in number or token == self.tokenizer.eos_id:
                words += self.tokenizer.decode(run) + (f"<{number[token]}>" if token in number else "")
                run = []
            else:
                run.append(token)
        return words

    def _row_length(self, length: int) -> int:
        """Tokens of the longest row that a text of `length` becomes."""
        n_noise, n_spans = self.n_hidden(length)
        return self.form.length(length - n_noise + n_spans, n_noise + n_spans + 1)

    def _longest(self) -> int:
        """Tokens of the longest text whose source and target fit."""
        length = 1
        while length < 4 * self.seq_len:
            if self._row_length(length + 1) > self.seq_len:
                break
            length += 1
        return length


def own_sentinels(tokenizer: Tokenizer) -> list[int]:
    """The ids of <extra_id_0>, <extra_id_1> and so on, as far as a tokenizer has them: T5's has 100."""
    found: list[int] = []
    while (number := tokenizer.backend.token_to_id(f"<extra_id_{len(found)}>")) is not None:
        found.append(int(number))
    return found
