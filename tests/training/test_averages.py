"""Averages of the weights: what they are, that they are what is judged and kept, and that resuming is exact."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD

from tests.training.runs import differences, make, outcome, run
from triform.run.evaluate import evaluate
from triform.run.folder import RunFolder
from triform.training.averages import Average, Exponential, Latest, check_averages, ema, latest
from triform.training.optimizers import schedule_free
from triform.training.saving import read_checkpoint

KINDS = {
    "ema": ["callbacks=ema", "callbacks.average.decay=0.9"],
    "latest": ["callbacks=latest", "callbacks.average.n=3", "callbacks.average.interval=2"],
    "schedule_free": ["optimizer=schedule_free", "scheduler=constant", "optimizer.lr=0.02"],
}
NOTHING = SGD([torch.zeros(1)], lr=1.0)


def states(n: int) -> list[list[torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [[torch.randn(3, 2, generator=draw), torch.randn(4, generator=draw)] for _ in range(n)]


def test_ema_is_its_recurrence() -> None:
    rule, expected = Exponential(0.5), list[torch.Tensor]()
    assert rule.average(states(1)[0], NOTHING) is None
    for n, weights in enumerate(states(30)):
        assert rule.due(n + 1)
        rule.update(weights)
        decay = min(0.5, (1 + n) / (10 + n))
        pairs = zip(expected or weights, weights, strict=True)
        expected = [decay * e + (1 - decay) * w for e, w in pairs]
    found = rule.average(states(1)[0], NOTHING)
    assert found is not None
    torch.testing.assert_close(list(found), expected)


def test_latest_is_the_mean_of_the_last_multiples() -> None:
    rule, seen = Latest(n=3, interval=2), states(11)
    assert not rule.due(1)
    assert rule.average(seen[0], NOTHING) is None
    for step, weights in enumerate(seen[1:], start=2):
        if rule.due(step):
            rule.update(weights)
    found = rule.average(seen[-1], NOTHING)
    assert found is not None
    for i, mean in enumerate(found):
        torch.testing.assert_close(mean, (seen[5][i] + seen[7][i] + seen[9][i]) / 3)


def test_an_average_does_not_follow_the_weights_it_was_given() -> None:
    """Which are changed in place by the next step."""
    for rule in (Exponential(0.9), Latest(2, 1)):
        weights = states(1)[0]
        rule.update(weights)
        weights[0].add_(1.0)
        found = rule.average(weights, NOTHING)
        assert found is not None
        assert torch.equal(found[0], states(1)[0][0])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run that is never stopped, by kind."""
    known: dict[str, RunFolder] = {}

    def get(kind: str) -> RunFolder:
        if kind not in known:
            known[kind] = make(tmp_path_factory.mktemp(kind), "decoder", *KINDS[kind])
            assert run(known[kind]) == 0
        return known[kind]

    return get


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_checkpoint_holds_what_was_judged(whole: Any, kind: str) -> None:
    folder = whole(kind)
    best = json.loads(folder.summary.read_text())["best"]
    _, figures = evaluate(folder.path, "validation")
    assert figures["loss"] == pytest.approx(best["validation/loss"], rel=1e-6)
    checkpoint = read_checkpoint(folder.checkpoints / "best.ckpt")
    kept, trained = list(checkpoint["state_dict"].values()), checkpoint["average"]["trained"]
    assert len(kept) == len(trained)
    assert all(not torch.equal(a, b) for a, b in zip(kept, trained, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("place", "count"), [("micro-batch", 9), ("validation", 2), ("micro-batch", 22)])
def test_a_killed_run_ends_bitwise_equal(tmp_path: Path, whole: Any, kind: str, place: str, count: int) -> None:
    folder = make(tmp_path, "decoder", *KINDS[kind])
    assert run(folder, kill_at={place: count}) == -9
    assert run(folder, resume=True) == 0
    assert not differences(outcome(whole(kind)), outcome(folder))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("place", "count"), [("update", 5), ("update", 7), ("validation", 1)])
def test_a_stopped_run_ends_bitwise_equal(tmp_path: Path, whole: Any, kind: str, place: str, count: int) -> None:
    """Its checkpoint is one that the whole run does not write; at step 5 a validation is due."""
    folder = make(tmp_path, "decoder", *KINDS[kind])
    assert run(folder, kill_at={f"TERM:{place}": count}) == 75
    assert run(folder, resume=True) == 0
    assert not differences(outcome(whole(kind)), outcome(folder))


@pytest.mark.parametrize("kind", ["ema", "latest"])
def test_an_average_changes_nothing_that_is_trained(tmp_path: Path, whole: Any, kind: str) -> None:
    plain = make(tmp_path, "decoder")
    assert run(plain) == 0
    weights = read_checkpoint(plain.checkpoints / "last.ckpt")["state_dict"].values()
    trained = read_checkpoint(whole(kind).checkpoints / "last.ckpt")["average"]["trained"]
    assert all(torch.equal(a, b) for a, b in zip(weights, trained, strict=True))


def test_schedule_free_does_not_depend_on_when_it_is_judged(tmp_path: Path, whole: Any) -> None:
    often = make(tmp_path, "decoder", *KINDS["schedule_free"], "trainer.val_interval=1", "trainer.save_interval=1")
    assert run(often) == 0
    a, b = (read_checkpoint(f.checkpoints / "last.ckpt") for f in (whole("schedule_free"), often))
    assert not differences(a["state_dict"], b["state_dict"])
    assert not differences(a["average"], b["average"])


def test_refusals_name_the_key() -> None:
    with pytest.raises(ValueError, match=r"ema: decay=1\.0 .* callbacks\.average\.decay"):
        ema(1.0)
    with pytest.raises(ValueError, match=r"latest: interval=0 is below 1; set callbacks\.average\.interval"):
        latest(2, 0)
    free = schedule_free(torch.nn.Linear(2, 2), 0.1, (0.9, 0.99), 1e-8, 0.0, False, 1.0)
    check_averages([], free)
    check_averages([Average(Latest(1, 1))], NOTHING)
    with pytest.raises(ValueError, match=r"averages the weights itself; set callbacks=default"):
        check_averages([ema(0.9)], free)
    with pytest.raises(ValueError, match=r"2 averages of the weights"):
        check_averages([ema(0.9), latest(2, 1)], NOTHING)
