"""Few weights beside many frozen ones."""

import math
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch
from jaxtyping import Float
from torch import Tensor, nn


class LowRank(nn.Module):
    """alpha / rank * B A x, with A of rank x n_inputs and B of n_outputs x rank.

    A begins uniform in +-1 / sqrt(n_inputs), B as 0, so that at first nothing changes.
    """

    def __init__(self, n_inputs: int, n_outputs: int, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, n_inputs))
        self.up = nn.Parameter(torch.empty(n_outputs, rank))
        self.scale = alpha / rank
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch n_inputs"]) -> Float[Tensor, "*batch n_outputs"]:
        return nn.functional.linear(nn.functional.linear(self.dropout(x), self.down), self.up * self.scale)

    def initialise_parameter(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """See the class."""
        if name == "up":
            value.zero_()
        else:
            bound = 1 / math.sqrt(value.shape[1])
            nn.init.uniform_(value, -bound, bound, generator=generator)


class AdaptedLinear(nn.Linear):
    """A projection, whose weight and bias it takes, with another one beside it."""

    def __init__(self, of: nn.Linear, adapter: LowRank) -> None:
        super().__init__(of.in_features, of.out_features, bias=of.bias is not None, device="meta")
        self.weight, self.bias = of.weight, of.bias
        self.adapter = adapter

    def merged(self) -> nn.Linear:
        """One ordinary projection that computes the same."""
        plain = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        product = self.adapter.up @ self.adapter.down * self.adapter.scale
        plain.weight = nn.Parameter(self.weight.detach() + product.detach().to(self.weight.dtype))
        plain.bias = self.bias
        return plain

    def forward(self, input: Float[Tensor, "*batch n_inputs"]) -> Float[Tensor, "*batch n_outputs"]:
        return super().forward(input) + self.adapter(input)


class LoRA:
    """Low-rank adaptation: projections stay as they are, and a product of two thin matrices is learned beside each.

    Hu et al. 2021 (https://arxiv.org/abs/2106.09685), section 4. Everything else of the model is frozen, but not a
    head that a task brings (of classes, say), which must be learned. `merged` adds the products to the projections.

    Args:
        rank: of the products, at least 1.
        alpha: alpha / rank multiplies them, above 0.
        dropout: share of their input set to zero in training, in [0, 1).
        targets: names of projections, such as "q_proj", or patterns of whole names, such as "decoder.*.v_proj".

    Raises:
        ValueError: `rank` < 1, `alpha` <= 0, `dropout` outside [0, 1), or a target that no projection is called.
    """

    def __init__(self, *, rank: int, alpha: float, dropout: float, targets: Sequence[str]) -> None:
        if rank < 1:
            raise ValueError(f"LoRA: rank={rank} is less than 1; set model.adapter.rank to at least 1")
        if alpha <= 0:
            raise ValueError(f"LoRA: alpha={alpha} is not positive; set model.adapter.alpha above 0")
        if not 0 <= dropout < 1:
            raise ValueError(
                f"LoRA: dropout={dropout} is no share; set model.adapter.dropout to at least 0 and less than 1"
            )
        self.rank, self.alpha, self.dropout, self.targets = rank, alpha, dropout, list(targets)

    def adapt(self, model: nn.Module, learned: Sequence[str] = ()) -> None:
        """Changes the projections of `model` in place and freezes the rest of it.

        Args:
            learned: beginnings of the names of parameters that are not frozen.
        """
        places = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith(tuple(learned)))
        for target in self.targets:
            found = [name for name in places if fnmatchcase(name, target) or name.rpartition(".")[2] == target]
            if not found:
                last = sorted({name.rpartition(".")[2] for name in places})
                near = get_close_matches(target, last, n=1, cutoff=0) or last
                raise ValueError(
                    f"LoRA: no projection is called {target!r}; set model.adapter.targets to names among "
                    f"{', '.join(last)} (the nearest is {near[0]})"
                )
            for name in found:
                module = places[name]
                if isinstance(model.get_submodule(name), AdaptedLinear):  # by another target
                    continue
                beside = LowRank(module.in_features, module.out_features, self.rank, self.alpha, self.dropout)
                _put(model, name, AdaptedLinear(module, beside))


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Parameters that training leaves as they are.

    Args:
        patterns: beginnings of their names, such as "embedding" or "stack.layers.0", or patterns such as
            "*.norm.weight".

    Raises:
        ValueError: a pattern fits no parameter, or nothing is left to train.
    """
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        found = [name for name in names if fnmatchcase(name, pattern) or f"{name}.".startswith(f"{pattern}.")]
        if not found:
            near = get_close_matches(pattern, names, n=1, cutoff=0)
            raise ValueError(
                f"frozen: {pattern!r} fits no parameter; set model.frozen to beginnings of names, such as {near[0]}"
            )
        for name in found:
            model.get_parameter(name).requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"frozen: {', '.join(patterns)} leaves nothing to train; take something out of model.frozen")


def merge(model: nn.Module) -> None:
    """Adds what low-rank adaptation has learned to the projections of `model`, which become ordinary ones again."""
    for name, module in list(model.named_modules()):
        if isinstance(module, AdaptedLinear):
            _put(model, name, module.merged())


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, last = name.rpartition(".")
    setattr(model.get_submodule(owner), last, module)
