"""The LightningModule: one model, one objective, one gradient."""

import hashlib
import math
import time
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from triform.tasks.objective import Batch, Objective, metrics


class Task(L.LightningModule):
    """Trains a model on an objective.

    The gradient of a step is that of the loss summed over all target tokens of the global batch, divided by their
    number, however the batch was cut into devices and micro-batches.

    Args:
        model_factory: builds the model; called once, on the meta device.
        objective: what is learned and measured.
        optimizer_factory: model -> optimizer.
        schedule: update (counted from 0) -> factor of the learning rate.
        seed: of the initial weights and of dropout.
        log_interval: optimizer steps between two records of the training loss.
        gradient_clip: largest 2-norm of the gradient; None: unlimited.
    """

    def __init__(
        self,
        model_factory: Callable[[], nn.Module],
        objective: Objective,
        optimizer_factory: Callable[[nn.Module], Optimizer],
        schedule: Callable[[int], float],
        seed: int,
        log_interval: int,
        gradient_clip: float | None,
    ) -> None:
        super().__init__()
        self.model_factory, self.objective = model_factory, objective
        self.optimizer_factory, self.schedule = optimizer_factory, schedule
        self.seed, self.log_interval, self.gradient_clip = seed, log_interval, gradient_clip
        self.model: nn.Module | None = None
        self.status: dict[str, float] = {}
        """Figures of the last record, as a progress bar shows them."""
        self.tokens = 0
        """Real tokens read by all ranks so far."""
        self.seconds = 0.0
        """Time spent training and validating so far, over all resumes."""
        self.stop_requested = False
        """Set by a signal; agreed upon among the ranks at the next optimizer step as `stop_agreed`."""
        self.stop_agreed = False
        self.stepped = False
        """Whether the last micro-batch ended an optimizer step."""
        self._metrics = metrics(objective)
        self._window = torch.zeros(4, dtype=torch.float64)  # loss, targets, tokens, requests to stop
        self._step = torch.zeros(4, dtype=torch.float64)
        self._norm: Tensor | None = None
        self._window_seconds = 0.0
        self._clock = time.perf_counter()

    # Building

    def configure_model(self) -> None:
        if self.model is not None:
            return
        with torch.device("meta"):
            model = self.model_factory()
        model.to_empty(device=self.device)
        model.initialise(self.seed)
        self.model = model

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = self.optimizer_factory(self.model)
        schedule = self.schedule
        return {
            "optimizer": optimizer,
            # a plain function, so that nothing but numbers enters the checkpoint
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, lambda step: schedule(step)), "interval": "step"},
        }

    # Training

    def on_train_start(self) -> None:
        self._clock = time.perf_counter()

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        self.stepped = False
        micro_batch = batch_idx % self.trainer.accumulate_grad_batches
        torch.manual_seed(noise_seed(self.seed, self.trainer.global_step, micro_batch, self.global_rank))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.objective.loss(self.model, batch)
        self._step[1] += batch["n_targets"]
        self._step[2] += batch["n_tokens"]
        self._step[0] += loss.detach()
        return loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        self._step[3] = float(self.stop_requested)
        cut = self.trainer.accumulate_grad_batches
        if self.trainer.world_size > 1:
            self._step = self.trainer.strategy.reduce(self._step.to(self.device), reduce_op="sum").cpu()
            cut *= self.trainer.world_size
        n_targets = max(float(self._step[1]), 1.0)
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        torch._foreach_mul_(gradients, cut / n_targets)
        self._window += self._step
        self.tokens += int(self._step[2])
        self.stop_agreed = bool(self._step[3] > 0)
        self.stepped = True
        self._step = torch.zeros_like(self._step)

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        limit = math.inf if self.gradient_clip is None else self.gradient_clip
        self._norm = nn.utils.clip_grad_norm_(self.parameters(), limit, foreach=True)

    def record(self) -> dict[str, float]:
        """Mean loss over the targets since the last record, and figures of the last step. Reads the device."""
        self.tick()
        loss, n_targets, n_tokens, _ = self._window.tolist()
        seconds, self._window_seconds = self._window_seconds, 0.0
        self._window.zero_()
        self.status = {
            "loss": loss / max(n_targets, 1.0),
            "lr": self.trainer.optimizers[0].param_groups[0]["lr"],
            "gradient_norm": float(self._norm) if self._norm is not None else math.nan,
            "tokens_per_second": n_tokens / max(seconds, 1e-9),
        }
        return self.status

    def tick(self) -> None:
        """Add the time since the last call to `seconds`."""
        now = time.perf_counter()
        passed, self._clock = now - self._clock, now
        self.seconds += passed
        if self.trainer.training:
            self._window_seconds += passed

    # Evaluation

    def on_validation_epoch_start(self) -> None:
        self.tick()
        self._reset_metrics()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._measure(batch)

    def on_validation_epoch_end(self) -> None:
        for name, value in self.measured().items():
            self.log(f"validation/{name}", value, logger=False, rank_zero_only=False)
        self.seconds += time.perf_counter() - self._clock
        self._clock = time.perf_counter()

    def on_test_epoch_start(self) -> None:
        self._reset_metrics()

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._measure(batch)

    def measured(self) -> dict[str, float]:
        """Means over all batches and ranks since the evaluation began."""
        return {name: float(metric.compute()) for name, metric in self._metrics.items()}

    def _reset_metrics(self) -> None:
        for metric in self._metrics.values():
            metric.to(self.device).reset()

    def _measure(self, batch: Batch) -> None:
        measures = self.objective.evaluate(self.model, batch)
        pairs = {"loss": (measures.loss, measures.n_targets), **measures.ratios}
        for name, (total, count) in pairs.items():
            if count:
                self._metrics[name].update(total.double() / count, count)

    # State

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.tick()
        checkpoint["progress"] = {
            "step": self.trainer.global_step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "window": self._window.tolist(),
            "window_seconds": self._window_seconds,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on at an optimizer step.

        The position in the data is a function of the step. Lightning's own loop state is therefore not restored, which
        would repeat batches after a stop within an epoch: only its counters are set.
        """
        progress = checkpoint["progress"]
        checkpoint.pop("loops", None)
        self.tokens, self.seconds = progress["tokens"], progress["seconds"]
        self._window = torch.tensor(progress["window"], dtype=torch.float64)
        self._window_seconds = progress["window_seconds"]
        loop, step = self.trainer.fit_loop.epoch_loop, progress["step"]
        counters = (loop.batch_progress.total, loop.automatic_optimization.optim_progress.optimizer.step.total)
        for counter, value in zip(counters, (step * self.trainer.accumulate_grad_batches, step), strict=True):
            for name in vars(counter):
                setattr(counter, name, value)
        loop._batches_that_stepped = step


def noise_seed(*parts: int) -> int:
    """Seed of what dropout draws: a hash, so that neighbouring steps and ranks are unrelated."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
