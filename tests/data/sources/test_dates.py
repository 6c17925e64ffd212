import calendar
import datetime
import re

import pytest

from triform.data.sources.dates import STYLES, Dates, ordinal

MONTHS = {
    name.lower(): i for names in (calendar.month_name, calendar.month_abbr) for i, name in enumerate(names) if name
}


def read(text: str) -> datetime.date:
    """What a careful reader makes of a date, told the conventions of the data set and nothing else."""
    words = [
        word for word in re.findall(r"[a-z]+|\d+", text.lower()) if word not in ("the", "of", "st", "nd", "rd", "th")
    ]
    words = [word for word in words if word in MONTHS or word.isdecimal()]
    months = [MONTHS[word] for word in words if word in MONTHS]
    numbers = [word for word in words if word.isdecimal()]
    if not months:  # numbers alone
        first, month, last = numbers
        day, year = (last, first) if len(first) == 4 else (first, last)
        return datetime.date(century(year), int(month), int(day))
    year = next((n for n in numbers if len(n) == 4), numbers[-1])
    numbers.remove(year)
    return datetime.date(century(year), months[0], int(numbers[0]))


def century(year: str) -> int:
    return int(year) if len(year) == 4 else int(year) + (1900 if int(year) >= 50 else 2000)


def test_every_style_has_one_reading() -> None:
    for style in STYLES:
        for day in range(0, 36500, 97):
            date = datetime.date(1950, 1, 1) + datetime.timedelta(days=day)
            assert read(style(date)) == date, style(date)


def test_styles_written_out() -> None:
    texts = [style(datetime.date(1987, 5, 3)) for style in STYLES]
    assert len(set(texts)) == len(STYLES) - 1  # May is its own abbreviation
    assert "the 3rd of May, 1987" in texts
    assert "Sunday, 3 May 1987" in texts
    assert "3-MAY-87" in texts
    assert "3/5/1987" in texts


def test_ordinals() -> None:
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 30, 31)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "30th", "31st"]
    )


def test_no_date_is_in_two_splits() -> None:
    splits = Dates(n_train=900, n_validation=50, n_test=40, seed=0).load()
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 900, "validation": 50, "test": 40}
    targets = [row["target"] for rows in splits.values() for row in rows]
    assert len(set(targets)) == 990
    assert all(read(row["source"]).isoformat() == row["target"] for rows in splits.values() for row in rows)


def test_the_draw_follows_its_seed() -> None:
    one, same, other = (list(Dates(9, 2, 2, seed).load()["train"]["source"]) for seed in (0, 0, 1))
    assert one == same != other
    assert Dates(9, 2, 2, 0).fingerprint() != Dates(9, 2, 2, 1).fingerprint()


def test_refuses_more_dates_than_there_are() -> None:
    with pytest.raises(ValueError, match=r"at most 36525, the dates from 1950 to 2049; change data\.n_train"):
        Dates(36525, 1, 1, 0)
