import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triform.analysis.bands import Made, Point, Record, band, curves, judge, page, read_record, same_seed
from triform.run.errors import BadInput

MADE = Made(
    {"torch": "2.13.0", "python": "3.11.7"}, "EPYC", 1, {"train": "ab", "validation": "cd"}, {"optimizer.lr": 1}
)
RECORD = Record(
    ["trainer.max_steps=4"],
    [0, 1, 2],
    {"train/loss": {2: [3.0, 3.1, 3.2], 4: [2.0, 2.2, 2.1]}, "validation/loss": {4: [2.5, 2.4, 2.6]}},
    MADE,
)


def test_a_point_is_the_mean_of_what_was_logged_since_the_one_before() -> None:
    logged = np.arange(1.0, 15.0)  # 14 rows in 6 points: 3, 3, 2, 2, 2, 2
    metrics = {
        "step": np.repeat(np.arange(10, 150, 10), 2).astype(float),  # a row each of the two
        "train/loss": np.array([value for row in logged for value in (row, math.nan)]),
        "validation/loss": np.array([math.nan] * 27 + [7.5]),
    }
    assert curves(metrics) == {
        "train/loss": {30: 2.0, 60: 5.0, 80: 7.5, 100: 9.5, 120: 11.5, 140: 13.5},
        "validation/loss": {140: 7.5},
    }


def test_band_is_the_prediction_interval_of_student() -> None:
    """t(2) at 0.995 is 9.9248; four seeds: t(3) at 1 - 0.01 / 4 is 7.4533 (tables)."""
    low, high = band([1.0, 2.0, 3.0], n_points=1)
    assert high - 2.0 == pytest.approx(9.9248 * math.sqrt(4 / 3), rel=1e-4)
    assert low == pytest.approx(4.0 - high)
    spread = math.sqrt(5 / 3)
    assert band([1.0, 2.0, 3.0, 4.0], n_points=2)[1] == pytest.approx(2.5 + 7.4533 * spread * math.sqrt(1.25), rel=1e-4)


def test_seeds_of_one_law_are_inside_as_often_as_promised() -> None:
    """Of 4,000 curves with 7 points that do not depend on each other, 1 % lie outside: 40, give or take 4 times 6.3."""
    noise = np.random.default_rng(0).normal(size=(4000, 7, 6))
    outside = 0
    for points in noise:
        inside = []
        for *values, further in points.tolist():
            low, high = band(values, n_points=7)
            inside.append(low <= further <= high)
        outside += not all(inside)
    assert 15 <= outside <= 65


def test_what_is_missing_or_not_finite_is_outside() -> None:
    points = judge(RECORD, {"train/loss": {2: 3.1, 4: math.nan}})
    assert [(point.metric, point.step, point.inside) for point in points] == [
        ("train/loss", 2, True),
        ("train/loss", 4, False),
        ("validation/loss", 4, False),
    ]
    assert not Point("train/loss", 2, math.inf, 0.0, 1.0).inside


def test_the_same_seed_is_known_again_by_its_last_bit() -> None:
    found = {"train/loss": {2: 3.1, 4: 2.2}, "validation/loss": {4: 2.4}}
    assert same_seed(RECORD, 1, found)
    assert not same_seed(RECORD, 0, found)
    assert not same_seed(RECORD, 5, found)
    assert not same_seed(RECORD, 1, {**found, "validation/loss": {4: math.nextafter(2.4, 3)}})


def test_each_difference_is_said() -> None:
    now = Made({"torch": "2.14.0", "python": "3.11.7"}, "Xeon", 2, {"train": "ab", "validation": "xy"}, {"seed": 3})
    assert MADE.differences(now) == [
        "torch 2.14.0, recorded with 2.13.0",
        "2 threads, recorded with 1",
        "processor Xeon, recorded on EPYC",
        "data: the validation split is another",
        "optimizer.lr=absent, recorded with 1",
        "seed=3, recorded with absent",
    ]
    assert MADE.differences(MADE) == []


def test_the_page_ends_with_the_verdict() -> None:
    good = judge(RECORD, {"train/loss": {2: 3.1, 4: 2.1}, "validation/loss": {4: 2.45}})
    bad = judge(RECORD, {"train/loss": {2: 3.1, 4: 29.0}, "validation/loss": {4: 2.45}})
    threads = dataclasses.replace(MADE, threads=2)
    assert list(page("dates", RECORD, good, 7, MADE, same=False))[-1] == (
        "dates: as recorded, all 3 points of the curve lie in the band"
    )
    assert list(page("dates", RECORD, good, 1, MADE, same=True))[-1] == "dates: as recorded, bit for bit (seed 1)"
    lines = list(page("dates", RECORD, bad, 0, threads, same=False))
    assert lines[2].endswith("outside")
    assert lines[-2:] == [
        "differs: 2 threads, recorded with 1",
        "dates: 1 of 3 points of the curve lie outside the recorded band",
    ]
    assert "the code does something else" in list(page("dates", RECORD, bad, 0, MADE, same=False))[-2]


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "dates.json"
    RECORD.write(file)
    assert read_record(file) == RECORD


@pytest.mark.parametrize("text", ["", "[]", '{"curves": {}}', '{"curves": {"train/loss": {"two": [1]}}}'])
def test_a_broken_record_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "dates.json"
    file.write_text(text)
    with pytest.raises(BadInput, match=r"dates\.json is no record"):
        read_record(file)


def test_a_record_that_is_not_there_is_made_by(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"mine: no run .* is recorded; .*triform verify mine --record 5"):
        read_record(tmp_path / "mine.json")


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"curves": {"train/loss": {}}}, "no point of a curve"),
        ({"curves": {"train/loss": {2: [3.0, 3.1]}}}, "not one value of each of 3 seeds"),
        ({"seeds": [0, 1], "curves": {"train/loss": {2: [3.0, 3.1]}}}, "not one value of each of 3 seeds"),
    ],
)
def test_a_record_that_nothing_can_be_judged_by_is_refused(
    tmp_path: Path, change: dict[str, Any], fragment: str
) -> None:
    file = tmp_path / "mine.json"
    dataclasses.replace(RECORD, **change).write(file)
    with pytest.raises(BadInput, match=fragment):
        read_record(file)
