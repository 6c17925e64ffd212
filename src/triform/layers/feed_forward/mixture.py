"""Many feed-forward layers, of which each token takes a few."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from triform.layers.recompute import recomputing

Sum = Callable[[Tensor], Tensor]
"""Adds a tensor up over all ranks."""


class MixtureOfExperts(nn.Module):
    """A router sends each token to the `top_k` experts that it scores highest, and adds them up by their scores.

    Shazeer et al. 2017 (https://arxiv.org/abs/1701.06538); scores by softmax over all experts as in Fedus et al.
    2021 (Switch Transformer) and Mixtral, shared experts as in DeepSeekMoE (Dai et al. 2024). No expert has a
    capacity, so no token is dropped, and what a token becomes does not depend on the others; `loads` reports the
    capacity that would have been needed. Two ways to keep experts equally busy, which may be combined:

    - `balance_loss`: the auxiliary loss of Fedus et al., equation 4, added to the training loss (see `balance_loss`);
    - `balance_rate`: a bias on the scores, for the choice alone, moved after each step (see `rebalance`; Wang et al.
      2024, https://arxiv.org/abs/2408.15664; DeepSeek-V3).

    The number of tokens of each expert is read from the device, which waits for it once a layer. torch.compile keeps it
    a symbol, so that a model stays one graph (two with `balance_rate`, whose count begins with the second forward
    pass), where `torch._dynamo.config.capture_scalar_outputs` is set, as `Task` does, or under `fullgraph=True`;
    elsewhere each mixture breaks the graph of its stack.

    Args:
        expert: builds an expert, with `d_model` and `d_ff`.
        n_experts: at least 1.
        top_k: experts of a token, at least 1 and at most `n_experts`.
        n_shared: experts that every token takes besides, unweighted.
        normalised: divide the scores of the chosen by their sum (Mixtral; Switch and DeepSeek-V2 do not). With
            `top_k` 1 the router then learns from `balance_loss` alone.
        balance_loss: its coefficient, at least 0; 0.01 in Fedus et al.
        balance_rate: what the bias of an expert moves by in a step, at least 0; 0.001 in Wang et al.

    Raises:
        ValueError: fewer experts than `top_k`, `top_k` < 1, `n_shared`, `balance_loss` or `balance_rate` < 0.
    """

    needs_padding = True
    """A block tells it which tokens are real: padding does not count in what keeps experts busy."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        expert: Callable[..., nn.Module],
        n_experts: int,
        top_k: int,
        n_shared: int,
        normalised: bool,
        balance_loss: float,
        balance_rate: float,
    ) -> None:
        super().__init__()
        if top_k < 1:
            raise ValueError(
                f"MixtureOfExperts: top_k={top_k} is less than 1; set model.feed_forward.top_k to at least 1"
            )
        if n_experts < top_k:
            raise ValueError(
                f"MixtureOfExperts: n_experts={n_experts} are fewer than top_k={top_k}; set "
                f"model.feed_forward.top_k to at most {n_experts}, or model.feed_forward.n_experts to at least {top_k}"
            )
        for name, value in {"n_shared": n_shared, "balance_loss": balance_loss, "balance_rate": balance_rate}.items():
            if value < 0:
                raise ValueError(
                    f"MixtureOfExperts: {name}={value} is negative; set model.feed_forward.{name} to at least 0"
                )
        self.top_k = top_k
        self.normalised = normalised
        self.balance_loss, self.balance_rate = balance_loss, balance_rate
        self.router = nn.Linear(d_model, n_experts, bias=False)
        self.experts = nn.ModuleList(expert(d_model=d_model, d_ff=d_ff) for _ in range(n_experts))
        self.shared = nn.ModuleList(expert(d_model=d_model, d_ff=d_ff) for _ in range(n_shared))
        # A parameter, though without gradient, so that it is saved, filled and the same on all ranks.
        self.choice_bias = nn.Parameter(torch.zeros(n_experts), requires_grad=False) if balance_rate else None
        self.routing: Routing | None = None
        self.since_rebalance: Tensor | None = None

    def forward(
        self, x: Float[Tensor, "batch seq_len d_model"], padding_mask: Bool[Tensor, "batch seq_len"] | None = None
    ) -> Float[Tensor, "batch seq_len d_model"]:
        tokens = x.flatten(0, 1)
        with torch.autocast(x.device.type, enabled=False):  # nearly equal scores must not become equal
            scores = F.linear(tokens.float(), self.router.weight.float()).softmax(dim=-1)  # tokens n_experts
        preferred = scores if self.choice_bias is None else scores + self.choice_bias
        chosen = preferred.topk(self.top_k, dim=-1).indices
        weights = scores.gather(1, chosen)
        if self.normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        if self.training:
            self._note(scores, chosen, padding_mask)

        order = chosen.flatten().argsort(stable=True)  # by expert
        parts = tokens[order // self.top_k].split(self._count(chosen))
        # An expert without a token runs too: on every rank each parameter must have a gradient.
        outputs = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        outputs = outputs[order.argsort()].unflatten(0, (-1, self.top_k))  # tokens top_k d_model
        out = (outputs * weights.to(outputs.dtype)[..., None]).sum(dim=1).view_as(x)
        for expert in self.shared:
            out = out + expert(x)
        return out

    def initialise_parameter(self, name: str, value: Tensor, generator: torch.Generator) -> None:
        """No expert is preferred at first."""
        value.zero_()

    def _count(self, chosen: Int[Tensor, "tokens top_k"]) -> list[int]:
        """How many tokens chose each expert; waits for the device. Under torch.compile the numbers stay symbols."""
        of = chosen.flatten()
        counts = of.new_zeros(len(self.experts)).scatter_add(0, of, torch.ones_like(of)).tolist()
        if torch.compiler.is_compiling():
            # As a symbol of its own the last would hide that they sum to a known number, and inductor would allocate
            # what joins the experts' outputs before it has read all of its size.
            counts[-1] = len(of) - sum(counts[:-1])
            for count in counts:
                torch._check(count >= 0)
        return counts

    def _note(self, scores: Tensor, chosen: Tensor, padding_mask: Tensor | None) -> None:
        real = torch.ones_like(scores[:, 0]) if padding_mask is None else padding_mask.flatten().to(scores.dtype)
        hits = torch.zeros_like(scores).scatter(1, chosen, 1.0)
        routing = Routing((hits * real[:, None]).sum(0).detach(), (scores * real[:, None]).sum(0), real.sum())
        if recomputing():
            return
        self.routing = routing
        if self.choice_bias is not None:
            before, now = self.since_rebalance, self.routing.tokens
            self.since_rebalance = now if before is None else before + now


@dataclass(frozen=True)
class Routing:
    """Sums over the real tokens of one forward pass in training.

    Args:
        tokens: that each expert got.
        scores: of each expert, with gradient.
        n_tokens: how many they were.
    """

    tokens: Float[Tensor, " n_experts"]
    scores: Float[Tensor, " n_experts"]
    n_tokens: Float[Tensor, ""]


def balance_loss(model: nn.Module, n_targets: int, over_ranks: Sum) -> Float[Tensor, ""] | None:
    """What a training step adds to its loss, a sum over `n_targets` targets; None: nothing is to be balanced.

    For each mixture its coefficient times n_experts * sum_i f_i P_i, with f_i the share of choices that fell on
    expert i and P_i its mean score, both over the real tokens that all ranks read in this forward pass. The sum of
    what the ranks return is that times the targets of all ranks: divided by the targets of an optimizer step it is
    one loss over the global batch, or with several micro-batches their mean, weighted by targets.
    """
    mixtures = [m for m in _mixtures(model) if m.balance_loss and m.routing is not None]
    routings = [m.routing for m in mixtures if m.routing is not None]
    if not routings:
        return None
    first = routings[0].tokens
    numbers = [torch.cat((r.tokens, r.n_tokens[None])) for r in routings]
    agreed = over_ranks(torch.cat([*numbers, first.new_tensor([float(n_targets)])]))
    total = first.new_zeros(())
    parts = agreed[:-1].split([len(n) for n in numbers])
    for mixture, routing, part in zip(mixtures, routings, parts, strict=True):
        tokens, n_tokens = part[:-1], part[-1].clamp(min=1)
        share, score = tokens / (mixture.top_k * n_tokens), routing.scores / n_tokens
        total = total + mixture.balance_loss * len(tokens) * (share * score).sum()
    return total * agreed[-1]


@torch.no_grad()
def rebalance(model: nn.Module, over_ranks: Sum) -> None:
    """After the micro-batches of a step: busy experts become less preferred, idle ones more, by `balance_rate`."""
    for mixture in _mixtures(model):
        if mixture.choice_bias is not None and mixture.since_rebalance is not None:
            tokens, mixture.since_rebalance = over_ranks(mixture.since_rebalance), None
            mixture.choice_bias.add_((tokens.mean() - tokens).sign(), alpha=mixture.balance_rate)


def forget_loads(model: nn.Module) -> None:
    """Leave the tokens since the last `rebalance` out of the next one."""
    for mixture in _mixtures(model):
        mixture.since_rebalance = None


@torch.no_grad()
def loads(model: nn.Module, over_ranks: Sum | None = None) -> dict[str, list[float]]:
    """Of each mixture, by its qualified name, the tokens of each expert over the mean, in the last training step.

    The largest is the capacity factor that would have dropped no token. Waits for the device, once.

    Args:
        over_ranks: adds up what the ranks counted; None: this rank's own.
    """
    mixtures = {name: m for name, m in model.named_modules() if isinstance(m, MixtureOfExperts)}
    tokens = {name: m.routing.tokens for name, m in mixtures.items() if m.routing is not None}
    if not tokens:
        return {}
    counts = torch.cat(list(tokens.values()))
    counts = counts if over_ranks is None else over_ranks(counts)
    parts = counts.split([len(of) for of in tokens.values()])
    relative = torch.cat([part / part.mean().clamp(min=1e-9) for part in parts]).tolist()
    numbers = iter(relative)
    return {name: [next(numbers) for _ in of] for name, of in tokens.items()}


def has_experts(model: nn.Module) -> bool:
    """Whether any layer is a mixture."""
    return next(_mixtures(model), None) is not None


def _mixtures(model: nn.Module) -> Iterator[MixtureOfExperts]:
    return (module for module in model.modules() if isinstance(module, MixtureOfExperts))
