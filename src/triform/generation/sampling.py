"""How the next token is chosen from its logits."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def greedy(logits: Float[Tensor, "batch vocab_size"]) -> Int[Tensor, " batch"]:
    """The likeliest token; the first of equals."""
    return logits.argmax(dim=-1)


class Sampler:
    """Draws a token after sharpening and cutting the distribution, in that order.

    Args:
        temperature: divides the logits; above 1 flattens. 0 is greedy.
        top_k: the tokens that stay (Fan et al. 2018); more than there are: all. None: all.
        top_p: the likeliest tokens stay until their probabilities sum to it (Holtzman et al. 2020). None: all.
        seed: of the draws.

    Raises:
        ValueError: `temperature` < 0, `top_k` < 1, `top_p` outside (0, 1].
    """

    def __init__(
        self, temperature: float, top_k: int | None, top_p: float | None, seed: int, device: torch.device
    ) -> None:
        if temperature < 0:
            raise ValueError(f"generate: temperature={temperature} is negative; set it to 0 (greedy) or above")
        if top_k is not None and top_k < 1:
            raise ValueError(f"generate: top_k={top_k} leaves no token; set it to at least 1, or leave it out")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"generate: top_p={top_p} is no share; set it above 0 and to at most 1")
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.generator = torch.Generator(device).manual_seed(seed)

    def __call__(self, logits: Float[Tensor, "batch vocab_size"]) -> Int[Tensor, " batch"]:
        if self.temperature == 0:
            return greedy(logits)
        probabilities = self.cut(logits.float() / self.temperature).softmax(dim=-1)
        return torch.multinomial(probabilities, 1, generator=self.generator)[:, 0]

    def cut(self, logits: Float[Tensor, "batch vocab_size"]) -> Float[Tensor, "batch vocab_size"]:
        """The logits with those of the tokens that may not be drawn at -inf."""
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            smallest = logits.topk(self.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < smallest, float("-inf"))
        if self.top_p is not None:
            ordered, tokens = logits.sort(dim=-1, descending=True)
            probabilities = ordered.softmax(dim=-1)
            before = probabilities.cumsum(dim=-1) - probabilities
            beyond = before >= self.top_p - 1e-6  # rounding must not keep one more
            beyond[:, 0] = False
            logits = logits.masked_fill(torch.zeros_like(beyond).scatter(1, tokens, beyond), float("-inf"))
        return logits
