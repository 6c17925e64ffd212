"""One run from built parts to its last figure."""

import logging
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.profilers import PassThroughProfiler
from torch import nn
from torch.optim import Optimizer

from triform.data.module import DataModule
from triform.data.prepare import Prepared
from triform.layers.feed_forward.mixture import has_experts
from triform.models.cost import count_parameters, flops_per_token
from triform.tasks.objective import Model, Objective
from triform.tasks.task import Task
from triform.training.agreement import Agreement, content
from triform.training.averages import averaged
from triform.training.budget import ENDLESS, Budget, budget
from triform.training.checkpoints import Checkpoints
from triform.training.codes import FINISHED, PREEMPTED
from triform.training.dossier import replay_until
from triform.training.guards import Guard
from triform.training.hardware import device_type, matmul_ceiling, pick_precision, rank
from triform.training.meeting import Meeting
from triform.training.progress import Progress
from triform.training.record import TRAIN, Metrics, Record, Summary
from triform.training.saving import AtomicCheckpointIO, fault, newest, read_checkpoint, set_aside, sweep
from triform.training.schedules import Schedule
from triform.training.signals import Preempted, Preemption, Pruned
from triform.training.strategies import (
    NARROW,
    SHARDED,
    check_offload,
    check_sizes,
    mixed_precision,
    shared,
    strategy_of,
)
from triform.training.watchdog import Watchdog, patience

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainerSettings:
    """The keys of `conf/trainer`; their meaning stands there."""

    max_steps: int | None
    max_epochs: float | None
    max_tokens: int | None
    max_hours: float | None
    val_interval: int | None
    log_interval: int
    save_interval: int | None
    async_save: bool
    save_parts: bool
    accelerator: str
    devices: int
    num_nodes: int
    strategy: str
    tensor_parallel: int
    precision: str
    accumulate: int
    gradient_clip: float | None
    cpu_offload: bool
    activation_checkpointing: str
    compile: bool
    deterministic: bool
    overfit: bool
    test: bool
    non_finite: str
    max_skipped: int
    timeout: float | None
    profiler: str | None

    def __post_init__(self) -> None:
        for name in ("val_interval", "log_interval", "save_interval", "accumulate", "devices", "num_nodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"trainer: {name}={value} is below 1; set trainer.{name} to 1 or more")
        if self.gradient_clip is not None and self.gradient_clip <= 0:
            raise ValueError(
                f"trainer: gradient_clip={self.gradient_clip} is not positive; set trainer.gradient_clip to 1.0 or null"
            )
        check_sizes(self.strategy, self.devices * self.num_nodes, self.tensor_parallel)
        check_offload(self.strategy, self.tensor_parallel, device_type(self.accelerator), self.cpu_offload)
        pick_precision(self.precision, device_type(self.accelerator))


def fit(
    settings: TrainerSettings,
    folder: Path,
    data: DataModule,
    prepared: Prepared,
    model_factory: Callable[[], Model],
    objective: Objective,
    optimizer: Callable[[nn.Module], Optimizer],
    schedule: Schedule,
    seed: int,
    loggers: Sequence[Logger],
    callbacks: Sequence[Callback],
    fill: Callable[[nn.Module], None] | None,
    resume: bool,
) -> int:
    """Train, judge the best checkpoint on held-out data, and leave everything in the run's folder.

    Called by every rank. Returns the exit status: 0, also where the run was pruned, or 75 when a signal asked to stop.

    Args:
        folder: of the run; holds checkpoints/, metrics.csv, summary.json when this returns.
        fill: gives the model the weights that training begins with, where no checkpoint does; None: random ones.
        resume: go on from the newest checkpoint in `folder`, if there is one.

    Raises:
        ValueError: the settings are wrong, or no checkpoint can be read.
        FloatingPointError: loss, gradient or weights are not finite.
        MemoryError: memory was not enough; says for which batch.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    limits = budget(data.order, settings.max_steps, settings.max_epochs, settings.max_tokens, settings.max_hours)
    data.total_steps = limits.max_steps
    objective.look(prepared.splits["train"])
    task = Task(
        model_factory=model_factory,
        objective=objective,
        optimizer_factory=optimizer,
        schedule=lambda update: schedule(update, limits.total(task.trainer.global_step, task.seconds_agreed)),
        seed=seed,
        log_interval=settings.log_interval,
        gradient_clip=settings.gradient_clip,
        compile=settings.compile,
        n_bytes={name: prepared.spelt_bytes(name) for name in prepared.splits if name != "train"},
        fill=fill,
        shard=partial(
            shared,
            fully=settings.strategy == "fsdp",
            offload=settings.cpu_offload,
            narrow=NARROW.get(pick_precision(settings.precision, device_type(settings.accelerator))),
        )
        if settings.strategy in SHARDED
        else None,
        offload=settings.cpu_offload,
        recompute=settings.activation_checkpointing,
        timeout=patience(settings.timeout),
    )
    if rank() == 0:
        sweep(folder / "checkpoints")
        tell_left_out(prepared, objective)
        tell_start(settings, folder, data, limits)
    record = _record(settings, folder, data, prepared, model_factory, objective, limits)
    saving = AtomicCheckpointIO(settings.async_save)
    checkpoints = Checkpoints(
        folder / "checkpoints", saving, *objective.monitor, settings.save_interval, settings.val_interval, limits
    )
    preemption = Preemption()
    guard = Guard(folder, settings.non_finite, settings.max_skipped, replay_until(folder))
    watchdog = None if settings.timeout is None else Watchdog(folder, settings.timeout)
    facts = {"config": content(folder / "config.yaml"), "data": prepared.folder.name, "seed": str(seed)}
    agreement = Agreement(facts | {f"trainer.{name}": str(value) for name, value in vars(settings).items()})
    trainer = _trainer(
        settings,
        folder,
        limits,
        loggers,
        saving,
        [
            *(preemption, *([] if watchdog is None else [watchdog]), guard, agreement, record, Progress(limits)),
            *(checkpoints, *averaged(callbacks)),
        ],
    )
    split = task.final_split = "test" if settings.test and "test" in prepared.splits else "validation"
    with preemption, saving, watchdog or nullcontext():
        try:
            meeting = Meeting(settings.devices * settings.num_nodes, patience(settings.timeout))
            start = newest(checkpoints.folder, meeting) if resume else None
            if start is not None:
                task.fill = None
            if start is not None and rank() == 0:
                set_aside(checkpoints.folder, start)
                print(f"going on from {start}", file=sys.stderr)
            trainer.fit(task, datamodule=data, ckpt_path=start, weights_only=True)
            if checkpoints.validation_missed:  # the run was resumed after its last step
                trainer.validate(task, datamodule=data, verbose=False)
            saving.wait()
            trainer.strategy.barrier("best checkpoint")
            in_parts = settings.strategy in SHARDED
            if in_parts and (failure := fault(checkpoints.best_or_last, meeting)):
                raise ValueError(failure)
            task.take(read_checkpoint(checkpoints.best_or_last, rank() if in_parts else None)["state_dict"])
            trainer.test(task, data.loader(split), verbose=False)
        except Preempted:
            record.stopped(trainer.global_step, task)
            return PREEMPTED
        except Pruned:
            record.pruned(trainer.global_step, task, checkpoints.best_step, checkpoints.best)
            return FINISHED
        except Exception as error:
            explained = guard.explained(error, trainer.global_step)
            if explained is error:
                raise
            raise explained from error
    record.finished(trainer, split, task.measured, checkpoints.best_step, checkpoints.best)
    return FINISHED


def tell_start(settings: TrainerSettings, folder: Path, data: DataModule, limits: Budget) -> None:
    """Say what is about to be trained, and where it can be watched."""
    processes = settings.devices * settings.num_nodes
    cut = f" in {processes * settings.accumulate} parts" if processes * settings.accumulate > 1 else ""
    steps = "until the time is up" if limits.max_steps >= ENDLESS else f"{limits.max_steps:,} steps"
    print(
        f"{data.order.described()}; {steps}{cut};"
        f" {processes} x {device_type(settings.accelerator)}, {torch.get_num_threads()} threads each; in {folder}",
        file=sys.stderr,
    )


def tell_left_out(prepared: Prepared, objective: Objective) -> None:
    """Say how many examples of each split are not read as they are."""
    for name, split in prepared.splits.items():
        for said in objective.left_out("training" if name == "train" else name, split):
            print(said)


def _record(
    settings: TrainerSettings,
    folder: Path,
    data: DataModule,
    prepared: Prepared,
    model_factory: Callable[[], Model],
    objective: Objective,
    limits: Budget,
) -> Record:
    with torch.device("meta"):
        sketch = model_factory()
    flops = flops_per_token(sketch, data.seq_len)
    if rank() != 0:
        return Record(None, None, limits, data.order.steps_per_epoch, flops, None)
    figures = ("loss", *objective.measures, *objective.derived)
    columns = [
        f"{split}/{name}"
        for split, final in (("validation", False), ("test", True))
        for name in (*figures, *(objective.written if objective.writes(final) else ()))
    ]
    device = device_type(settings.accelerator)
    train = [*TRAIN, *(["expert_load"] if has_experts(sketch) else [])]
    return Record(
        Metrics(folder / "metrics.csv", [*(f"train/{name}" for name in train), *columns]),
        Summary(
            folder / "summary.json",
            parameters=count_parameters(sketch),
            flops_per_token=flops,
            total_steps=limits.max_steps if limits.max_steps < ENDLESS else None,
            monitor={"name": f"validation/{objective.monitor[0]}", "mode": objective.monitor[1]},
            **({"signatures": objective.signatures()} if objective.signatures() else {}),
            **({"unknown_tokens": prepared.unknown_shares} if prepared.unknown_shares else {}),
        ),
        limits,
        data.order.steps_per_epoch,
        flops,
        matmul_ceiling(device, pick_precision(settings.precision, device)),
    )


def _trainer(
    settings: TrainerSettings,
    folder: Path,
    limits: Budget,
    loggers: Sequence[Logger],
    saving: AtomicCheckpointIO,
    callbacks: list[Callback],
) -> L.Trainer:
    quiet()
    for callback in callbacks:
        leave_out_empty_hooks(callback)
    device = device_type(settings.accelerator)
    precision: Any = pick_precision(settings.precision, device)
    mixed = mixed_precision(settings.strategy, precision, device)
    trainer = L.Trainer(
        accelerator=device,
        devices=settings.devices,
        num_nodes=settings.num_nodes,
        strategy=strategy_of(
            settings.strategy,
            settings.devices * settings.num_nodes,
            settings.tensor_parallel,
            settings.save_parts,
            settings.cpu_offload,
            patience(settings.timeout),
        ),
        precision=precision if mixed is None else None,
        max_steps=limits.max_steps,
        max_epochs=-1,
        accumulate_grad_batches=settings.accumulate,
        val_check_interval=1,  # `Checkpoints` says after each step whether to validate
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        callbacks=callbacks,
        logger=list(loggers),
        plugins=[saving, *([] if mixed is None else [mixed])],
        use_distributed_sampler=False,
        enable_model_summary=False,
        deterministic=settings.deterministic,
        profiler=settings.profiler or Unprofiled(),
        default_root_dir=folder,
    )
    # `Preemption` handles signals. Lightning's own handlers end a run without a checkpoint, exit with 0 and talk to the
    # other ranks from within the handler, which can hang; and its ranks agree on a stop before each micro-batch.
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
    return trainer


HOOKS = (
    "on_train_batch_start",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_train_batch_end",
)
"""What Lightning calls of every callback in each step."""


def leave_out_empty_hooks(callback: Callback) -> None:
    """Have Lightning pass over hooks of a step that do nothing: it calls whatever is callable, 80 times a step.

    In the callback itself these are None from then on.
    """
    for hook in HOOKS:
        if getattr(type(callback), hook) is getattr(Callback, hook) and hook not in vars(callback):
            setattr(callback, hook, None)


class Unprofiled(PassThroughProfiler):
    """Measures nothing. Nor does Lightning's own, but by a generator around each of the 150 hooks of a step."""

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        return _NOTHING


_NOTHING = nullcontext()


def quiet() -> None:
    """Keep Lightning to what a user can act on: its banners and tips are neither errors nor news."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    for message in (
        r".*does not have many workers.*",  # ours make batches in less time than a step takes, or num_workers is set
        r".*It is recommended to use `self.log\(.*sync_dist=True.*",  # the figures are of all ranks already
        r".*Consider setting `persistent_workers.*",
        r"The number of training batches .* is smaller than the logging interval.*",  # `Record` decides when to log
        r".*The `srun` command is available.*",  # our own launcher starts ranks; srun starts whole jobs
        r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*",  # Lightning's own, with torch 2.13
    ):
        warnings.filterwarnings("ignore", message=message)
