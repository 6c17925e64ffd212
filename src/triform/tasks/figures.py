"""What an evaluation measures, over all its batches and ranks."""

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, SumMetric

from triform.tasks.objective import Batch, Model, Objective


class Figures:
    """Loss and measures of an objective, each a mean over every target: sums are kept, in float64, not means.

    Usable without a training loop: `reset`, `add` each batch, `means`.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self._sums = {name: (_exact_sum(), _exact_sum()) for name in ("loss", *objective.measures)}
        self._vectors = {name: VectorSum(size) for name, size in objective.sums().items()}

    def reset(self, device: torch.device | str) -> None:
        """Begin anew, with sums that are kept on `device`."""
        for total, count in self._sums.values():
            total.to(device).reset()
            count.to(device).reset()
        for vector in self._vectors.values():
            vector.to(device).reset()
            vector.update(torch.zeros_like(vector.total))  # nothing was written: 0, which is no mistake

    def add(self, model: Model, batch: Batch, final: bool = False) -> None:
        """Measure a batch, without waiting for the device unless the model writes.

        Args:
            final: this is the end of a run, where an objective may have the model write.
        """
        measures = self.objective.evaluate(model, batch)
        for name, (total, count) in {"loss": (measures.loss, measures.n_targets), **measures.ratios}.items():
            self._sums[name][0].update(total.double())
            self._sums[name][1].update(count)
        for name, values in measures.sums.items():
            self._vectors[name].update(values)
        if self.objective.writes(final):
            for name, values in self.objective.write(model, batch).items():
                self._vectors[name].update(values)

    def means(self, n_bytes: int | None, copies: int = 1) -> dict[str, float]:
        """The figures over all ranks, with what the objective derives from them; NaN where nothing was counted.

        Args:
            n_bytes: of the text that was measured, for bits per byte.
            copies: how many ranks read the same rows, of which one counts.
        """
        sums = {
            name: (float(total.compute()) / copies, float(count.compute()) / copies)
            for name, (total, count) in self._sums.items()
        }
        means = {name: total / count if count else math.nan for name, (total, count) in sums.items()}
        vectors = {name: vector.compute().cpu().numpy() / copies for name, vector in self._vectors.items()}
        derived = self.objective.derive(means["loss"], sums["loss"][1], n_bytes)
        return means | derived | self.objective.conclude(vectors)


class VectorSum(Metric):
    """Sums of `size` numbers over batches and ranks, in float64."""

    full_state_update = False
    total: Any

    def __init__(self, size: int) -> None:
        super().__init__()
        self.add_state("total", default=torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, values: Tensor) -> None:
        self.total = self.total + values.to(self.total.device).double()

    def compute(self) -> Tensor:
        return self.total


def _exact_sum() -> SumMetric:
    """A sum over batches and ranks, in float64. NaN stays NaN: a figure that hides it could be the best one."""
    metric = SumMetric(nan_strategy="disable")
    metric.set_dtype(torch.float64)
    return metric
