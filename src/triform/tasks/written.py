"""What written texts score against references: sums that add up over batches and ranks to the figure of the corpus."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor


class Corpus:
    """BLEU (Papineni et al. 2002) and chrF (Popović 2015) by sacrebleu, and the character error rate.

    BLEU and chrF are of the whole corpus, from 0 to 100: n-grams are counted over all texts before anything is
    divided, which no mean over batches or sentences equals. The character error rate is the number of characters to
    insert, delete or replace over the number of characters of the references. Texts are compared as people read them,
    never as tokens.
    """

    figures = ("bleu", "chrf", "character_error_rate")

    def __init__(self) -> None:
        self._metrics: dict[str, Any] = {"bleu": BLEU(), "chrf": CHRF()}
        empty = {name: self._count(name, [""], [""]) for name in self._metrics}
        self.sizes = {name: len(counts) for name, counts in empty.items()} | {"edits": 2}

    def sums(self, outputs: Sequence[str], references: Sequence[str]) -> dict[str, Tensor]:
        """What is counted in some texts."""
        edits = [
            sum(edit_distance(output, reference) for output, reference in zip(outputs, references, strict=True)),
            sum(map(len, references)),
        ]
        counts = {name: self._count(name, outputs, references) for name in self._metrics} | {"edits": edits}
        return {name: torch.tensor(values, dtype=torch.float64) for name, values in counts.items()}

    def conclude(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """The figures of what was counted in all texts; none where there was no text."""
        edits, characters = sums["edits"]
        if not characters:
            return {}
        scores = {
            name: float(metric._compute_score_from_stats([int(count) for count in sums[name]]).score)
            for name, metric in self._metrics.items()
        }
        return scores | {"character_error_rate": float(edits / characters)}

    def signatures(self) -> dict[str, str]:
        """How sacrebleu computes its figures, in its own words."""
        return {name: str(metric.get_signature()) for name, metric in self._metrics.items()}

    def _count(self, name: str, outputs: Sequence[str], references: Sequence[str]) -> list[int]:
        extract: Callable[..., list[list[int]]] = self._metrics[name]._extract_corpus_statistics
        return [sum(counts) for counts in zip(*extract(outputs, [references]), strict=True)]


def edit_distance(a: str, b: str) -> int:
    """Fewest characters to insert, delete or replace that make `b` of `a` (Levenshtein 1966).

    All of a column of the table at once, as bits of whole numbers (Hyyrö 2003, figure 8): some 100 times as fast as
    one cell after another.
    """
    if not a or not b:
        return len(a) + len(b)
    places: dict[str, int] = {}
    for i, character in enumerate(a):
        places[character] = places.get(character, 0) | 1 << i
    mask, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    rises, falls, distance = mask, 0, len(a)
    for character in b:
        equal = places.get(character, 0)
        diagonal = ((((equal & rises) + rises) ^ rises) | equal | falls) & mask
        right_rises = falls | (~(diagonal | rises) & mask)
        right_falls = rises & diagonal
        distance += bool(right_rises & last) - bool(right_falls & last)
        right_rises = ((right_rises << 1) | 1) & mask
        right_falls = (right_falls << 1) & mask
        rises = right_falls | (~(diagonal | right_rises) & mask)
        falls = right_rises & diagonal
    return distance
