"""Ranges and ticks of axes, and numbers as a reader wants them."""

import math

import numpy as np

PREFIXES = ((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def spread(values: np.ndarray, log: bool) -> tuple[float, float]:
    """The range that an axis shows: that of the values, with some room at both ends."""
    low, high = float(values.min()), float(values.max())
    if log:
        room = (high / low) ** 0.04 if high > low else 1.5
        return low / room, high * room
    room = (high - low) * 0.04 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def ticks(low: float, high: float, log: bool, wanted: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, about as many as wanted; if `log` powers of ten, with 2 and 5 times these."""
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        if last - first >= 3:
            apart = math.ceil((last - first) / (wanted + 1))
            return [found for n in range(first, last + 1, apart) if low <= (found := 10.0**n) <= high]
        found_all = [factor * 10.0**n for n in range(first, last + 1) for factor in (1, 2, 5)]
        inside = [found for found in found_all if low <= found <= high]
        return inside if len(inside) > 1 else ticks(low, high, False, wanted)
    rough = (high - low) / wanted
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= rough * 0.8)
    first_one = math.ceil(low / step)
    return [0.0 if n == 0 else n * step for n in range(first_one, math.floor(high / step) + 1)]


def brief(value: float, digits: int = 3) -> str:
    """A few significant digits with the letter of a thousand, a million, ...: `950`, `12.3k`, `1.25M`, `1e-05`."""
    size = abs(float(f"{value:.{digits}g}"))
    for unit, letter in PREFIXES:
        if size >= unit:
            return f"{float(f'{value / unit:.{digits}g}'):g}{letter}"
    return f"{float(f'{value:.{digits}g}'):g}"


def plus_minus(mean: float, half: float | None, sign: bool = False) -> str:
    """A mean and half of its interval, both to the second significant digit of the latter; alone to four digits."""
    plus = "+" if sign else ""
    if half is None or half <= 0 or not math.isfinite(half):
        return f"{mean:{plus}#.4g}".removesuffix(".") + (" ± 0" if half == 0 else "")
    decimals = max(1 - math.floor(math.log10(half)), 0)
    if decimals > 7:
        return f"{mean:{plus}.4g} ± {half:.2g}"
    return f"{mean:{plus}.{decimals}f} ± {half:.{decimals}f}"
