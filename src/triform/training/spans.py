"""Many whole numbers, said shortly."""

from collections.abc import Iterable


def spans(numbers: Iterable[int], between: str = ", ") -> str:
    """Numbers in their order, those that follow each other as one: 0, 2-5, 9."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return between.join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
