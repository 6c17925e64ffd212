"""Does the best learning rate stay put when the model widens? Under muP it should, under the usual parametrisation not.

    python benchmarks/mup.py [TEXT_FILE] [PICTURE.png]

Trains a small decoder on characters at every width and learning rate, once with `model/init=mup` and once with
`model/init=normal`, and prints the loss of each in Markdown, the best of a row in bold. All runs read the same rows in
the same order, and none twice, so the mean training loss of the last quarter is that of text not seen before. Without a
file the text is the documentation of Python's standard library. `best` is the bottom of a parabola through the lowest
loss and its neighbours, over the logarithm of the learning rate.
"""

import math
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import matplotlib
import torch
from torch import nn

from triform.data.prepare import Prepared
from triform.run.compose import compose
from triform.run.parts import data, parts
from triform.training.environment import environment

matplotlib.use("Agg")
import matplotlib.pyplot as plt

WIDTHS = (32, 64, 128, 256)
RATES = tuple(2.0**-n for n in range(11, 4, -1))
INITS = ("mup", "normal")
STEPS = 300
HEAD_DIM = 32  # and 128 is the width that model/init=mup calls its base: there both are the same


def settings(text: str | None, cache: str, width: int, init: str, rate: float) -> dict[str, Any]:
    """Heads of 32 and an inner width of twice the model's."""
    source = ["data=stdlib_docs"] if text is None else ["data=text", f"data.train_files={text}"]
    return compose(
        [
            *("experiment=text", "model=decoder", "tokenizer=char", "logger=csv"),
            *source,
            *("data.seq_len=64", "data.batch_size=8", f"paths.outputs={cache}"),
            *("model.n_layers=2", f"model.d_model={width}", f"model.n_heads={width // HEAD_DIM}"),
            *(f"model.d_ff={2 * width}", f"model/init={init}", f"optimizer.lr={rate}", "scheduler.warmup_steps=0.1"),
        ]
    )


def loss_of(config: dict[str, Any], prepared: Prepared) -> float:
    """Mean loss over the last quarter of a run; infinite where it diverged."""
    made = parts(config, prepared)
    made.data.total_steps = STEPS
    with torch.device("meta"):
        model: Any = made.model_factory()
    model.to_empty(device="cpu").initialise(config["seed"])
    model.train()
    optimizer = made.optimizer(model)
    peak = [group["lr"] for group in optimizer.param_groups]
    losses = []
    for step, batch in enumerate(made.data.train_dataloader()):
        optimizer.zero_grad()
        loss = made.objective.loss(model, batch) / batch["n_targets"]
        loss.backward()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            return math.inf
        nn.utils.clip_grad_norm_(model.parameters(), config["trainer"]["gradient_clip"])
        for group, rate in zip(optimizer.param_groups, peak, strict=True):
            group["lr"] = rate * made.schedule(step, STEPS)
        optimizer.step()
    last = losses[-(STEPS // 4) :]
    return sum(last) / len(last)


def bottom(losses: Sequence[float]) -> float:
    """The best learning rate, between those tried; the lowest of them where it is the first or last."""
    best = min(range(len(losses)), key=losses.__getitem__)
    if not 0 < best < len(losses) - 1:
        return RATES[best]
    left, low, right = losses[best - 1 : best + 2]
    shift = 0.5 * (left - right) / (left - 2 * low + right) if math.isfinite(left + right) else 0.0
    return RATES[best] * 2**shift


def row(init: str, width: int, losses: Sequence[float]) -> str:
    """One line of the table."""
    shown = [f"**{loss:.3f}**" if loss == min(losses) else f"{loss:.3f}" for loss in losses]
    return f"| `{init}` | {width} | {' | '.join(shown)} | {bottom(losses):.4f} |"


def draw(found: dict[str, dict[int, list[float]]], picture: str) -> None:
    """Loss over learning rate, a curve for each width, beside each other for the parametrisations."""
    figure, axes = plt.subplots(1, len(INITS), figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, init in zip(axes, INITS, strict=True):
        for width, losses in found[init].items():
            (line,) = axis.plot(RATES, losses, marker=".", label=f"d_model {width}")
            axis.plot(bottom(losses), min(losses), marker="v", color=line.get_color())
        axis.set(title=f"model/init={init}", xlabel="optimizer.lr")
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("loss, last quarter (nats)")
    axes[0].legend()
    figure.savefig(picture, dpi=120)


def main(text: str | None, picture: str) -> None:
    torch.set_num_threads(1)
    began, hardware = time.perf_counter(), environment(0)["hardware"]
    print(f"{hardware['cpu']}, one thread, {platform.system()}; python benchmarks/mup.py; {STEPS} steps\n")
    print(f"| `model/init` | `d_model` | {' | '.join(f'{rate:.4f}' for rate in RATES)} | best |")
    print(f"|{' --- |' * (len(RATES) + 3)}")
    found: dict[str, dict[int, list[float]]] = {init: {} for init in INITS}
    with tempfile.TemporaryDirectory() as cache:
        prepared = data(settings(text, cache, WIDTHS[0], INITS[0], RATES[0]))
        for init in INITS:
            for width in WIDTHS:
                losses = [loss_of(settings(text, cache, width, init, rate), prepared) for rate in RATES]
                found[init][width] = losses
                print(row(init, width, losses), flush=True)
    draw(found, picture)
    print(f"\n{time.perf_counter() - began:.0f} seconds; {picture}")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0] if given else None, given[1] if len(given) > 1 else "mup.png")
