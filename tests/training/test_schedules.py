import math

import pytest

from triform.training.schedules import Constant, Cosine, Noam


def test_noam_gives_the_papers_rates() -> None:
    noam = Noam(d_model=512, warmup_steps=4000)
    assert noam(0, 1e5) == pytest.approx(1.747e-07, rel=1e-3)
    assert noam(3999, 1e5) == pytest.approx(6.988e-04, rel=1e-3)
    assert noam(99_999, 1e5) == pytest.approx(1.398e-04, rel=1e-3)


def test_cosine_rises_peaks_and_ends_at_its_floor() -> None:
    cosine = Cosine(warmup_steps=2, min_ratio=0.1)
    factors = [cosine(update, 7) for update in range(7)]
    assert factors[:3] == [0.5, 1.0, 1.0]
    assert factors[4] == pytest.approx(0.1 + 0.9 * 0.5)
    assert factors[6] == pytest.approx(0.1)
    assert factors[2:] == sorted(factors[2:], reverse=True)


@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (5, 5), (9, 5), (0, 0), (5, 6)])
def test_edges_stay_finite(warmup: int, total: int) -> None:
    for update in range(12):
        for schedule in (Cosine(warmup, 0.0), Constant(warmup)):
            assert 0 <= schedule(update, total) <= 1


def test_cosine_follows_a_total_that_is_estimated_anew() -> None:
    cosine = Cosine(warmup_steps=0, min_ratio=0.0)
    assert cosine(50, 101.0) == pytest.approx(0.5)
    assert cosine(50, 51.0) == pytest.approx(0.0, abs=1e-12)


def test_constant_without_warm_up_is_one_from_the_start() -> None:
    assert [Constant(0)(update, math.inf) for update in range(3)] == [1.0, 1.0, 1.0]


def test_refusals_name_the_key() -> None:
    with pytest.raises(ValueError, match=r"Noam: warmup_steps=0 is below 1; set scheduler\.warmup_steps"):
        Noam(d_model=8, warmup_steps=0)
    with pytest.raises(ValueError, match=r"Cosine: min_ratio=1\.5 .* scheduler\.min_ratio"):
        Cosine(warmup_steps=1, min_ratio=1.5)
