"""What the framework costs: training by triform against a plain PyTorch loop over the same module and batches.

    python benchmarks/overhead.py [STEPS] [ROUNDS]

Both make the same batches in the same process, and take turns, so that a busy machine slows both. Printed are seconds
per optimizer step, the median over rounds, validation and checkpoints left out. The target is 3 %.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from triform.analysis.runs import read_metrics
from triform.run.compose import compose
from triform.run.parts import data, parts
from triform.training.fit import fit

WARM_UP = 10  # steps before the clock starts, for both


def framework(config: dict[str, Any], steps: int) -> float:
    """Seconds per step by the run's own record, which leaves validation and checkpoints out."""
    prepared = data(config)
    made = parts(config, prepared)
    with tempfile.TemporaryDirectory() as folder:
        fit(
            settings=made.settings,
            folder=Path(folder),
            data=made.data,
            prepared=prepared,
            model_factory=made.model_factory,
            objective=made.objective,
            optimizer=made.optimizer,
            schedule=made.schedule,
            seed=config["seed"],
            loggers=[],
            callbacks=[],
            fill=None,
            resume=False,
        )
        metrics = read_metrics(Path(folder) / "metrics.csv")
    record = {step: row for row, step in enumerate(metrics["step"])}
    return float(metrics["seconds"][record[steps]] - metrics["seconds"][record[WARM_UP]]) / (steps - WARM_UP)


def plain(config: dict[str, Any], steps: int) -> float:
    """Seconds per step of the loop that one would write by hand."""
    prepared = data(config)
    made = parts(config, prepared)
    split = prepared.splits["train"]
    with torch.device("meta"):
        model = made.model_factory()
    model.to_empty(device="cpu").initialise(config["seed"])
    model.train()
    optimizer = made.optimizer(model)
    peak = [group["lr"] for group in optimizer.param_groups]
    began = 0.0
    for step in range(steps):
        if step == WARM_UP:
            began = time.perf_counter()
        epoch, indices = made.data.order.batch(step)
        batch = made.objective.collate([split[i] for i in indices.tolist()], [(epoch, i) for i in indices.tolist()])
        optimizer.zero_grad()
        (made.objective.loss(model, batch) / batch["n_targets"]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), config["trainer"]["gradient_clip"])
        for group, lr in zip(optimizer.param_groups, peak, strict=True):
            group["lr"] = lr * made.schedule(step, steps)
        optimizer.step()
    return (time.perf_counter() - began) / (steps - WARM_UP)


def main(steps: int, rounds: int) -> None:
    config = compose(
        [
            "experiment=dates",
            "logger=csv",
            f"trainer.max_steps={steps}",
            "trainer.max_epochs=null",
            f"trainer.val_interval={steps}",
            "trainer.accelerator=cpu",
            "data.num_workers=0",
        ]
    )
    loops: dict[str, list[float]] = {"plain": [], "triform": []}
    for _ in range(rounds):
        loops["plain"].append(plain(config, steps))
        loops["triform"].append(framework(config, steps))
    ratios = [ours / theirs for ours, theirs in zip(loops["triform"], loops["plain"], strict=True)]
    for name, seconds in loops.items():
        print(f"{name:8} {statistics.median(seconds) * 1e3:8.2f} ms per step")
    print(
        f"overhead {100 * (statistics.median(ratios) - 1):+8.1f} %  (rounds: {', '.join(f'{r:.3f}' for r in ratios)})"
    )


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(*given, *(150, 3)[len(given) :])
