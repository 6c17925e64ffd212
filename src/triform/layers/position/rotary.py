"""Rotated queries and keys."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from triform.layers.position.base import Heads, Position, Rotate
from triform.layers.position.scaling import Scaling


class Rotary(Position):
    """Turns pair j of the first D = `fraction * head_dim` numbers of every query and key by p * theta^(-2j / D).

    Su et al. 2021 (https://arxiv.org/abs/2104.09864); their scores then depend on distances alone.

    Args:
        theta: base of the wavelengths, above 1; the longest is nearly 2 pi times this, in tokens.
        interleaved: a pair is (2j, 2j + 1), as in the paper and Meta's code; otherwise (j, j + D / 2), as in
            Hugging Face's LLaMA. The same up to the order of the columns that make queries and keys.
        fraction: share of a head that turns, in (0, 1] (GPT-NeoX 0.25).
        scaling: lowers the frequencies for rows longer than trained with; None: as they are.

    Raises:
        ValueError: D is odd or 0, `theta` <= 1, `fraction` outside (0, 1], or an unknown `scaling`.
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        head_dim: int,
        max_seq_len: int,
        causal: bool,
        theta: float,
        interleaved: bool,
        fraction: float,
        scaling: object,
    ) -> None:
        super().__init__()
        if not 0 < fraction <= 1:
            raise ValueError(
                f"Rotary: fraction={fraction} is no share of a head; set model.position.fraction above 0 and to at "
                f"most 1"
            )
        if theta <= 1:
            raise ValueError(f"Rotary: theta={theta} is not above 1; set model.position.theta above 1, such as 10000")
        width = int(head_dim * fraction)
        if width % 2 or width == 0:
            what = f"head_dim={head_dim} is odd" if fraction == 1 else f"fraction={fraction} of a head is {width} wide"
            raise ValueError(
                f"Rotary: {what}, but it turns pairs; set model.head_dim to an even number, or change model.d_model, "
                f"model.n_heads or model.position.fraction"
            )
        if scaling is not None and not isinstance(scaling, Scaling):
            raise ValueError(
                f"Rotary: scaling={scaling!r} is unknown; set model/position to rotary_linear, rotary_llama3 or "
                f"rotary_yarn, or model.position.scaling to null"
            )
        self.width = width
        self.theta = theta
        self.interleaved = interleaved
        self.scaling = scaling

    def rotation(self, position_ids: Int[Tensor, "#batch seq_len"]) -> Rotate:
        phases = position_ids[:, None, :, None] * self.frequencies(position_ids.device)
        factor = 1.0 if self.scaling is None else self.scaling.attention_factor
        return Rotation(phases.cos() * factor, phases.sin() * factor, self.interleaved)

    def frequencies(self, device: torch.device) -> Float[Tensor, " n_pairs"]:
        """Radians per token of each pair."""
        even = torch.arange(0, self.width, 2, device=device, dtype=torch.float32)
        frequencies = self.theta ** (-even / self.width)
        return frequencies if self.scaling is None else self.scaling(frequencies, self.theta)


class Rotation:
    """Turns every pair of a head by its phase, in float32; what is beyond the pairs stays."""

    def __init__(
        self,
        cos: Float[Tensor, "#batch 1 seq_len n_pairs"],
        sin: Float[Tensor, "#batch 1 seq_len n_pairs"],
        interleaved: bool,
    ) -> None:
        # Spelled out for both of a pair once, not for every layer: x turns to x * cos + (the other of its pair) * sin.
        both = torch.stack if interleaved else torch.cat
        self.cos, self.sin = (both(pair, dim=-1) for pair in ((cos, cos), (-sin, sin)))
        if interleaved:
            self.cos, self.sin = self.cos.flatten(-2), self.sin.flatten(-2)
        self.interleaved = interleaved
        self.width = 2 * cos.shape[-1]

    def __call__(self, x: Heads) -> Heads:
        if self.width < x.shape[-1]:
            return torch.cat((self._turned(x[..., : self.width]), x[..., self.width :]), dim=-1)
        return self._turned(x)

    def _turned(self, x: Heads) -> Heads:
        wide = x.float()
        if self.interleaved:
            others = wide.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        else:
            others = wide.roll(self.width // 2, dims=-1)
        return (wide * self.cos + others * self.sin).to(x.dtype)
