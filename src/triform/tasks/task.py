"""The LightningModule: one model, one objective, one gradient."""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass
from datetime import timedelta
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from triform.layers.block import Block
from triform.layers.feed_forward.mixture import balance_loss, forget_loads, has_experts, loads, rebalance
from triform.layers.init import initial_values
from triform.layers.parallel import Layout, local, put
from triform.layers.recompute import recompute
from triform.models.weights import check_weights
from triform.tasks.figures import Figures
from triform.tasks.objective import Batch, Model, Objective


class Task(L.LightningModule):
    """Trains a model on an objective.

    The gradient of a step is that of the loss summed over all target tokens of the global batch, divided by their
    number, however the batch was cut into devices and micro-batches. What keeps the experts of a mixture busy is
    agreed upon among the ranks for each micro-batch (see `triform.layers.feed_forward.mixture`) and is no part of the
    loss that is recorded.

    Args:
        model_factory: builds the model; called once, on the meta device.
        objective: what is learned and measured.
        optimizer_factory: model -> optimizer.
        schedule: update (counted from 0) -> factor of the learning rate.
        seed: of the initial weights and of dropout.
        log_interval: optimizer steps between two records of the training loss.
        gradient_clip: largest 2-norm of the gradient; None: unlimited.
        compile: let torch compile the model's forward; keys of its weights stay plain.
        n_bytes: split -> bytes that its tokens spell, for bits per byte; None: unknown.
        fill: gives the model, once it is initialised, the weights that training begins with; None: those.
        shard: cuts a model that is still on the meta device and says how; None: each rank holds all of it.
        offload: what `shard` has left to this rank stays in main memory.
        recompute: what blocks compute again in the backward pass, see `triform.layers.recompute`.
        timeout: how long ranks wait for each other to agree; None: as long as torch has them wait.
    """

    def __init__(
        self,
        model_factory: Callable[[], Model],
        objective: Objective,
        optimizer_factory: Callable[[nn.Module], Optimizer],
        schedule: Callable[[int], float],
        seed: int,
        log_interval: int,
        gradient_clip: float | None,
        compile: bool,
        n_bytes: Mapping[str, int | None],
        fill: Callable[[nn.Module], None] | None = None,
        shard: Callable[[nn.Module, DeviceMesh], Layout] | None = None,
        offload: bool = False,
        recompute: str = "none",
        timeout: timedelta | None = None,
    ) -> None:
        super().__init__()
        self.model_factory, self.objective = model_factory, objective
        self.optimizer_factory, self.schedule = optimizer_factory, schedule
        self.seed, self.log_interval, self.gradient_clip = seed, log_interval, gradient_clip
        self.compile_model, self.n_bytes, self.fill, self.shard = compile, n_bytes, fill, shard
        self.offload, self.recompute, self.timeout = offload, recompute, timeout
        self.layout = Layout()
        """Which part of the model this rank holds."""
        self.model: Model = None
        self.status: dict[str, float] = {}
        """Figures of the last record, as a progress bar shows them."""
        self.tokens = 0
        """Real tokens read by all ranks so far."""
        self.seconds = 0.0
        """Time spent training and validating so far, over all resumes."""
        self.seconds_agreed = 0.0
        """The same at the last optimizer step, equal on all ranks: what they decide by."""
        self.stop_requested = False
        """Set by a signal; agreed upon among the ranks at the next optimizer step as `stop_agreed`."""
        self.stop_agreed = False
        self.broken = False
        """Set where this rank's loss or gradient of a step is not finite; agreed upon as `broken_agreed`."""
        self.broken_agreed = False
        """Whether the last optimizer step left weights and optimizer as they were, as its numbers were not finite."""
        self.stepped = False
        """Whether the last micro-batch ended an optimizer step."""
        self.final_split = "test"
        """What the test loop reads: another split where there is no test data."""
        self.measured: dict[str, float] = {}
        """Figures of the last evaluation, over all its batches and ranks."""
        self._figures = Figures(objective)
        self._counts = _Counts()
        self._window = _Window()
        self._loss_before: Tensor | float = 0.0
        """Of the window, as the optimizer step that is being made found it."""
        self.group: Any = None
        """All ranks over gloo, for what lives on the host; None where there is one rank."""
        self._raw_norm: Tensor | None = None
        """Norm of the gradient that backward passes have left, until the step is made."""
        self._gradients: list[Tensor] = []
        """This rank's parts of that gradient, as long."""
        self._factor = 1.0
        """By which it is multiplied, to be that of the mean over the targets."""
        self._parameters_whole: list[nn.Parameter] | None = None
        """The parameters, which are the same objects in each step; None: they are cut, and may change."""
        self._has_experts = False
        self._norm: Tensor | None = None
        self._lr = math.nan
        self._clock = time.perf_counter()

    def __setattr__(self, name: str, value: Any) -> None:
        # Sixty times a step; torch would look each time whether it is a parameter or had been one.
        if name in self.__dict__ and not isinstance(value, Tensor | nn.Module):
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    # Building

    def configure_model(self) -> None:
        if self.model is not None:
            return
        with torch.device("meta"):
            model = self.model_factory()
        blocks: list[nn.Module] = [module for module in model.modules() if isinstance(module, Block)]
        recompute(blocks, self.recompute)
        if self.compile_model:
            torch._dynamo.config.capture_scalar_outputs = True  # or a mixture's counts of tokens break the graph
        if self.shard is None:
            model.to_empty(device=self.device)
            model.initialise(self.seed)
            if self.fill is not None:
                self.fill(model)
            if self.compile_model:
                model.compile(dynamic=True)
        else:
            assert self.device_mesh is not None
            if self.compile_model:
                for block in blocks:  # what puts a block together is no part of what is compiled
                    block.compile(dynamic=True)
            self.layout = self.shard(model, self.device_mesh)
            model.to_empty(device="cpu" if self.offload else self.device)
            parameters = dict(model.named_parameters())
            for parameter in parameters.values():
                if not isinstance(parameter, DTensor):  # what FSDP leaves alone
                    parameter.data = parameter.to(self.device)
            for name, value in self._first_weights():
                put(parameters[name], self.layout, name, value)
        self.model = model
        self._has_experts = has_experts(model)
        if self.shard is None:
            self._parameters_whole = list(model.parameters())

    def _first_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name and whole value of each parameter, as training begins, on the CPU.

        One after another; but what fills a model is given all of it.
        """
        with torch.device("meta"):
            whole = self.model_factory()
        if self.fill is None:
            yield from initial_values(whole, whole.scheme, self.seed)
        else:
            whole.to_empty(device="cpu")
            whole.initialise(self.seed)
            self.fill(whole)
            yield from whole.named_parameters()

    def configure_optimizers(self) -> Any:
        optimizer = self.optimizer_factory(self.model)
        # A fused optimizer would unscale float16's gradients itself, after they have been clipped.
        optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
        schedule = self.schedule
        return {
            "optimizer": optimizer,
            # a plain function, so that nothing but numbers enters the checkpoint
            "lr_scheduler": {"scheduler": LambdaLR(optimizer, lambda step: schedule(step)), "interval": "step"},
        }

    # Training

    def on_fit_start(self) -> None:
        if self.trainer.world_size > 1:  # counts live on the host: agreeing on them must not wait for a device
            self.group = dist.new_group(backend="gloo", timeout=self.timeout)

    def on_train_start(self) -> None:
        self._clock = time.perf_counter()

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        self.stepped = False
        micro_batch = batch_idx % self.trainer.accumulate_grad_batches
        if micro_batch == 0:
            self._loss_before = self._window.loss
        seed_noise(noise_seed(self.seed, self.trainer.global_step, micro_batch, self.reader), self.device)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = self.objective.loss(self.model, batch)
        self._counts.targets += batch["n_targets"]
        self._counts.tokens += batch["n_tokens"]
        self._window.loss = self._window.loss + loss.detach().double()
        if not self._has_experts:
            return loss
        balance = balance_loss(self.model, batch["n_targets"], self._sum_over_ranks)
        return loss if balance is None else loss + balance

    def raw_gradient_norm(self) -> Tensor:
        """2-norm of the whole gradient as backward passes have left it, the same on all ranks; on its device.

        Measured once a step: one number in it that is not finite makes it such, and clipping takes it from here. The
        first call of a step must be made by all ranks.
        """
        if self._raw_norm is None:
            if self._parameters_whole is not None:
                self._gradients = [p.grad for p in self._parameters_whole if p.grad is not None]
                self._raw_norm = nn.utils.get_total_norm(self._gradients, foreach=True)
            else:
                self.layout.sum_gradients(self.model.named_parameters())
                self._gradients = [local(p.grad) for p in self.parameters() if p.grad is not None]
                self._raw_norm = self.layout.gradient_norm(self.model.named_parameters())
        return self._raw_norm

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        self.tick()
        raw_norm, self._raw_norm = self.raw_gradient_norm(), None
        self._counts.stop, self._counts.milliseconds = int(self.stop_requested), int(self.seconds * 1000)
        self._counts.broken = int(self.broken)
        counts, self._counts = self._counts.over_ranks(self.group, self.layout.copies), _Counts()
        self.stop_agreed, self.broken_agreed = counts.stop > 0, counts.broken > 0
        self.seconds_agreed = counts.milliseconds / self.trainer.world_size / 1000
        self.tokens += counts.tokens
        self._window.tokens += counts.tokens
        self._lr = max(group["lr"] for group in optimizer.param_groups)
        self.stepped = True
        if self.broken_agreed:
            self._leave_out()
            return
        # by Lightning and by DDP or FSDP
        divided_by = self.trainer.accumulate_grad_batches * self.trainer.world_size // self.layout.copies
        self._factor = divided_by / max(counts.targets, 1)
        self._norm = raw_norm * self._factor
        if self._has_experts:
            rebalance(self.model, self._sum_over_ranks)
        self._window.targets += counts.targets

    def _leave_out(self) -> None:
        """Keep the step's numbers out of the weights, of the optimizer's state and of the record."""
        for parameter in self.parameters():
            parameter.grad = None  # an optimizer passes over those without
        forget_loads(self.model)
        self._window.loss, self._norm = self._loss_before, None

    def loss_so_far(self) -> Tensor | float:
        """This rank's loss, summed over the targets since the last record; on its device."""
        return self._window.loss

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Divide the gradient by the number of targets and clip it, in one pass over it."""
        gradients, self._gradients = self._gradients, []
        if self.broken_agreed:
            return
        factor: Tensor | float = self._factor
        if self.gradient_clip is not None:
            assert self._norm is not None
            factor = (self.gradient_clip / (self._norm + 1e-6)).clamp(max=1.0) * self._factor
        torch._foreach_mul_(gradients, factor)

    def record(self) -> dict[str, float]:
        """Mean loss over the targets since the last record (NaN: there were none), and figures of the last step.

        Waits for the device. Steps that were left out are not in the loss.

        With experts also `expert_load`, the largest load of one over the mean of its layer, in the last micro-batch on
        all ranks: the capacity factor that would have dropped no token.
        """
        self.tick()
        window, self._window = self._window, _Window()
        self.status = {
            "loss": self._over_ranks(window.loss) / window.targets if window.targets else math.nan,
            "lr": self._lr,
            "gradient_norm": math.nan if self._norm is None else float(self._norm),
            "tokens_per_second": window.tokens / max(window.seconds, 1e-9),
        }
        if self._has_experts:
            busiest = [max(of) for of in loads(self.model, self._sum_over_ranks).values()]
            if busiest:
                self.status["expert_load"] = max(busiest)
        return self.status

    def check_finite(self, weights: bool) -> None:
        """Refuse to go on after a loss or gradient, or with `weights`, that are not finite. Waits for the device.

        Under float16 an infinite gradient is the loss scaler's business, which skips that update.

        Raises:
            FloatingPointError: with the step and what to change.
        """
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        found = {"training loss": float(self._window.loss)}
        if self._norm is not None and not scaled:
            found["gradient's norm"] = float(self._norm)
        if weights:
            norms = torch._foreach_norm([local(parameter.detach()) for parameter in self.parameters()])
            total = float(torch.stack(norms).sum())
            found["weights' norm"] = total if self.shard is None else self._over_ranks(total)
        for what, value in found.items():
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"the {what} is {value} by step {self.trainer.global_step}; lower optimizer.lr, lengthen"
                    " scheduler.warmup_steps or lower trainer.gradient_clip; the last good checkpoint is kept"
                )

    def tick(self) -> None:
        """Add the time since the last call to the run's and, outside validation, to the record's."""
        now = time.perf_counter()
        passed, self._clock = now - self._clock, now
        self.seconds += passed
        if self.trainer.training:
            self._window.seconds += passed

    @property
    def reader(self) -> int:
        """This rank's number among those that read different rows; some read the same and draw the same noise."""
        return self.global_rank // self.layout.copies

    def _sum_over_ranks(self, value: Tensor) -> Tensor:
        """Of a tensor on this rank's device, without waiting for it; of ranks that read the same rows one counts."""
        if self.trainer.world_size > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value / self.layout.copies if self.layout.copies > 1 else value

    def _over_ranks(self, value: Tensor | float) -> float:
        """The same as a number."""
        total = torch.as_tensor(value, dtype=torch.float64).cpu()
        if self.group is not None:
            dist.all_reduce(total, group=self.group)
        return float(total) / self.layout.copies

    def agreed(self, wish: bool) -> bool:
        """Whether any rank wishes something; the same on all of them."""
        return self._over_ranks(float(wish)) > 0

    # Evaluation

    def on_validation_epoch_start(self) -> None:
        self.tick()
        self._figures.reset(self.device)
        if self.objective.writes(False):
            self.keep_whole()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._figures.add(self.model, batch)

    def on_validation_epoch_end(self) -> None:
        self.keep_parts()
        self._conclude("validation")
        self.tick()

    def on_test_epoch_start(self) -> None:
        self._figures.reset(self.device)
        if self.objective.writes(True):
            self.keep_whole()

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._figures.add(self.model, batch, final=True)

    def on_test_epoch_end(self) -> None:
        self.keep_parts()
        self._conclude(self.final_split)

    def _conclude(self, split: str) -> None:
        self.measured = self._figures.means(self.n_bytes.get(split), self.layout.copies)
        for name, value in self.measured.items():
            self.log(f"{split}/{name}", value, logger=False, rank_zero_only=False)

    # State

    def keep_whole(self) -> None:
        """Have FSDP put all of the model together and keep it so, until `keep_parts`.

        While the model writes: ranks write unequal numbers of tokens, so that none may wait for another.
        """
        for module in self._cut_modules():
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()

    def keep_parts(self) -> None:
        """Give up what FSDP has put together for forward passes that no backward pass has followed."""
        for module in self._cut_modules():
            module.set_reshard_after_forward(module is not self.model, recurse=False)
            module.reshard()

    def _cut_modules(self) -> list[FSDPModule]:
        return [module for module in self.modules() if isinstance(module, FSDPModule)]

    def weights(self) -> dict[str, Any]:
        """All weights, whole, by their names in a checkpoint, on the CPU. Every rank must ask; the first one is told.

        Without sharding they are `state_dict()`. Where ranks write apart, each is told what it holds.
        """
        if self.shard is None:
            return self.state_dict()
        self.keep_parts()
        found = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            value = self.layout.kept(name, parameter.detach())
            if self.global_rank == 0 or self.layout.apart:
                found[f"model.{name}"] = value.cpu()
        return found

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Go on from whole weights, by their names in a checkpoint.

        Raises:
            ValueError: they are not this model's.
        """
        if self.shard is None:
            self.load_state_dict(weights)
            return
        self.check(weights)
        self.keep_parts()
        for name, parameter in self.model.named_parameters():
            put(parameter, self.layout, name, weights[f"model.{name}"])

    def check(self, weights: Mapping[str, Any]) -> None:
        """Refuse weights of another model; see `check_weights`."""
        self.keep_parts()
        shapes = {
            f"model.{name}": self.layout.shape(name, parameter)
            for name, parameter in self.model.named_parameters(remove_duplicate=False)
        }
        check_weights(self, weights, "the checkpoint", shapes)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.tick()
        loss = self._over_ranks(self._window.loss)
        self._window.loss = loss if self.reader == 0 else 0.0
        checkpoint["progress"] = {
            "step": self.trainer.global_step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "window": {**vars(self._window), "loss": loss},
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on at an optimizer step.

        The position in the data is a function of the step. Lightning's own loop state is therefore not restored, which
        would repeat batches after a stop within an epoch: only its counters are set.
        """
        self.check(checkpoint["state_dict"])
        progress = checkpoint["progress"]
        checkpoint.pop("loops", None)
        self.tokens, self.seconds = progress["tokens"], progress["seconds"]
        self.seconds_agreed = self.seconds
        self._window = _Window(**progress["window"])
        if self.reader != 0:
            self._window.loss = 0.0
        loop, step = self.trainer.fit_loop.epoch_loop, progress["step"]
        counters = (loop.batch_progress.total, loop.automatic_optimization.optim_progress.optimizer.step.total)
        for counter, value in zip(counters, (step * self.trainer.accumulate_grad_batches, step), strict=True):
            for name in vars(counter):
                setattr(counter, name, value)
        loop._batches_that_stepped = step


@dataclass
class _Counts:
    """What one optimizer step was made of."""

    targets: int = 0
    tokens: int = 0
    stop: int = 0
    broken: int = 0
    milliseconds: int = 0

    def over_ranks(self, group: Any, copies: int) -> "_Counts":
        """Sums over the ranks of `group`; None: there is one rank.

        Args:
            copies: how many ranks read the same rows, of which one counts.
        """
        if group is None:
            return self
        total = torch.tensor(astuple(self))
        dist.all_reduce(total, group=group)
        targets, tokens, *rest = total.tolist()
        return _Counts(targets // copies, tokens // copies, *rest)


@dataclass
class _Window:
    """Sums since the last record. `loss` is this rank's and stays on its device, the counts are of all ranks."""

    loss: Tensor | float = 0.0
    targets: int = 0
    tokens: int = 0
    seconds: float = 0.0


def noise_seed(*parts: int) -> int:
    """Seed of what dropout draws: a hash, so that neighbouring steps and ranks are unrelated."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_noise(seed: int, device: torch.device) -> None:
    """What `torch.manual_seed` does, for the CPU and `device` alone.

    That tells every kind of device that torch knows, there or not, which takes half a millisecond.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
