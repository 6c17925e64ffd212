"""What the framework costs: `train.py` as it stands against a plain PyTorch loop over the same module and batches.

    python benchmarks/overhead.py [ROUNDS]

Both run in one process and take turns, so that a busy machine slows both. triform's part is the whole of `train.py`
with its defaults: W&B (offline), metrics.csv and summary.json, a checkpoint, its bar on a terminal, guards, watchdog.
Printed are milliseconds per optimizer step, the median over rounds, and how much more Lightning alone takes, with
neither logger nor checkpoint nor bar, which nothing of ours could save. The clock starts when W&B has started, which
goes on beside the first seconds of training, and stops before the final validation. At about 5 ms a step 10 % is the
most that it may cost, at about 50 ms 3 %.
"""

import io
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from triform.analysis.runs import read_metrics
from triform.run.compose import compose
from triform.run.job import run, settled
from triform.run.parts import data, parts
from triform.training.fit import quiet

WARM_UP = 20  # steps of the plain loop before the clock starts
STARTED = 6.0  # seconds of training after which W&B has started

SHAPES = {
    "width 32, one layer, 16 pairs": (
        *(1800, 600, "model.d_model=32", "model.n_layers=1", "model.d_ff=64", "data.batch_size=16"),
    ),
    "the default model, 64 pairs": (180, 80),
}
"""What is trained, on `experiment=dates`: optimizer steps of train.py and of the plain loop; what is not by default."""


def framework(config: dict[str, Any], steps: int) -> float:
    """Seconds per step by the run's own record."""
    with tempfile.TemporaryDirectory() as outputs:
        config = {**config, "paths": {**config["paths"], "outputs": outputs}}
        said = io.StringIO()
        with terminal(), redirect_stdout(said):
            code = run(config, [])
        assert code == 0, said.getvalue()
        metrics = read_metrics(next(Path(outputs).glob("*/*/metrics.csv")))
    rows = metrics["step"] < steps  # the last one may be of the validation
    at, seconds = metrics["step"][rows], metrics["seconds"][rows]
    first = int((seconds > STARTED).argmax())
    return float((seconds[-1] - seconds[first]) / (at[-1] - at[first]))


@contextmanager
def terminal() -> Iterator[None]:
    """Standard error as a terminal that nobody looks at."""
    ours, theirs = os.openpty()
    reader = threading.Thread(target=_read, args=(ours,), daemon=True)
    reader.start()
    with os.fdopen(theirs, "w") as file, redirect_stderr(file):
        yield
    reader.join(1)
    os.close(ours)


def _read(descriptor: int) -> None:
    try:
        while os.read(descriptor, 65536):
            pass
    except OSError:  # the other end is closed
        pass


class Loop:
    """What a plain loop and bare Lightning have in common: the same model, batches and optimizer."""

    def __init__(self, config: dict[str, Any], steps: int) -> None:
        prepared = data(config)
        self.parts, self.split, self.steps = parts(config, prepared), prepared.splits["train"], steps
        with torch.device("meta"):
            self.model = self.parts.model_factory()
        self.model.to_empty(device="cpu").initialise(config["seed"])
        self.model.train()
        self.optimizer = self.parts.optimizer(self.model)
        self.clip: float = config["trainer"]["gradient_clip"]

    def __iter__(self) -> Iterator[Any]:
        for step in range(self.steps):
            epoch, indices = self.parts.data.order.batch(step)
            keys = [(epoch, i) for i in indices.tolist()]
            yield self.parts.objective.collate([self.split[i] for _, i in keys], keys)

    def loss(self, batch: Any) -> Tensor:
        return self.parts.objective.loss(self.model, batch) / batch["n_targets"]

    def factor(self, step: int) -> float:
        return self.parts.schedule(step, self.steps)


def plain(config: dict[str, Any], steps: int) -> float:
    """Seconds per step of the loop that one would write by hand."""
    loop = Loop(config, steps)
    peak = [group["lr"] for group in loop.optimizer.param_groups]
    began = 0.0
    for step, batch in enumerate(loop):
        if step == WARM_UP:
            began = time.perf_counter()
        loop.optimizer.zero_grad()
        loop.loss(batch).backward()
        nn.utils.clip_grad_norm_(loop.model.parameters(), loop.clip)
        for group, lr in zip(loop.optimizer.param_groups, peak, strict=True):
            group["lr"] = lr * loop.factor(step)
        loop.optimizer.step()
    return (time.perf_counter() - began) / (steps - WARM_UP)


def bare(config: dict[str, Any], steps: int) -> float:
    """Seconds per step of the same under Lightning."""
    loop = Loop(config, steps)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.began = loop.model, 0.0

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == WARM_UP:
                self.began = time.perf_counter()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return loop.loss(batch)

        def configure_optimizers(self) -> Any:
            schedule = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, loop.factor)
            return {"optimizer": loop.optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class Batches(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(loop)

    quiet()
    module = Module()
    lightning.Trainer(
        accelerator="cpu",
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=loop.clip,
    ).fit(module, DataLoader(Batches(), batch_size=None))
    return (time.perf_counter() - module.began) / (steps - WARM_UP)


def main(rounds: int) -> None:
    os.environ["WANDB_MODE"] = "offline"
    with tempfile.TemporaryDirectory() as cache:
        for name, (steps, plain_steps, *changes) in SHAPES.items():
            words = [
                f"trainer.max_steps={steps}",
                f"trainer.val_interval={steps}",
                f"trainer.save_interval={steps - 10}",
            ]
            config = settled(compose(["experiment=dates", "trainer=cpu", f"paths.cache={cache}", *words, *changes]))
            config["trainer"]["test"] = False
            theirs, lightnings, ours = [], [], []
            for _ in range(rounds):
                theirs.append(plain(config, plain_steps))
                lightnings.append(bare(config, plain_steps))
                ours.append(framework(config, steps))
            ratios = sorted(mine / other for mine, other in zip(ours, theirs, strict=True))
            alone = statistics.median(mine / other for mine, other in zip(lightnings, theirs, strict=True))
            print(
                f"{name}: plain loop {statistics.median(theirs) * 1e3:.2f} ms a step, "
                f"Lightning alone {100 * (alone - 1):+.1f} %, "
                f"train.py {100 * (statistics.median(ratios) - 1):+.1f} % "
                f"(rounds: {', '.join(f'{ratio:.3f}' for ratio in ratios)})",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
