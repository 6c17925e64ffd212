"""Fixed sines and cosines."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from triform.layers.position.base import Position

LAYOUTS = ("interleaved", "concatenated", "tensor2tensor")


class Sinusoidal(Position):
    """Adds sin(p / w) and cos(p / w) for wavelengths w, over 2 pi, from 1 to about `max_period`.

    Vaswani et al. 2017, section 3.5. The layouts, with d = `d_model`:

    - `interleaved`, as the paper has it: sin in column 2i and cos in 2i + 1, w = max_period^(2i / d);
    - `concatenated`: the same columns, all sines before all cosines (Hugging Face's Marian);
    - `tensor2tensor`: sines before cosines, w = max_period^(i / (d / 2 - 1)), as in the authors' code and fairseq.

    An odd `d_model` has a sine more than cosines, in the last layout a column of zeros.

    Args:
        max_period: the longest wavelength is 2 pi times this, in tokens.

    Raises:
        ValueError: unknown `layout`, or `max_period` <= 1.
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        head_dim: int,
        max_seq_len: int,
        causal: bool,
        max_period: float,
        layout: str,
    ) -> None:
        super().__init__()
        if layout not in LAYOUTS:
            raise ValueError(
                f"Sinusoidal: layout={layout!r} is unknown; set model.position.layout to {', '.join(LAYOUTS[:-1])} "
                f"or {LAYOUTS[-1]}"
            )
        if max_period <= 1:
            raise ValueError(
                f"Sinusoidal: max_period={max_period} is not above 1; set model.position.max_period above 1, such "
                f"as 10000"
            )
        self.d_model = d_model
        self.max_period = max_period
        self.layout = layout

    def embed(
        self, x: Float[Tensor, "batch seq_len d_model"], position_ids: Int[Tensor, "#batch seq_len"]
    ) -> Float[Tensor, "batch seq_len d_model"]:
        return x + self.table(position_ids).to(x.dtype)

    def table(self, position_ids: Int[Tensor, "#batch seq_len"]) -> Float[Tensor, "#batch seq_len d_model"]:
        d, half = self.d_model, self.d_model // 2
        if self.layout == "tensor2tensor":
            exponents = torch.arange(half, device=position_ids.device, dtype=torch.float32) / max(half - 1, 1)
        else:
            exponents = torch.arange(0, d, 2, device=position_ids.device, dtype=torch.float32) / d
        phases = position_ids[..., None] * self.max_period**-exponents
        if self.layout == "interleaved":
            return torch.stack((phases.sin(), phases.cos()), dim=-1).flatten(-2)[..., :d]
        table = torch.cat((phases.sin(), phases[..., :half].cos()), dim=-1)
        return F.pad(table, (0, d - table.shape[-1]))
