"""Maximal update parametrisation: what a step changes does not depend on the width."""

from typing import Any

import pytest
import torch

from tests.models.composed import FAMILIES, VOCAB_SIZE, build, ids, read
from triform.layers.init import multipliers
from triform.layers.losses import CrossEntropy
from triform.training.optimizers import adamw

WIDTHS = (32, 64, 128, 256)


def of_width(width: int, init: str, family: str = "decoder", *overrides: str) -> Any:
    """Heads of 8 and an inner width of twice the model's."""
    sizes = [f"model.d_model={width}", f"model.n_heads={width // 8}", f"model.d_ff={2 * width}"]
    base = ["model.init.base_width=32", "model.init.base_head_dim=8"] if init == "mup" else []
    return build(family, f"model/init={init}", *sizes, *base, *overrides)


def movement(width: int, init: str, *overrides: str, steps: int = 4) -> dict[str, float]:
    """The coordinate check of Yang et al. 2022, appendix D.1: how far a few steps of Adam move a typical number."""
    model, tokens = of_width(width, init, "decoder", *overrides), ids(4, 9)
    optimizer = adamw(model, 0.01, (0.9, 0.95), 1e-12, 0.0, False, 1.0)

    def numbers() -> dict[str, torch.Tensor]:
        output = model(tokens)
        return {"hidden": output.hidden.detach(), "logits": output.logits.detach()}

    before = numbers()
    for _ in range(steps):
        optimizer.zero_grad()
        model.head(model(tokens[:, :-1]).hidden, tokens[:, 1:], CrossEntropy(0.0)).backward()
        optimizer.step()
    after = numbers()
    return {name: (after[name] - before[name]).abs().mean().item() for name in before}


@pytest.mark.parametrize("tied", [True, False])
def test_coordinate_check(tied: bool) -> None:
    """Eight times the width: under muP logits move as far, under the usual parametrisation several times as far."""
    head = f"model.head.tied={str(tied).lower()}"
    mup = [movement(width, "mup", head)["logits"] for width in WIDTHS]
    usual = [movement(width, "normal", head)["logits"] for width in WIDTHS]
    assert max(mup) / min(mup) < 1.5, mup
    assert usual[-1] / usual[0] > 3, usual


def test_at_the_base_width_it_is_the_usual_one() -> None:
    mup, usual, tokens = of_width(32, "mup"), of_width(32, "normal"), ids(2, 7)
    torch.testing.assert_close(mup(tokens).logits, usual(tokens).logits)
    assert set(multipliers(mup).values()) == {1.0}


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_matrices_alone_learn_more_slowly(family: str) -> None:
    model = of_width(128, "mup", family, "model.head.tied=false", "model.attention.bias=true")
    factors = multipliers(model)
    assert list(factors) == [name for name, _ in model.named_parameters()]
    for name, value in model.named_parameters():
        outside = name.startswith(("embedding.", "head.", "stack.position.", "encoder.position.", "decoder.position."))
        assert factors[name] == (0.25 if value.ndim == 2 and not outside else 1.0), name


@pytest.mark.parametrize("family", FAMILIES)
def test_values_scores_and_logits_follow_the_width(family: str) -> None:
    model, base = of_width(128, "mup", family, "model.head_dim=32"), of_width(32, "mup", family)
    stacks = [model.encoder, model.decoder] if family == "encoder_decoder" else [model.stack]
    for stack in stacks:
        attention = stack.layers[0].attention
        assert attention.scale == pytest.approx(8**0.5 / 32)
        assert attention.q_proj.weight.std().item() == pytest.approx(0.02 / 2, rel=0.05)
    assert model.embedding.table.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert (model.head.multiplier, base.head.multiplier) == (0.25, 1.0)
    output = read(model, ids(2, 7))
    expected = output.hidden @ model.embedding.table.weight.T / 4
    torch.testing.assert_close(output.logits - (0 if model.head.bias is None else model.head.bias), expected)


def test_a_model_without_it_has_no_factors() -> None:
    assert set(multipliers(build("decoder")).values()) == {1.0}


RATES = tuple(2.0**-n for n in range(9, 2, -1))


def loss_after(width: int, init: str, rate: float, steps: int = 45) -> float:
    """Mean loss of the last third of a short run on rows in which a token follows from the one before it."""
    model = of_width(width, init, "decoder", "model.init.std=0.1").train()
    optimizer = adamw(model, rate, (0.9, 0.95), 1e-9, 0.0, False, 1.0)
    peaks = [group["lr"] for group in optimizer.param_groups]
    generator, losses = torch.Generator().manual_seed(0), []
    for step in range(steps):
        rows = [torch.randint(VOCAB_SIZE, (8,), generator=generator)]
        for _ in range(10):
            rows.append((5 * rows[-1] + 3) % VOCAB_SIZE)
        tokens = torch.stack(rows, dim=1)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * min(1.0, (step + 1) / 10)
        optimizer.zero_grad()
        loss = model.head(model(tokens[:, :-1]).hidden, tokens[:, 1:], CrossEntropy(0.0)) / tokens[:, 1:].numel()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    last = losses[-steps // 3 :]
    return sum(last) / len(last)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_best_learning_rate_stays_put() -> None:
    """By more than a factor of two it moves under the usual parametrisation only (Yang et al. 2022, figure 1)."""

    def best(width: int, init: str) -> int:
        losses = [loss_after(width, init, rate) for rate in RATES]
        return losses.index(min(losses))

    mup = [best(width, "mup") for width in WIDTHS[:3]]
    assert max(mup) - min(mup) <= 1, mup
    assert best(WIDTHS[0], "normal") - best(WIDTHS[2], "normal") >= 2
