"""Optimizers, and which parameters they treat how.

Weight decay is for matrices: biases and norm gains have none, and embeddings only where `decay_embeddings` says so.
`layer_decay` is for fine-tuning: the lower a layer, the smaller its learning rate. Each parameter is in exactly one
group.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adafactor, AdamW, Muon, Optimizer

from triform.layers.init import multipliers

MATRIX, EMBEDDING, VECTOR = "matrix", "embedding", "vector"


def adamw(
    model: nn.Module,
    lr: float,
    betas: Sequence[float],
    eps: float,
    weight_decay: float,
    decay_embeddings: bool,
    layer_decay: float,
) -> Optimizer:
    """AdamW (Loshchilov and Hutter 2019), fused where torch has it.

    Args:
        lr: peak learning rate, before the schedule's factor.
        betas: decay of the running mean and square of the gradient, in [0, 1).
        weight_decay: per update and unit of learning rate, of matrices.
        decay_embeddings: whether embedding tables decay, too.
        layer_decay: see `weights`.
    """
    made = groups(weights(model, layer_decay), lr, weight_decay, decay_embeddings)
    return AdamW(made, lr=lr, betas=_two(betas), eps=eps, fused=True)


def adafactor(
    model: nn.Module,
    lr: float,
    beta2_decay: float,
    eps: Sequence[float | None],
    clip_threshold: float,
    weight_decay: float,
    decay_embeddings: bool,
    layer_decay: float,
) -> Optimizer:
    """Adafactor: the running square of a matrix as a row and a column (Shazeer and Stern 2018, algorithm 5).

    Args:
        lr: relative to the root mean square of a weight, and at most 1 / sqrt(step) whatever the schedule.
        beta2_decay: exponent of the step in the decay of the running square, at most 0; -0.8 in the paper.
        eps: added to the squared gradient (None: the smallest that the precision resolves), and the least root mean
            square of a weight.
        clip_threshold: largest root mean square of an update, before the learning rate; at least 1.
        weight_decay, decay_embeddings, layer_decay: see `adamw`.
    """
    made = groups(weights(model, layer_decay, width_exponent=0.5), lr, weight_decay, decay_embeddings)
    least = eps[1]
    if least is None:
        raise ValueError(f"adafactor: eps={list(eps)} has no second number; set optimizer.eps, such as [null, 1.0e-3]")
    return Adafactor(made, lr=lr, beta2_decay=beta2_decay, eps=(eps[0], least), d=clip_threshold)


def lion(
    model: nn.Module,
    lr: float,
    betas: Sequence[float],
    weight_decay: float,
    decay_embeddings: bool,
    layer_decay: float,
) -> Optimizer:
    """Lion; see the class. A third of AdamW's learning rate or less, and as many times its weight decay.

    Args:
        lr: peak learning rate: every weight moves by just that.
        betas: share of the running mean in an update, and its decay, in [0, 1).
        weight_decay, decay_embeddings, layer_decay: see `adamw`.
    """
    return Lion(groups(weights(model, layer_decay), lr, weight_decay, decay_embeddings), lr, _two(betas))


def schedule_free(
    model: nn.Module,
    lr: float,
    betas: Sequence[float],
    eps: float,
    weight_decay: float,
    decay_embeddings: bool,
    layer_decay: float,
) -> Optimizer:
    """Schedule-free AdamW (Defazio et al. 2024): an average of the weights takes the place of a schedule that falls.

    The gradient is taken at a point between that average and the fastest weights, and the model holds this point
    throughout; what is judged and kept is the average (see `own_average`). The library's own way, to turn the one into
    the other and back by `eval` and `train`, rounds, so that each validation would change the run a little.

    Args:
        lr: learning rate after warm-up, before the schedule's factor.
        betas: how near the average the gradient is taken, in (0, 1), and decay of its running square, in [0, 1).
        weight_decay, decay_embeddings, layer_decay: see `adamw`.

    Raises:
        ValueError: the package schedulefree is not installed, or `betas` are not as above.
    """
    try:
        from schedulefree import AdamWScheduleFree
    except ModuleNotFoundError:
        raise ValueError(
            "schedule_free: the package schedulefree is not installed; "
            "pip install 'triform[schedule-free]', or set optimizer=adamw"
        ) from None
    if not 0 < _two(betas)[0] < 1:
        raise ValueError(
            f"schedule_free: betas[0]={betas[0]} is not between 0 and 1; set optimizer.betas, such as [0.9, 0.98]"
        )
    made = groups(weights(model, layer_decay), lr, weight_decay, decay_embeddings)
    optimizer = AdamWScheduleFree(made, lr=lr, betas=_two(betas), eps=eps)
    optimizer.train()
    return optimizer


def muon(
    model: nn.Module,
    lr: float,
    momentum: float,
    weight_decay: float,
    adamw_lr: float,
    betas: Sequence[float],
    eps: float,
    decay_embeddings: bool,
    layer_decay: float,
) -> Optimizer:
    """Muon for the matrices inside the layers, AdamW for the rest (Jordan et al. 2024; scale: Liu et al. 2025).

    Args:
        lr: of the matrices; updates are scaled to AdamW's root mean square, so AdamW's learning rates suit.
        momentum: of the matrices, in [0, 1).
        adamw_lr: of embeddings, head, biases and norm gains.
        weight_decay, decay_embeddings, layer_decay: see `adamw`.

    Raises:
        ValueError: the layers have no matrices.
    """
    known = weights(model, layer_decay, width_exponent=0.5)
    inside = [w for w in known if w.kind == MATRIX and w.tensor.ndim == 2 and not w.name.startswith("head.")]
    if not inside:
        raise ValueError(
            f"Muon: the layers of {type(model).__name__} have no matrices, as convolutions have none; "
            "choose another one, such as optimizer=adamw"
        )
    taken = {w.name for w in inside}
    rest = [w for w in weights(model, layer_decay) if w.name not in taken]
    return Joint(
        Muon(
            groups(inside, lr, weight_decay, decay_embeddings),
            lr=lr,
            momentum=momentum,
            adjust_lr_fn="match_rms_adamw",
        ),
        AdamW(
            groups(rest, adamw_lr, weight_decay, decay_embeddings),
            lr=adamw_lr,
            betas=_two(betas),
            eps=eps,
            fused=True,
        ),
    )


def _two(betas: Sequence[float]) -> tuple[float, float]:
    if len(betas) != 2:
        raise ValueError(f"optimizer.betas={list(betas)} are not two numbers; set optimizer.betas, such as [0.9,0.98]")
    return betas[0], betas[1]


class Lion(Optimizer):
    """The sign of an interpolated momentum (Chen et al. 2023, algorithm 2), with decoupled weight decay.

    Args:
        params: parameters or groups of them; a group may have its own `lr` and `weight_decay`.
        betas: b1 and b2, in [0, 1): an update is sign(b1 m + (1 - b1) g), then m becomes b2 m + (1 - b2) g.

    Raises:
        ValueError: a beta outside [0, 1).
    """

    def __init__(self, params: Iterable[Any], lr: float, betas: tuple[float, float]) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"Lion: betas={list(betas)} are not in [0, 1); set optimizer.betas, such as [0.9, 0.99]")
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            gradients = [p.grad for p in parameters]
            for p in parameters:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            momenta = [self.state[p]["momentum"] for p in parameters]
            keep, decay = group["betas"]
            updates = torch._foreach_lerp(momenta, gradients, 1 - keep)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parameters, updates, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, gradients, 1 - decay)
        return loss


class Joint(Optimizer):
    """Several optimizers over disjoint parameters as one, for schedules, clipping and checkpoints."""

    def __init__(self, *parts: Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.param_groups = [group for part in parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def own_average(optimizer: Optimizer) -> dict[Tensor, Tensor] | None:
    """The average by parameter, of an optimizer that takes the gradient elsewhere than at what it optimises.

    None: the optimizer is none of the schedule-free ones.
    """
    if not all("train_mode" in group for group in optimizer.param_groups):
        return None
    found = {}
    for group in optimizer.param_groups:
        beyond = 1 - 1 / group["betas"][0]  # on the line from z through the point at hand: the library's eval()
        for p in group["params"]:
            z = optimizer.state[p].get("z") if p in optimizer.state else None
            found[p] = p.detach().clone() if z is None else torch.lerp(p.detach(), z, beyond)
    return found


@dataclass(frozen=True, eq=False)
class Weight:
    """A parameter that is trained, with what optimizers want to know of it.

    Args:
        kind: MATRIX, EMBEDDING (a table of vectors), or VECTOR (biases, norm gains and their like).
        lr_factor: of its learning rate.
    """

    name: str
    tensor: Tensor
    kind: str
    lr_factor: float


def weights(model: nn.Module, layer_decay: float, width_exponent: float = 1.0) -> list[Weight]:
    """The trained parameters, each once, matrices first.

    Args:
        layer_decay: factor of the learning rate from a layer to the one below it, in (0, 1] (Howard and Ruder 2018;
            Clark et al. 2020, appendix A): the head has 1, the top layer `layer_decay`, embeddings the smallest. The
            layers of an encoder lie below those of its decoder.
        width_exponent: of the factors that `model/init=mup` asks for: 1 for updates whose entries do not depend on
            the width, as Adam's; 1/2 for those that shrink with its square root (relative to the weight, in
            Adafactor) or that have a fixed spectral norm but for it (orthogonal of fixed root mean square, in Muon).

    Raises:
        ValueError: `layer_decay` is outside (0, 1].
    """
    if not 0 < layer_decay <= 1:
        raise ValueError(
            f"optimizer: layer_decay={layer_decay} is not above 0 and at most 1; set optimizer.layer_decay, such as 0.8"
        )
    distance, by_width = below_head(model), multipliers(model)
    tables = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    found = []
    for name, p in model.named_parameters():
        if p.requires_grad:
            kind = EMBEDDING if id(p) in tables else MATRIX if p.ndim >= 2 else VECTOR
            factor = layer_decay ** distance[name] * by_width[name] ** width_exponent
            found.append(Weight(name, p, kind, factor))
    return sorted(found, key=lambda weight: (MATRIX, EMBEDDING, VECTOR).index(weight.kind))


def below_head(model: nn.Module) -> dict[str, int]:
    """How many layers below the head each parameter is, by name: those of the head 0, of the top layer 1."""
    names = [name for name, _ in model.named_parameters()]
    sizes: dict[str, int] = {}  # stack, such as "encoder." -> its layers
    for name in names:
        if match := re.match(r"(.*?)layers\.(\d+)\.", name):
            sizes[match[1]] = max(sizes.get(match[1], 0), int(match[2]) + 1)
    under, total = {}, 0
    for stack, size in sizes.items():
        under[stack], total = total, total + size

    def height(name: str) -> int:
        if name.startswith("head."):
            return total + 1
        if match := re.match(r"(.*?)layers\.(\d+)\.", name):
            return under[match[1]] + int(match[2]) + 1
        stack = name.partition("final_norm.")[0]
        return under[stack] + sizes[stack] if stack in sizes else 0

    return {name: total + 1 - height(name) for name in names}


def groups(known: Iterable[Weight], lr: float, weight_decay: float, decay_embeddings: bool) -> list[dict[str, Any]]:
    """Parameter groups: one for each learning rate and weight decay that occurs."""
    if weight_decay < 0:  # torch looks at its default only, not at what groups say
        raise ValueError(f"optimizer: weight_decay={weight_decay} is below 0; set optimizer.weight_decay to 0 or more")
    made: dict[tuple[float, float], dict[str, Any]] = {}
    for weight in known:
        decays = weight.kind == MATRIX or (weight.kind == EMBEDDING and decay_embeddings)
        rates = (lr * weight.lr_factor, weight_decay if decays else 0.0)
        group = made.setdefault(rates, {"params": [], "lr": rates[0], "weight_decay": rates[1]})
        group["params"].append(weight.tensor)
    return list(made.values())
