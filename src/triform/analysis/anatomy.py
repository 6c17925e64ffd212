"""What a model is made of and what training it takes, from shapes alone: nothing is computed, no memory is taken."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from triform.layers.block import Block

MIB = 2**20


@dataclass(frozen=True)
class Part:
    """A module of the tree, or several equal ones in a row.

    Args:
        name: in its owner, such as "layers.0-3".
        shapes: of its own parameters, by name; (name, None): another module's, named, which it shares.
        parameters: in it and below, of all `count` of them, each counted once in the tree.
    """

    depth: int
    name: str
    kind: str
    count: int
    shapes: tuple[tuple[str, tuple[int, ...] | None], ...]
    parameters: int


def tree(model: nn.Module, depth: int) -> list[Part]:
    """The modules that have parameters, outermost first, equal neighbours as one.

    Args:
        depth: levels below the model.
    """
    owners: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        owners.setdefault(id(parameter), name)
    total = sum(p.numel() for p in model.parameters())
    return [Part(0, "model", type(model).__name__, 1, (), total), *_parts(model, "", 1, depth, owners)]


def _parts(module: nn.Module, prefix: str, level: int, depth: int, owners: Mapping[int, str]) -> Iterator[Part]:
    if level > depth:
        return
    for names, child in _runs(module):
        path = f"{prefix}{names[0]}"
        shapes = tuple(_shapes(child, path, owners))
        own = sum(p.numel() for n, p in child.named_parameters(path) if owners[id(p)] == n)
        if not shapes and not own:
            continue
        if isinstance(child, nn.ModuleList):  # a list is no part of its own: its items are
            for part in _parts(child, f"{path}.", level, depth, owners):
                yield Part(part.depth, f"{names[0]}.{part.name}" if part.depth == level else part.name, *_rest(part))
            continue
        name = names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}"
        yield Part(level, name, type(child).__name__, len(names), shapes, own * len(names))
        yield from _parts(child, f"{path}.", level + 1, depth, owners)


def _rest(part: Part) -> tuple[Any, ...]:
    return part.kind, part.count, part.shapes, part.parameters


def _runs(module: nn.Module) -> Iterator[tuple[list[str], nn.Module]]:
    """Children, those of a list that are made alike as one, with their names."""
    names: list[str] = []
    first: nn.Module | None = None
    for name, child in module.named_children():
        if first is not None and isinstance(module, nn.ModuleList) and _made(child) == _made(first):
            names.append(name)
            continue
        if first is not None:
            yield names, first
        names, first = [name], child
    if first is not None:
        yield names, first


def _made(module: nn.Module) -> list[Any]:
    """How a module is made: classes, shapes, and the window of attention."""
    inside = [(name, type(m), getattr(m, "window", None)) for name, m in module.named_modules()]
    return [*inside, *((name, p.shape) for name, p in module.named_parameters())]


def _shapes(module: nn.Module, path: str, owners: Mapping[int, str]) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    own = dict(module.named_parameters(recurse=False))
    for name, parameter in own.items():
        owner = owners[id(parameter)]
        yield (name, tuple(parameter.shape)) if owner == f"{path}.{name}" else (owner, None)
    shared = getattr(module, "weight", None)
    sharer = owners.get(id(shared))
    if "weight" not in own and sharer is not None and not sharer.startswith(f"{path}."):
        yield sharer, None


@dataclass(frozen=True)
class Memory:
    """Bytes on a device while training.

    Args:
        optimizer: None, as for the next ones: cannot be told without values.
        activations: what the forward pass keeps for the backward pass of one micro-batch, but for the logits.
        logits: they, their logarithm and their gradient, as far as a loss holds them at once, in float32.
        attention: what it keeps besides where no fused attention kernel applies (dropout of attention weights on the
            CPU, learned biases).
        gathered: what of weights and gradients is put together at a time, where devices hold parts of them.
    """

    weights: int
    gradients: int
    optimizer: int | None
    activations: int | None
    logits: int
    attention: int | None
    gathered: int = 0

    @property
    def total(self) -> int:
        """Under fused attention."""
        known = self.weights + self.gradients + self.logits + self.gathered
        return known + (self.optimizer or 0) + (self.activations or 0)


DTYPES = {"bf16-true": torch.bfloat16, "16-true": torch.float16, "64-true": torch.float64}
"""Precisions whose weights are not in float32."""

MIXED = 0.62
"""Share of the activations' bytes in float32 that mixed precision keeps: 0.58 to 0.66 of what encoders and decoders of
widths 64 and 256 kept on a CPU. Norms and the residual stream stay in float32."""


def memory(
    model: nn.Module,
    optimizer: Callable[[nn.Module], Optimizer],
    rows: int,
    seq_len: int,
    precision: str,
    hold: Callable[[nn.Module], int] = lambda model: 0,
    copied: int | None = None,
) -> Memory:
    """Of a model on the meta device, which gets the data type of `precision`.

    Every device holds all weights, gradients and the optimizer's state, as under DDP, whose buckets are the gradients
    themselves. Mixed precision keeps its copy of the weights for the backward pass too.

    Args:
        rows: of a micro-batch on one device, each of `seq_len` tokens (an encoder-decoder: on either side).
        precision: as `trainer.precision` says, not auto.
        hold: cuts the model to what the device holds between passes, and returns the bytes that are whole meanwhile.
        copied: bytes of the weights that mixed precision copies; None: of all.
    """
    model.to(DTYPES.get(precision, torch.float32))
    whole = sum(p.numel() * p.element_size() for p in model.parameters())
    logits = _logits(model, rows, seq_len)
    row = kept(model, seq_len)
    gathered = hold(model)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    optimizers = optimizer_bytes(optimizer(model))
    if row is None:
        return Memory(weights, trained, optimizers, None, logits, None, gathered)
    activations, attention, copies = row.activations, row.attention, 0
    if precision.endswith("-mixed"):
        activations, attention = round(MIXED * activations), attention // 2
        copies = (whole if copied is None else copied) // 2
    return Memory(weights, trained, optimizers, rows * activations + copies, logits, rows * attention, gathered)


def optimizer_bytes(optimizer: Optimizer) -> int | None:
    """Bytes of an optimizer's state, from a step that it takes on the meta device."""
    for part in getattr(optimizer, "parts", [optimizer]):
        for group in part.param_groups:
            for p in group["params"]:
                p.grad = torch.empty_like(p)
        for group in (whole := part.param_groups):
            group.update({key: False for key in ("fused", "foreach") if key in group})
            part.param_groups = [group]
            try:
                part.step()
            except (RuntimeError, NotImplementedError):
                continue  # some ask for a value, by when the state is there
            finally:
                part.param_groups = whole
                for p in group["params"]:
                    p.grad = None
    states = [part.state for part in getattr(optimizer, "parts", [optimizer])]
    tensors = [v for state in states for one in state.values() for v in one.values() if isinstance(v, Tensor)]
    return sum(v.numel() * v.element_size() for v in tensors) if tensors else None


class Kept(NamedTuple):
    """Bytes that the forward pass of a row keeps for the backward pass, without the logits.

    Args:
        activations: those of attention apart.
        attention: where no fused kernel applies.
        inputs: what goes into the blocks, part of `activations`.
    """

    activations: int
    attention: int
    inputs: int


def kept(model: Any, seq_len: int) -> Kept | None:
    """Of a model on the meta device; None: values decide, as in a mixture, which counts the tokens of its experts."""
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    held: dict[int, tuple[Any, torch.Size]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            held[storage._cdata] = (storage, tensor.shape)
        return tensor

    inputs: list[int] = []

    def enter(block: nn.Module, args: tuple[Any, ...]) -> None:
        inputs.append(sum(x.numel() * x.element_size() for x in args if isinstance(x, Tensor)))

    hooks = [module.register_forward_pre_hook(enter) for module in model.modules() if isinstance(module, Block)]
    row = model.embedding.blank(seq_len)
    was_training = model.training
    model.train()
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(*((row, row) if getattr(model, "family", "") == "encoder_decoder" else (row,)))
    except (RuntimeError, NotImplementedError):
        return None
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    sizes = {True: 0, False: 0}
    for storage, shape in held.values():
        # (1 * n_heads, q_len, kv_len): a row's hidden states begin with 1
        is_attention = shape[-2:] == (seq_len, seq_len) and (len(shape) == 4 or shape[0] != 1)
        sizes[is_attention] += storage.nbytes()
    return Kept(sizes[False], sizes[True], sum(inputs))


def _logits(model: Any, rows: int, seq_len: int) -> int:
    """Bytes of logits, their logarithm and their gradient that a loss holds at once."""
    return 3 * 4 * int(model.head.n_logits(rows, seq_len))


def micro_batch(data: Mapping[str, Any], trainer: Mapping[str, Any], devices: int) -> int:
    """Rows that a device reads at a time, at most."""
    rows = data["batch_size"] or max(1, data["batch_tokens"] // data["seq_len"])
    readers = max(devices * trainer["num_nodes"] // trainer["tensor_parallel"], 1)
    return math.ceil(rows / (readers * trainer["accumulate"]))


def mib(size: int | None) -> str:
    """A size in MiB, to three digits or whole."""
    if size is None:
        return "unknown"
    return f"{size / MIB:,.0f} MiB" if size >= 100 * MIB else f"{size / MIB:.3g} MiB"
