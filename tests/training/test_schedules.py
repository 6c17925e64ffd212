import csv
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.runs import make, run
from triform.training.saving import read_checkpoint
from triform.training.schedules import (
    Constant,
    Cosine,
    InverseSqrt,
    Linear,
    Schedule,
    WarmupStableDecay,
    steps,
)

EVERY = [
    lambda warmup: Cosine(warmup, 0.0),
    lambda warmup: Linear(warmup, 0.0),
    lambda warmup: Constant(warmup),
    lambda warmup: WarmupStableDecay(warmup, 0.2, "sqrt", 0.0),
    lambda warmup: WarmupStableDecay(warmup, 3, "linear", 0.0),
    lambda warmup: WarmupStableDecay(warmup, 0, "linear", 0.0),
    lambda warmup: InverseSqrt(warmup or 1),
]


def test_noam_gives_the_papers_rates() -> None:
    noam, peak = InverseSqrt(warmup_steps=4000), (512 * 4000) ** -0.5
    assert peak * noam(0, 1e5) == pytest.approx(1.747e-07, rel=1e-3)
    assert peak * noam(3999, 1e5) == pytest.approx(6.988e-04, rel=1e-3)
    assert peak * noam(99_999, 1e5) == pytest.approx(1.398e-04, rel=1e-3)


def test_cosine_rises_peaks_and_ends_at_its_floor() -> None:
    cosine = Cosine(warmup_steps=2, min_ratio=0.1)
    factors = [cosine(update, 7) for update in range(7)]
    assert factors[:3] == [0.5, 1.0, 1.0]
    assert factors[4] == pytest.approx(0.1 + 0.9 * 0.5)
    assert factors[6] == pytest.approx(0.1)
    assert factors[2:] == sorted(factors[2:], reverse=True)


@pytest.mark.parametrize("made", EVERY)
@pytest.mark.parametrize("total", [0, 1, 5, 6, 6.5, 1e9])
@pytest.mark.parametrize("warmup", [0, 1, 5, 9, 0.01, 0.5, 0.999])
def test_edges_stay_finite_and_the_first_update_is_not_zero(
    made: Callable[[float], Schedule], warmup: float, total: float
) -> None:
    schedule = made(warmup)
    for update in range(12):
        assert 0 <= schedule(update, total) <= 1
    if total > 1:
        assert schedule(0, total) > 0


@pytest.mark.parametrize("made", EVERY)
def test_a_share_is_that_many_steps_of_the_run(made: Callable[[float], Schedule]) -> None:
    whole, share = made(5), made(0.25)
    assert [share(update, 20) for update in range(20)] == [whole(update, 20) for update in range(20)]


def test_a_share_follows_a_total_that_is_estimated_anew() -> None:
    assert steps(0.1, 1000.0) == 100
    assert steps(0.1, 500.0) == 50
    assert steps(1, 500.0) == 1
    assert Constant(0.5)(9, 40.0) == 0.5
    assert Constant(0.5)(9, 20.0) == 1.0


def test_linear_is_a_straight_line_to_its_floor() -> None:
    assert [Linear(2, 0.2)(update, 7) for update in range(7)] == pytest.approx([0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2])


def test_wsd_is_level_until_its_last_steps() -> None:
    line = WarmupStableDecay(2, 4, "linear", 0.0)
    assert [line(update, 10) for update in range(10)] == pytest.approx([0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0])
    root = WarmupStableDecay(0, 4, "sqrt", 0.1)
    assert root(6, 10) == pytest.approx(0.1 + 0.9 * 0.5)
    assert root(9, 10) == pytest.approx(0.1)
    assert [WarmupStableDecay(8, 0.9, "linear", 0.0)(update, 10) for update in (7, 8, 9)] == [1.0, 1.0, 0.0]


def test_cosine_follows_a_total_that_is_estimated_anew() -> None:
    cosine = Cosine(warmup_steps=0, min_ratio=0.0)
    assert cosine(50, 101.0) == pytest.approx(0.5)
    assert cosine(50, 51.0) == pytest.approx(0.0, abs=1e-12)


def test_constant_without_warm_up_is_one_from_the_start() -> None:
    assert [Constant(0)(update, math.inf) for update in range(3)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: InverseSqrt(0), r"InverseSqrt: warmup_steps=0 is no length; set scheduler\.warmup_steps to above 0"),
        (lambda: InverseSqrt(0.0), r"InverseSqrt: warmup_steps=0\.0 is no length"),
        (
            lambda: Constant(1.5),
            r"Constant: warmup_steps=1\.5 is no length; .* whole optimizer steps, or below 1 a share",
        ),
        (lambda: Linear(-1, 0.0), r"Linear: warmup_steps=-1 is no length; set scheduler\.warmup_steps to 0 or more"),
        (lambda: Linear(math.nan, 0.0), r"Linear: warmup_steps=nan is no length"),
        (lambda: Cosine(1, 1.5), r"Cosine: min_ratio=1\.5 .* scheduler\.min_ratio"),
        (lambda: WarmupStableDecay(1, 2.5, "sqrt", 0.1), r"decay_steps=2\.5 .* scheduler\.decay_steps"),
        (lambda: WarmupStableDecay(1, 0.2, "cube", 0.1), r"decay_shape=cube is unknown; set scheduler\.decay_shape"),
    ],
)
def test_refusals_name_the_key(made: Callable[[], Schedule], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made()


def test_a_run_takes_its_shares_of_a_budget_in_tokens(tmp_path: Path) -> None:
    """In optimizer steps, of which each is cut into two micro-batches."""
    shares = ("scheduler=wsd", "scheduler.warmup_steps=0.5", "scheduler.decay_steps=0.25", "scheduler.min_ratio=0.2")
    budget = ("trainer.max_steps=null", "trainer.max_tokens=8000", "trainer.save_interval=1", "trainer.val_interval=99")
    folder = make(tmp_path, "decoder", *shares, *budget)
    assert run(folder, kill_at={"save": 5}) == -9
    early = read_checkpoint(folder.checkpoints / "last.ckpt")  # of the third or fourth step: saving is not waited for
    step, rate = early["progress"]["step"], early["lr_schedulers"][0]
    assert run(folder, resume=True) == 0
    end = read_checkpoint(folder.checkpoints / "last.ckpt")
    total, last = end["progress"]["step"], end["lr_schedulers"][0]
    assert step in (3, 4)
    assert (rate["last_epoch"], last["last_epoch"]) == (step, total)
    assert rate["_last_lr"][0] == pytest.approx(0.01 * (step + 1) / (0.5 * total))
    assert last["_last_lr"][0] == pytest.approx(0.01 * 0.2)


def test_the_record_has_the_rate_of_the_step_that_it_is_of(tmp_path: Path) -> None:
    folder = make(tmp_path, "decoder", "trainer.log_interval=1", "scheduler.warmup_steps=4", "optimizer.lr=0.01")
    assert run(folder) == 0
    with folder.metrics.open(newline="") as file:
        rates = [float(row["train/lr"]) for row in csv.DictReader(file) if row["train/lr"]]
    assert rates[:4] == pytest.approx([0.0025, 0.005, 0.0075, 0.01])
