"""A text from a damaged copy of it."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from triform.data.tokenizers import Tokenizer
from triform.tasks.noise import gaps, generator, spans, texts
from triform.tasks.objective import Batch, Key, Model, Objective, Sample
from triform.tasks.source_target import FAMILIES, SourceTarget
from triform.tasks.token_loss import TokenLoss


class Denoising(Objective):
    """Writes a text anew from a damaged copy (Lewis et al. 2020, section 2.2: BART).

    In this order: sentences are shuffled, tokens deleted, and spans replaced by one [MASK] each, whose lengths are
    drawn from a Poisson distribution until the share is reached; one of length 0 inserts a [MASK], as long as that
    makes no source longer than its text. A sentence ends behind ".", "!" or "?" (BART: "."), as far as tokens end
    there. BART was trained on infilling and shuffled sentences, without deletion. Drawn anew in each epoch, from (seed,
    epoch, index) alone; of held-out text from the index, the same in all runs.

    A row of text is so long that source and target fit in `seq_len`: of a decoder, which reads both in one row and sees
    the source both ways, together. Documents that meet in a row become rows of their own.

    Args:
        infill_share: share of tokens in the spans that are replaced, in [0, 1).
        mean_span: mean of the lengths drawn, at least 1.
        delete_share: share of tokens that is deleted, each alone, in [0, 1).
        shuffle_sentences: whether the sentences of a text change places.
        label_smoothing, smoothing, z_loss: see `CrossEntropy`.

    Raises:
        ValueError: an argument out of range, nothing is damaged, or the tokenizer has no [MASK].
    """

    kinds = ("text",)
    families = FAMILIES
    packs = ("decoder",)
    measures = ("accuracy",)
    derived = ("perplexity",)

    def __init__(
        self,
        infill_share: float,
        mean_span: float,
        delete_share: float,
        shuffle_sentences: bool,
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
        for name, share in (("infill_share", infill_share), ("delete_share", delete_share)):
            if not 0 <= share < 1:
                raise ValueError(f"Denoising: {name}={share} is not in [0, 1); set task.{name} to a share")
        if not mean_span >= 1:
            raise ValueError(f"Denoising: mean_span={mean_span} is below 1; set task.mean_span, 3 in BART")
        if not infill_share and not delete_share and not shuffle_sentences:
            raise ValueError(
                "Denoising: infill_share=0, delete_share=0 and shuffle_sentences=False leave the text as it is; set "
                "one of them, such as task.infill_share=0.3"
            )
        if tokenizer.mask_id is None:
            raise ValueError(
                "Denoising: this tokenizer has no token that hides others; choose one that has, such as tokenizer=bpe, "
                "or task=span_corruption"
            )
        self.infill_share, self.mean_span, self.delete_share = infill_share, mean_span, delete_share
        self.shuffle_sentences = shuffle_sentences
        self.tokenizer, self.mask_id, self.seed = tokenizer, tokenizer.mask_id, seed
        self.form = SourceTarget(family, tokenizer, both_ways=True)
        self.length = max(seq_len - 1 if self.form.two_stacks else (seq_len - 1) // 2, 1)
        self.criterion = TokenLoss(label_smoothing, smoothing, z_loss, tokenizer)

    def damage(self, rng: np.random.Generator, ids: np.ndarray) -> list[int]:
        """A source for the text `ids`, without its end; never longer than it."""
        if self.shuffle_sentences:
            ids = self._shuffled(rng, ids)
        if self.delete_share:
            ids = ids[rng.random(len(ids)) >= self.delete_share]
        return self._infilled(rng, ids) if self.infill_share else ids.tolist()

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        pairs = [
            (self.damage(rng, ids), [*ids.tolist(), self.tokenizer.eos_id])
            for example, key in zip(examples, keys, strict=True)
            for rng in [generator(self.seed, key)]
            for ids in texts(example, self.length, self.tokenizer.eos_id)
        ]
        return self.form.batch([source for source, _ in pairs], [target for _, target in pairs])

    def row_lengths(self, lengths: np.ndarray) -> np.ndarray:
        return 2 * np.minimum(lengths[:, 0], self.length) + 1  # a source may be shorter than its text

    def text_length(self) -> int:
        return self.length

    def hidden(self, model: Model, batch: Batch) -> Tensor:
        return self.form.hidden(model, batch)

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        pairs = [
            (self.damage(generator(self.seed, (0, index)), text), text)
            for index, example in enumerate(examples)
            for text in texts(example, self.length, self.tokenizer.eos_id)[:1]
        ]
        if not pairs:
            return []
        outputs = self.form.write(model, [source for source, _ in pairs], self.length + 1)
        decode = self.tokenizer.decode
        return [
            Sample("[…]".join(decode(run) for run in _split(source, self.mask_id)), decode(output), decode(text))
            for (source, text), output in zip(pairs, outputs, strict=True)
        ]

    def _shuffled(self, rng: np.random.Generator, ids: np.ndarray) -> np.ndarray:
        stops = np.isin(ids, self._stops)
        last = np.flatnonzero(stops[:-1] & ~stops[1:])  # "?!" ends one sentence
        sentences = np.split(ids, last + 1)
        return np.concatenate([sentences[i] for i in rng.permutation(len(sentences))])

    @cached_property
    def _stops(self) -> np.ndarray:
        """The tokens that end a sentence."""
        known = self.tokenizer.ordinary_ids
        texts = self.tokenizer.backend.decode_batch([[int(token)] for token in known])
        return known[[text.rstrip().endswith((".", "!", "?")) for text in texts]]

    def _infilled(self, rng: np.random.Generator, ids: np.ndarray) -> list[int]:
        n_noise = min(math.ceil(len(ids) * self.infill_share), len(ids))
        lengths: list[int] = []
        while (rest := n_noise - sum(lengths)) > 0:
            lengths.append(min(int(rng.poisson(self.mean_span)), rest))
        shorter_by = n_noise - sum(length > 0 for length in lengths)
        empty = [i for i, length in enumerate(lengths) if length == 0][shorter_by:]
        lengths = [length for i, length in enumerate(lengths) if i not in empty]
        shuffled = rng.permutation(lengths)  # the last one was cut
        source: list[int] = []
        place = 0
        for first, end in spans(gaps(rng, len(ids) - n_noise, len(lengths), apart=0), shuffled):
            source += [*ids[place:first].tolist(), self.mask_id]
            place = end
        return source + ids[place:].tolist()


def _split(ids: Sequence[int], mark: int) -> list[list[int]]:
    runs: list[list[int]] = [[]]
    for token in ids:
        if token == mark:
            runs.append([])
        else:
            runs[-1].append(token)
    return runs
