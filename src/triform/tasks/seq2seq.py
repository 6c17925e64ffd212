"""One text to another."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from triform.data.tokenizers import Tokenizer
from triform.tasks.objective import IGNORED, Batch, Ids, Key, Model, Objective, Sample
from triform.tasks.source_target import FAMILIES, SourceTarget
from triform.tasks.token_loss import TokenLoss
from triform.tasks.written import Corpus

WHEN = ("never", "test", "validation")


class Seq2Seq(Objective):
    """Target text from source text (Sutskever et al. 2014; Vaswani et al. 2017, section 3).

    An encoder-decoder reads the source and its end mark, and predicts the target and its end mark from a start mark.
    A decoder reads source, separator and target as one row, with loss on the target alone.

    `exact_match` is the share of targets of which every token is the likeliest one after the right ones before it:
    the targets that greedy decoding reproduces, without decoding. BLEU, chrF and the character error rate are of the
    text that the model writes, greedily, against the text of the target as the data has it.

    Args:
        label_smoothing, smoothing, z_loss: see `CrossEntropy`; 0.1 in the paper.
        generate_metrics: when what the model writes is measured: "test", at the end of a run and by `triform evaluate`;
            "validation", there too; or "never".

    Raises:
        ValueError: unknown `generate_metrics`; see also `CrossEntropy`.
    """

    kinds = ("pairs",)
    families = FAMILIES
    packs = ("decoder",)
    monitor = ("loss", "min")
    measures = ("accuracy", "exact_match")
    derived = ("perplexity",)
    written = Corpus.figures

    def __init__(
        self,
        label_smoothing: float,
        smoothing: str,
        z_loss: float,
        generate_metrics: str,
        *,
        family: str,
        tokenizer: Tokenizer,
        labels: Sequence[str] | None,
        seq_len: int,
        seed: int,
    ) -> None:
        if generate_metrics not in WHEN:
            raise ValueError(
                f"Seq2Seq: generate_metrics={generate_metrics!r} is unknown; set task.generate_metrics to "
                f"{', '.join(WHEN)}"
            )
        self.tokenizer, self.seq_len, self.generate_metrics = tokenizer, seq_len, generate_metrics
        self.form = SourceTarget(family, tokenizer, both_ways=False)
        self.criterion = TokenLoss(label_smoothing, smoothing, z_loss, tokenizer, whole=True)
        self.corpus = Corpus()

    def collate(self, examples: Sequence[Mapping[str, Any]], keys: Sequence[Key]) -> Batch:
        sources = [self._cut(example["source_ids"]) for example in examples]
        targets = [self._ended(example["target_ids"]) for example in examples]
        batch = self.form.batch(sources, targets)
        if examples and all("texts" in example for example in examples):
            batch["references"] = [example["texts"]["target"] for example in examples]
        return batch

    def row_lengths(self, lengths: np.ndarray) -> np.ndarray:
        return np.minimum(lengths, self.room()).sum(axis=1) + 1  # of a separator; the end is read by nothing

    def model_arguments(self) -> dict[str, Any]:
        return {"n_source_tokens": self.tokenizer.source.vocab_size} if self.tokenizer.is_separate else {}

    def room(self) -> int:
        return self.seq_len - 1 if self.form.two_stacks else (self.seq_len - 1) // 2

    def hidden(self, model: Model, batch: Batch) -> Tensor:
        return self.form.hidden(model, batch)

    def sums(self) -> Mapping[str, int]:
        return self.corpus.sizes

    def writes(self, final: bool) -> bool:
        return self.generate_metrics == "validation" or (final and self.generate_metrics == "test")

    def write(self, model: Model, batch: Batch) -> Mapping[str, Tensor]:
        if not batch["n_rows"]:
            return {}
        references = batch.get("references")
        if references is None:
            references = [
                self.tokenizer.decode(token for token in row if token != IGNORED) for row in batch["labels"].tolist()
            ]
        return self.corpus.sums(self.answer(model, self.form.sources(batch)), references)

    def conclude(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        return self.corpus.conclude(sums)

    def signatures(self) -> dict[str, str]:
        return self.corpus.signatures() if self.writes(final=True) else {}

    def samples(self, model: Model, examples: Sequence[Mapping[str, Any]]) -> list[Sample]:
        sources = [self.tokenizer.source.decode(self._cut(example["source_ids"])) for example in examples]
        targets = [self.tokenizer.decode(self._cut(example["target_ids"])) for example in examples]
        outputs = self.answer(model, [self._cut(example["source_ids"]) for example in examples])
        return [
            Sample(source, output, target, output == target)
            for source, output, target in zip(sources, outputs, targets, strict=True)
        ]

    def answer(
        self,
        model: Model,
        sources: Sequence[Ids],
        num_beams: int = 1,
        length_penalty: float = 1.0,
        on_token: Callable[[Tensor], bool] | None = None,
    ) -> list[str]:
        """The likeliest target of each source (token ids without marks), greedily or by a search with beams.

        Args:
            length_penalty: see `triform.generation.beam.BeamSearch`; above 1 longer targets win more often.
            on_token: is told each new token of a single source as it comes, and returns False.
        """
        rows = [[int(token) for token in source] for source in sources]
        written = self.form.write(model, rows, self.seq_len, num_beams, length_penalty, on_token)
        return [self.tokenizer.decode(row) for row in written]

    def _cut(self, ids: Ids) -> list[int]:
        return [int(token) for token in ids[: self.room()]]

    def _ended(self, target: Ids) -> list[int]:
        """The target and its end mark; one that is cut has no end to learn."""
        cut = self._cut(target)
        return cut if len(target) > len(cut) else [*cut, self.tokenizer.eos_id]
