"""Rotary positions beyond the length that a model was trained with: frequencies made lower."""

import math
from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor


class Scaling(ABC):
    """From the frequencies of a rotary scheme, in radians per token, to those used."""

    attention_factor: float = 1.0
    """What rotated queries and keys are multiplied by."""

    @abstractmethod
    def __call__(self, frequencies: Float[Tensor, " n_pairs"], theta: float) -> Float[Tensor, " n_pairs"]: ...


class LinearScaling(Scaling):
    """Positions divided by `factor` (Chen et al. 2023, https://arxiv.org/abs/2306.15595).

    Raises:
        ValueError: `factor` < 1.
    """

    def __init__(self, *, factor: float) -> None:
        _check_factor(self, factor)
        self.factor = factor

    def __call__(self, frequencies: Float[Tensor, " n_pairs"], theta: float) -> Float[Tensor, " n_pairs"]:
        return frequencies / self.factor


class Llama3Scaling(Scaling):
    """Long wavelengths divided, short ones kept, a smooth passage between (LLaMA 3.1, 2024).

    Args:
        factor: what frequencies with wavelengths above `original_max_seq_len / low_freq_factor` tokens are
            divided by.
        low_freq_factor, high_freq_factor: those below `original_max_seq_len / high_freq_factor` are kept.
        original_max_seq_len: length trained with before, in tokens.

    Raises:
        ValueError: `factor` < 1, `high_freq_factor` <= `low_freq_factor`, or `original_max_seq_len` < 1.
    """

    def __init__(
        self, *, factor: float, low_freq_factor: float, high_freq_factor: float, original_max_seq_len: int
    ) -> None:
        _check_factor(self, factor)
        _check_length(self, original_max_seq_len)
        if not 0 < low_freq_factor < high_freq_factor:
            raise ValueError(
                f"Llama3Scaling: low_freq_factor={low_freq_factor} is not between 0 and high_freq_factor="
                f"{high_freq_factor}; set model.position.scaling.low_freq_factor below high_freq_factor"
            )
        self.factor, self.original_max_seq_len = factor, original_max_seq_len
        self.low_freq_factor, self.high_freq_factor = low_freq_factor, high_freq_factor

    def __call__(self, frequencies: Float[Tensor, " n_pairs"], theta: float) -> Float[Tensor, " n_pairs"]:
        turns = self.original_max_seq_len * frequencies / (2 * math.pi)
        kept = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return kept * frequencies + (1 - kept) * frequencies / self.factor


class YarnScaling(Scaling):
    """Divided by how often a pair turns within the old length, and sharper attention (Peng et al. 2023).

    https://arxiv.org/abs/2309.00071, sections 3.2 and 3.4, with the bounds of the ramp rounded to whole pairs as
    in the authors' code.

    Args:
        factor: what the frequencies that turn less than `beta_slow` times are divided by.
        original_max_seq_len: length trained with before, in tokens.
        beta_fast, beta_slow: turns within that length; above `beta_fast` a frequency is kept.
        attention_factor: what rotated queries and keys are multiplied by; None: 0.1 ln(factor) + 1.

    Raises:
        ValueError: `factor` < 1, `beta_fast` <= `beta_slow`, or `original_max_seq_len` < 1.
    """

    def __init__(
        self,
        *,
        factor: float,
        original_max_seq_len: int,
        beta_fast: float,
        beta_slow: float,
        attention_factor: float | None,
    ) -> None:
        _check_factor(self, factor)
        _check_length(self, original_max_seq_len)
        if not 0 < beta_slow < beta_fast:
            raise ValueError(
                f"YarnScaling: beta_slow={beta_slow} is not between 0 and beta_fast={beta_fast}; set "
                f"model.position.scaling.beta_slow below beta_fast"
            )
        self.factor, self.original_max_seq_len = factor, original_max_seq_len
        self.beta_fast, self.beta_slow = beta_fast, beta_slow
        self.attention_factor = 0.1 * math.log(factor) + 1 if attention_factor is None else attention_factor

    def __call__(self, frequencies: Float[Tensor, " n_pairs"], theta: float) -> Float[Tensor, " n_pairs"]:
        n_pairs = len(frequencies)

        def pair_that_turns(times: float) -> float:
            return n_pairs * math.log(self.original_max_seq_len / (times * 2 * math.pi)) / math.log(theta)

        first = max(math.floor(pair_that_turns(self.beta_fast)), 0)
        last = min(math.ceil(pair_that_turns(self.beta_slow)), 2 * n_pairs - 1)
        pairs = torch.arange(n_pairs, device=frequencies.device, dtype=torch.float32)
        divided = ((pairs - first) / max(last - first, 0.001)).clamp(0, 1)
        return (1 - divided) * frequencies + divided * frequencies / self.factor


def _check_factor(scaling: Scaling, factor: float) -> None:
    if factor < 1:
        raise ValueError(
            f"{type(scaling).__name__}: factor={factor} is less than 1; set model.position.scaling.factor to at least 1"
        )


def _check_length(scaling: Scaling, length: int) -> None:
    if length < 1:
        raise ValueError(
            f"{type(scaling).__name__}: original_max_seq_len={length} is less than 1 token; set "
            f"model.position.scaling.original_max_seq_len to the length trained with before"
        )
