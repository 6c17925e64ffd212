"""Dates as people write them, to ISO 8601: a demonstration that is generated and needs no download."""

import calendar
import dataclasses
import datetime
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from triform.data.sources.base import Kind, digest

if TYPE_CHECKING:
    import datasets

FIRST_YEAR, LAST_YEAR = (
    1950,
    2049,
)  # a hundred years, so that two digits name one: 50-99 are 19.., 00-49 are 20..


def ordinal(n: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    suffix = "th" if n in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"


def _month(d: datetime.date) -> str:
    return calendar.month_name[d.month]


def _mon(d: datetime.date) -> str:
    return calendar.month_abbr[d.month]


# Every style determines its date. Numbers alone are day first, as in most of the world, or year first.
STYLES: tuple[Callable[[datetime.date], str], ...] = (
    lambda d: f"{d.day} {_month(d)} {d.year}",  # 3 May 1987
    lambda d: f"{d.day:02} {_mon(d)} {d.year}",  # 03 May 1987
    lambda d: f"{_month(d)} {d.day}, {d.year}",  # May 3, 1987
    lambda d: f"{_mon(d)} {d.day}, {d.year}",  # Sep 3, 1987
    lambda d: f"{_month(d)} {ordinal(d.day)}, {d.year}",  # May 3rd, 1987
    lambda d: f"the {ordinal(d.day)} of {_month(d)}, {d.year}",  # the 3rd of May, 1987
    lambda d: f"{ordinal(d.day)} {_month(d)} {d.year}",  # 3rd May 1987
    lambda d: f"{calendar.day_name[d.weekday()]}, {d.day} {_month(d)} {d.year}",  # Sunday, 3 May 1987
    lambda d: f"{calendar.day_abbr[d.weekday()]} {_mon(d)} {d.day} {d.year}",  # Sun May 3 1987
    lambda d: f"{d.day} {_mon(d).lower()} '{d.year % 100:02}",  # 3 may '87
    lambda d: f"{d.day}-{_mon(d).upper()}-{d.year % 100:02}",  # 3-MAY-87
    lambda d: f"{d.year} {_month(d)} {d.day}",  # 1987 May 3
    lambda d: f"{d.day}/{d.month}/{d.year}",  # 3/5/1987
    lambda d: f"{d.day:02}/{d.month:02}/{d.year % 100:02}",  # 03/05/87
    lambda d: f"{d.day}.{d.month}.{d.year}",  # 3.5.1987
    lambda d: f"{d.year}/{d.month:02}/{d.day:02}",  # 1987/05/03
)


@dataclasses.dataclass(frozen=True)
class Dates:
    """Pairs such as "the 3rd of May, 1987" and "1987-05-03", each date once and in one split only.

    Dates are drawn from 1950 to 2049 without replacement, each with one of `STYLES`. Numbers alone are day
    first (3/5/1987 is the 3rd of May) or year first; years of two digits from 50 are 19.., below 50 are 20...

    Args:
        n_train: pairs to learn from.
        n_validation: pairs held out and looked at while training.
        n_test: pairs held out for the end.
        seed: of the draw; not the run's seed, so that all runs see the same split.

    Raises:
        ValueError: the years hold fewer dates than asked for, or a split is empty.
    """

    n_train: int
    n_validation: int
    n_test: int
    seed: int

    kind: ClassVar[Kind] = "pairs"

    def __post_init__(self) -> None:
        n_dates = (datetime.date(LAST_YEAR, 12, 31) - datetime.date(FIRST_YEAR, 1, 1)).days + 1
        counts = (self.n_train, self.n_validation, self.n_test)
        if min(counts) < 1 or sum(counts) > n_dates:
            raise ValueError(
                f"Dates: n_train, n_validation, n_test={counts} must each be at least 1 and add up to at most "
                f"{n_dates}, the dates from {FIRST_YEAR} to {LAST_YEAR}; "
                "change data.n_train, data.n_validation or data.n_test"
            )

    def check(self) -> None:
        pass

    def fingerprint(self) -> str:
        return digest([repr(self), Path(__file__).read_bytes()])

    def files(self) -> list[Path]:
        return []

    def load(self) -> dict[str, "datasets.Dataset"]:
        from datasets import Dataset

        generator = random.Random(self.seed)
        first, last = (
            datetime.date(FIRST_YEAR, 1, 1).toordinal(),
            datetime.date(LAST_YEAR, 12, 31).toordinal(),
        )
        sizes = {"train": self.n_train, "validation": self.n_validation, "test": self.n_test}
        dates = [datetime.date.fromordinal(n) for n in generator.sample(range(first, last + 1), sum(sizes.values()))]
        splits, start = {}, 0
        for name, size in sizes.items():
            drawn = dates[start : start + size]
            sources = [generator.choice(STYLES)(date) for date in drawn]
            splits[name] = Dataset.from_dict({"source": sources, "target": [d.isoformat() for d in drawn]})
            start += size
        return splits
