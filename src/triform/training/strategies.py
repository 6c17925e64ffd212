"""How several devices share the work of training one model."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.optim import Adafactor, Optimizer

from triform.layers.block import Block
from triform.layers.feed_forward.mixture import MixtureOfExperts
from triform.layers.parallel import Layout
from triform.layers.tensor_parallel import Ranks, share
from triform.tasks.task import Task
from triform.training.optimizers import Joint
from triform.training.saving import read_checkpoint

DATA, TENSOR = "data_parallel", "tensor_parallel"
"""Dimensions of the mesh of devices, as Lightning names them."""

SHARDED = ("fsdp", "tensor_parallel")
"""Strategies under which a rank holds a part of the model."""

NARROW = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""What `trainer.precision` multiplies matrices in, where that is narrower than the weights."""


def strategy_of(
    name: str, ranks: int, tensor_parallel: int, apart: bool, offload: bool, timeout: timedelta
) -> Strategy | str:
    """What Lightning runs a model with.

    Args:
        name: `auto`, `ddp`, `fsdp` or `tensor_parallel`; auto is DDP where there are several ranks.
        ranks: of all machines.
        tensor_parallel: ranks that compute each layer together; neighbours, so that they are on one machine.
        apart: each rank writes its part of a checkpoint.
        offload: ranks must agree on what is in main memory, too.
        timeout: how long ranks wait for each other.
    """
    if name in SHARDED:
        backend = "cpu:gloo,cuda:nccl" if offload else None
        return Sharded(ranks // tensor_parallel, tensor_parallel, apart, backend, timeout)
    return "auto" if ranks == 1 else DDPStrategy(gradient_as_bucket_view=True, timeout=timeout)


def check_offload(name: str, tensor_parallel: int, device: str, wanted: bool) -> None:
    """Refuse to keep in main memory what is there already, or what is not cut.

    Raises:
        ValueError: it names the key.
    """
    if wanted and (name != "fsdp" or tensor_parallel > 1 or device != "cuda"):
        where = f"strategy={name}, tensor_parallel={tensor_parallel} on a device of type {device}"
        raise ValueError(
            f"trainer: cpu_offload=true has no meaning under {where}; set trainer.cpu_offload=false, or "
            "trainer=fsdp on GPUs"
        )


def check_sizes(name: str, ranks: int, tensor_parallel: int) -> None:
    """Refuse sizes that do not multiply to the number of ranks.

    Raises:
        ValueError: it names the keys.
    """
    if tensor_parallel < 1 or ranks % tensor_parallel:
        raise ValueError(
            f"trainer: tensor_parallel={tensor_parallel} does not divide the {ranks} ranks of trainer.devices times "
            f"trainer.num_nodes; set trainer.tensor_parallel to a divisor of {ranks}"
        )
    if name == "tensor_parallel" and tensor_parallel != ranks:
        raise ValueError(
            f"trainer: tensor_parallel={tensor_parallel} is not all {ranks} ranks; set it to {ranks}, "
            f"or trainer=fsdp_tp, under which groups of {tensor_parallel} read different rows"
        )
    if name not in SHARDED and tensor_parallel > 1:
        raise ValueError(
            f"trainer: tensor_parallel={tensor_parallel} has no meaning under strategy={name}; set "
            f"trainer=tensor_parallel or trainer=fsdp_tp"
        )


def mixed_precision(name: str, precision: str, device: str) -> MixedPrecision | None:
    """What Lightning computes in float16 with, where each rank holds a part of the gradient; None: its own way."""
    if name not in SHARDED or precision != "16-mixed":
        return None
    return MixedPrecision("16-mixed", device, SharedScaler(device))


class SharedScaler(torch.amp.GradScaler):
    """A loss scaler of several ranks, of which each sees a part of the gradient: all skip a step that one must skip."""

    def _unscale_grads_(self, *args: Any, **kwargs: Any) -> dict[torch.device, Tensor]:
        found: dict[torch.device, Tensor] = super()._unscale_grads_(*args, **kwargs)
        for not_finite in found.values():
            dist.all_reduce(not_finite, dist.ReduceOp.MAX)
        return found


def check_sharding(name: str, tensor_parallel: int, model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse a model or an optimizer that cannot be cut over ranks. The model, on the meta device, is cut by this.

    Raises:
        ValueError: the optimizer looks at whole matrices, or the ranks do not divide heads or inner units.
    """
    if name not in SHARDED:
        return
    if isinstance(optimizer, Joint | Adafactor):
        which = "muon" if isinstance(optimizer, Joint) else "adafactor"
        raise ValueError(
            f"optimizer: {which} looks at whole matrices, of which trainer.strategy={name} leaves each rank a part; "
            "set optimizer=adamw, or trainer=ddp"
        )
    share(model, Ranks(None, tensor_parallel, 0))


def shared(
    model: nn.Module, mesh: DeviceMesh, fully: bool, offload: bool = False, narrow: torch.dtype | None = None
) -> Layout:
    """Cut a model that is still on the meta device to what this rank holds.

    Args:
        fully: cut it over the ranks that read different rows, too.
        offload: then keep that, with gradients and the optimizer's state, in main memory.
        narrow: and send blocks in this type, see `fully_sharded`; None: in their own.
    """
    ranks = Ranks(mesh[TENSOR].get_group(), mesh[TENSOR].size(), mesh[TENSOR].get_local_rank())
    layout = share(model, ranks) if ranks.size > 1 else Layout()
    if fully:
        fully_sharded(model, mesh, CPUOffloadPolicy() if offload else OffloadPolicy(), narrow)
    return layout


def fully_sharded(model: nn.Module, mesh: DeviceMesh, offload: OffloadPolicy, narrow: torch.dtype | None) -> None:
    """Cut a model by FSDP2: each block is put together for its own forward and backward pass alone.

    What is outside of the blocks stays together from the forward pass to the backward pass, as the head is called in
    between by itself, and a tied one reads the embedding's table.

    Args:
        narrow: the type that autocast multiplies matrices in; None: there is no autocast. Blocks are put together in
            it, which halves what is sent and leaves autocast nothing to copy; gradients leave a block in it and are
            added up in float32. What is computed in which type stays autocast's business, so that norms, scores and
            the residual stream are as on one device. Unlike there, what is computed in float32 from parameters of a
            block takes them, and has their gradient, rounded to this type: gains and biases of norms, a mixture's
            router, sinks. Tables and the last norm stay in float32.
    """
    whole = MixedPrecisionPolicy(cast_forward_inputs=False)
    inside = whole if narrow is None else MixedPrecisionPolicy(narrow, torch.float32, cast_forward_inputs=False)
    # Moved after each step by what all ranks know, without a gradient, and a number for each expert.
    apart = {p for m in model.modules() if isinstance(m, MixtureOfExperts) and (p := m.choice_bias) is not None}
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh[DATA], ignored_params=apart, offload_policy=offload, mp_policy=inside)
            if narrow is not None and mesh.device_type == "cpu":
                for norm in (part for part in module.modules() if isinstance(part, nn.LayerNorm)):
                    norm.forward = partial(_wide_norm, norm)  # type: ignore[method-assign]
    fully_shard(
        model,
        mesh=mesh[DATA],
        ignored_params=apart,
        offload_policy=offload,
        mp_policy=whole,
        reshard_after_forward=False,
    )


def _wide_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    """In float32, as autocast has it on a GPU; on a CPU it does not, and torch refuses weights narrower than `x`."""
    weight, bias = (None if p is None else p.float() for p in (norm.weight, norm.bias))
    return nn.functional.layer_norm(x.float(), norm.normalized_shape, weight, bias, norm.eps).to(x.dtype)


class Sharded(ModelParallelStrategy):
    """Lightning's, with checkpoints as every other strategy has them: whole, under plain names, by `checkpoint_io`.

    So any strategy goes on from the checkpoint of any other. Each tensor is put together by all ranks, one after
    another, and kept by the first one alone, on the CPU.

    Args:
        apart: each rank writes what it holds instead, and they are put together when they are read.
        timeout: how long ranks wait for each other.
    """

    def __init__(
        self, data_parallel_size: int, tensor_parallel_size: int, apart: bool, backend: str | None, timeout: timedelta
    ) -> None:
        super().__init__(data_parallel_size, tensor_parallel_size, False, backend, timeout)
        self.apart, self.timeout = apart, timeout

    def setup_environment(self) -> None:
        super().setup_environment()
        assert self.device_mesh is not None
        # Lightning makes the mesh, and torch its groups with a limit of their own: 10 minutes under NCCL, by which a
        # rank that is slow would end the job before the watchdog has told where. There is no public way to another.
        for group in self.device_mesh.get_all_groups():
            dist.distributed_c10d._set_pg_timeout(self.timeout, group)

    @property
    def task(self) -> Task:
        assert isinstance(self.lightning_module, Task)
        return self.lightning_module

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def model_to_device(self) -> None:
        """`Task.configure_model` has put everything where it belongs."""

    def lightning_module_state_dict(self) -> dict[str, Any]:
        self.task.layout.apart = self.apart
        return self.task.weights()

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        self.task.take(checkpoint["state_dict"])

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        optimizer = getattr(optimizer, "_optimizer", optimizer)
        state, layout = optimizer.state_dict(), self.task.layout
        of = dict(_numbered(optimizer, self.task))
        whole: dict[int, dict[str, Any]] = {}
        for number, values in state["state"].items():
            name, parameter = of[number]
            made = {key: layout.kept(name, v) if _is_like(v, parameter) else v for key, v in values.items()}
            if self.is_global_zero or layout.apart:
                whole[number] = {key: v.cpu() if isinstance(v, Tensor) else v for key, v in made.items()}
        return {**state, "state": whole}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        layout = self.task.layout
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            of = dict(_numbered(optimizer, self.task))
            parts: dict[int, dict[str, Any]] = {}
            for number, values in state["state"].items():
                name, parameter = of[number]
                shape = layout.shape(name, parameter)
                parts[number] = {
                    key: layout.part(name, v, parameter) if len(shape) and getattr(v, "shape", None) == shape else v
                    for key, v in values.items()
                }
            optimizer.load_state_dict({**state, "state": parts})

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        if self.is_global_zero or self.apart:
            self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """As far as this rank needs it; ranks have found it good together."""
        return read_checkpoint(Path(checkpoint_path), dist.get_rank())


def _numbered(optimizer: Optimizer, task: Task) -> Iterator[tuple[int, tuple[str, Tensor]]]:
    """A parameter's number in an optimizer's state, its name and itself."""
    names = {id(parameter): name for name, parameter in task.model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in enumerate(parameters):
        yield number, (names[id(parameter)], parameter)


def _is_like(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape == parameter.shape
