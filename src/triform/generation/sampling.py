"""How the next token is chosen from its logits."""

import hashlib
import math
from collections import Counter

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def greedy(logits: Float[Tensor, "batch vocab_size"]) -> Int[Tensor, " batch"]:
    """The likeliest token; the first of equals."""
    return logits.argmax(dim=-1)


class Sampler:
    """Draws a token after sharpening and cutting the distribution, in the order of the arguments.

    Args:
        temperature: divides the logits; above 1 flattens. 0 is greedy.
        top_k: the tokens that stay (Fan et al. 2018); more than there are: all. None: all.
        top_p: the likeliest tokens stay until their probabilities sum to it (Holtzman et al. 2020). None: all.
        min_p: tokens stay that are at least this times as probable as the likeliest (Nguyen et al. 2024,
            https://arxiv.org/abs/2407.01082). None: all.

    Raises:
        ValueError: `temperature` < 0, `top_k` < 1, `top_p` outside (0, 1], `min_p` outside [0, 1].
    """

    def __init__(self, temperature: float, top_k: int | None, top_p: float | None, min_p: float | None) -> None:
        if not temperature >= 0:
            raise ValueError(f"generate: temperature={temperature} is negative; set it to 0 (greedy) or above")
        if top_k is not None and top_k < 1:
            raise ValueError(f"generate: top_k={top_k} leaves no token; set it to at least 1, or leave it out")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"generate: top_p={top_p} is no share; set it above 0 and to at most 1")
        if min_p is not None and not 0 <= min_p <= 1:
            raise ValueError(f"generate: min_p={min_p} is no share; set it to at least 0 and at most 1")
        self.temperature, self.top_k, self.top_p, self.min_p = temperature, top_k, top_p, min_p

    def __call__(
        self, logits: Float[Tensor, "batch vocab_size"], numbers: Float[Tensor, " batch"]
    ) -> Int[Tensor, " batch"]:
        """The token at which the probabilities, summed up, pass `numbers`, which are in [0, 1)."""
        if self.temperature == 0:
            return greedy(logits)
        logits = logits.float()
        # Without the largest first: a temperature near 0 must not make it infinite.
        logits = (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature
        sums = self.cut(logits).softmax(dim=-1).double().cumsum(dim=-1)
        passed = numbers[:, None] * sums[:, -1:]
        # Of a model with weights that are no numbers nothing is passed, and an index beyond the last ends on a GPU in
        # an assertion of the device.
        return torch.searchsorted(sums, passed, right=True)[:, 0].clamp(max=sums.shape[1] - 1)

    def cut(self, logits: Float[Tensor, "batch vocab_size"]) -> Float[Tensor, "batch vocab_size"]:
        """The logits with those of the tokens that may not be drawn at -inf."""
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            smallest = logits.topk(self.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < smallest, float("-inf"))
        if self.top_p is not None and self.top_p < 1:
            ordered, tokens = logits.sort(dim=-1, descending=True, stable=True)
            probabilities = ordered.softmax(dim=-1)
            before = probabilities.cumsum(dim=-1) - probabilities
            beyond = before >= self.top_p - 1e-6  # rounding must not keep one more
            beyond[:, 0] = False
            logits = logits.masked_fill(torch.zeros_like(beyond).scatter(1, tokens, beyond), float("-inf"))
        if self.min_p:
            lowest = logits.amax(dim=-1, keepdim=True) + math.log(self.min_p) - 1e-6  # rounding must not drop one
            logits = logits.masked_fill(logits < lowest, float("-inf"))
        return logits


def random_numbers(
    ids: Int[Tensor, "batch seq_len"], real: Bool[Tensor, "batch seq_len"] | None, n_steps: int, seed: int
) -> Float[Tensor, "batch n_steps"]:
    """Uniform in [0, 1), in float64: a number for each row and each token that it will write.

    A row's numbers follow from `seed`, its own ids and how many equal rows stand before it, and from nothing else:
    neither its padding nor the other rows of its batch change what it draws, and equal rows still differ.
    """
    before: Counter[tuple[int, ...]] = Counter()
    drawn = []
    for i, row in enumerate(ids.cpu()):
        own = tuple((row if real is None else row[real[i].cpu()]).tolist())
        digest = hashlib.blake2b(repr((seed, own, before[own])).encode(), digest_size=4).digest()
        before[own] += 1
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
        drawn.append(torch.rand(n_steps, generator=generator, dtype=torch.float64))
    # Below 1 by enough that a product with a sum of probabilities stays below that sum.
    return torch.stack(drawn).clamp(max=1 - 2**-40).to(ids.device)


class Repetition:
    """Makes tokens that a row holds already less likely (Keskar et al. 2019, https://arxiv.org/abs/1909.05858).

    The score of such a token is divided by `penalty`, or multiplied if it is negative: unlike in the paper's formula
    it is lowered either way. Padding is not in a row.

    Args:
        penalty: above 1 lowers, below 1 raises.
        ids: the rows to begin with.
        real: which of them are no padding; None: all.
        vocab_size: of the model.

    Raises:
        ValueError: `penalty` <= 0.
    """

    def __init__(
        self,
        penalty: float,
        ids: Int[Tensor, "batch seq_len"],
        real: Bool[Tensor, "batch seq_len"] | None,
        vocab_size: int,
    ) -> None:
        if not 0 < penalty < math.inf:
            raise ValueError(f"generate: repetition_penalty={penalty} is not positive; set it above 0, 1 for none")
        self.penalty = penalty
        times = ids.new_zeros((len(ids), vocab_size))
        times.scatter_add_(1, ids, torch.ones_like(ids) if real is None else real.to(ids.dtype))
        self.seen = times > 0

    def __call__(self, scores: Float[Tensor, "batch vocab_size"]) -> Float[Tensor, "batch vocab_size"]:
        lowered = torch.where(scores < 0, scores * self.penalty, scores / self.penalty)
        return torch.where(self.seen[:, : scores.shape[1]], lowered, scores)

    def add(self, tokens: Int[Tensor, " batch"]) -> None:
        """Each row goes on with a token."""
        self.seen.scatter_(1, tokens[:, None], True)

    def select(self, rows: Int[Tensor, " n_rows"]) -> None:
        """Row i is henceforth what row `rows[i]` was."""
        self.seen = self.seen.index_select(0, rows)
