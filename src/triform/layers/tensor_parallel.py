"""Several ranks compute each layer together (Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053, section 3).

A part that can be shared has a method `share(ranks)`, which says by the methods of `Ranks` how: its first projections
are cut by their outputs, its last one by its inputs, so that what lies between (heads, inner units) is each rank's own
and one sum over the ranks makes the output. Whatever has no such method is computed by every rank alike.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from triform.layers.lora import AdaptedLinear
from triform.layers.parallel import Layout


class Ranks:
    """The ranks that share a model, and what each of its parts has said so far.

    Args:
        group: of processes; None: there is no one to talk to, as in a plan.
        size: how many they are.
        place: of this one among them.
    """

    def __init__(self, group: dist.ProcessGroup | None, size: int, place: int) -> None:
        self.group, self.size, self.place = group, size, place
        self._splits: dict[nn.Parameter, int] = {}
        self._summed: set[nn.Parameter] = set()

    def layout(self, model: nn.Module) -> Layout:
        """What has been said, by the names of parameters."""
        named = list(model.named_parameters())
        return Layout(
            self.group,
            {name: self._splits[p] for name, p in named if p in self._splits},
            [name for name, p in named if p in self._summed],
        )

    # What a part says

    def divide(self, part: nn.Module, name: str, number: int, key: str) -> int:
        """Of `number` things those of each rank.

        Raises:
            ValueError: the ranks do not divide it.
        """
        if number % self.size:
            raise ValueError(
                f"{type(part).__name__}: {name}={number} is not a multiple of trainer.tensor_parallel={self.size}; set "
                f"trainer.tensor_parallel to a divisor of {key}"
            )
        return number // self.size

    def columns(self, part: nn.Module, *names: str) -> None:
        """Projections of which each rank has some outputs."""
        for name in names:
            linear = part.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            linear.out_features //= self.size
            self.cut(linear, "weight", 0)
            self.cut(linear, "bias", 0)
            if isinstance(linear, AdaptedLinear):
                self.cut(linear.adapter, "up", 0)
                self._summed.add(linear.adapter.down)

    def rows(self, part: nn.Module, name: str) -> None:
        """A projection of which each rank has some inputs; the sum over the ranks is its output."""
        linear = part.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        linear.in_features //= self.size
        self.cut(linear, "weight", 1)
        shared = SharedLinear(linear, self.group)
        if isinstance(linear, AdaptedLinear):
            self.cut(linear.adapter, "down", 1)
            self._summed.add(linear.adapter.up)
            self._draws_apart(linear.adapter)  # the dropout of its own inputs
        setattr(part, name, shared)

    def cut(self, module: nn.Module, name: str, axis: int) -> None:
        """A parameter of which each rank has a piece along an axis; it may be None."""
        parameter = getattr(module, name)
        if parameter is None:
            return
        piece = nn.Parameter(parameter.detach().chunk(self.size, dim=axis)[self.place].clone(), parameter.requires_grad)
        setattr(module, name, piece)
        self._splits[piece] = axis

    def sums(self, *modules: nn.Module) -> None:
        """What each rank applies to its own heads or units, so that the gradient is the sum over the ranks."""
        for module in modules:
            self._summed.update(module.parameters())

    def enters(self, part: nn.Module, inputs: tuple[str, ...], heads: str | None = None, noisy: bool = False) -> None:
        """What every rank has goes into a part of which each computes a share.

        Args:
            inputs: names of the arguments of its `forward` that have a gradient.
            heads: name of an argument with an axis 1 for all heads, of which each rank reads its own.
            noisy: in training it draws noise for its share, which must be another on each rank.
        """
        part.register_forward_pre_hook(_Entrance(self, part, inputs, heads), with_kwargs=True)
        if noisy:
            self._draws_apart(part)

    def _draws_apart(self, part: nn.Module) -> None:
        noise = _Noise(self.place)
        part.register_forward_pre_hook(noise.begin)
        part.register_forward_hook(noise.end, always_call=True)


def share(model: nn.Module, ranks: Ranks) -> Layout:
    """Have each part of a model that can be shared cut to this rank's share.

    Raises:
        ValueError: the ranks do not divide the heads or inner units of a part.
    """
    part: Any
    for part in list(model.modules()):
        if hasattr(part, "share"):
            part.share(ranks)
    return ranks.layout(model)


class SharedLinear(nn.Linear):
    """A projection, whose parameters it takes, with the inputs of one rank; the output is the sum over all ranks."""

    adapter: Callable[[Tensor], Tensor] | None

    def __init__(self, of: nn.Linear, group: dist.ProcessGroup | None) -> None:
        super().__init__(of.in_features, of.out_features, bias=of.bias is not None, device="meta")
        self.weight, self.bias = of.weight, of.bias
        self.adapter = of.adapter if isinstance(of, AdaptedLinear) else None
        self.group = group

    def forward(self, input: Tensor) -> Tensor:
        own = nn.functional.linear(input, self.weight)
        if self.adapter is not None:
            own = own + self.adapter(input)
        out: Tensor = _Leave.apply(own, self.group)
        bias: Tensor | None = self.bias
        return out if bias is None else out + bias.to(out.dtype)


class _Entrance:
    """Hook before the `forward` of a part; see `Ranks.enters`."""

    def __init__(self, ranks: Ranks, part: nn.Module, inputs: tuple[str, ...], heads: str | None) -> None:
        names = list(inspect.signature(type(part).forward).parameters)[1:]
        self.ranks = ranks
        self.changes: list[tuple[str, int, Callable[[Tensor], Tensor]]] = [
            (name, names.index(name), self._enter) for name in inputs
        ]
        if heads is not None:
            self.changes.append((heads, names.index(heads), self._own_heads))

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        placed, named = list(args), dict(kwargs)
        for name, place, change in self.changes:
            if place < len(placed) and placed[place] is not None:
                placed[place] = change(placed[place])
            elif named.get(name) is not None:
                named[name] = change(named[name])
        return tuple(placed), named

    def _enter(self, x: Tensor) -> Tensor:
        entered: Tensor = _Enter.apply(x, self.ranks.group)
        return entered

    def _own_heads(self, x: Tensor) -> Tensor:
        return x.chunk(self.ranks.size, dim=1)[self.ranks.place]


class _Noise:
    """Within a part each rank draws from a stream of its own; behind it all go on from the same one."""

    def __init__(self, place: int) -> None:
        self.place = place
        self._before: tuple[Tensor, Tensor | None] | None = None

    def begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if module.training:
            seed = int(torch.randint(2**62, ()))  # of the common stream, which is on the CPU
            on_gpu = args[0].device if args[0].is_cuda else None
            self._before = torch.get_rng_state(), None if on_gpu is None else torch.cuda.get_rng_state(on_gpu)
            torch.manual_seed(seed + self.place)

    def end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self._before is not None:
            (cpu, cuda), self._before = self._before, None
            torch.set_rng_state(cpu)
            if cuda is not None:
                torch.cuda.set_rng_state(cuda, args[0].device)


class _Enter(torch.autograd.Function):
    """As it is; the gradient is the sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _sum(gradient, ctx.group), None


class _Leave(torch.autograd.Function):
    """The sum over the ranks; the gradient is as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _sum(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    if group is not None:
        dist.all_reduce(x, group=group)
    return x
