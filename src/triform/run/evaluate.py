"""What a trained model scores on a split of its data."""

from collections.abc import Sequence
from pathlib import Path

import torch

from triform.data.module import DataModule
from triform.run.check import LOADER
from triform.run.errors import BadInput, nearest
from triform.run.load import open_run
from triform.run.parts import data
from triform.training.hardware import pick_accelerator


def evaluate(run: str | Path, split: str | None = None, trust: Sequence[str] = ()) -> tuple[str, dict[str, float]]:
    """The split, with loss and the task's measures over every example of it, each once; loss in nats per target.

    Args:
        run: the run's folder or one of its checkpoints; the best one where it is the folder.
        split: `train`, `validation` or `test`; None: `test` where there is one, else `validation`.
        trust: packages of your own that the config names.

    Raises:
        ValueError: no such run or split, or the data is gone.
    """
    loaded = open_run(run, trust)
    prepared = data(loaded.config)
    split = split or ("test" if "test" in prepared.splits else "validation")
    if split not in prepared.splits:
        raise BadInput(
            f"--split {split}: the data has no such split{nearest(split, prepared.splits)}; "
            f"there are {', '.join(prepared.splits)}"
        )
    module = DataModule(
        prepared=prepared,
        collate=loaded.objective.collate,
        seed=loaded.config["seed"],
        accumulate=1,
        overfit=False,
        **{key: loaded.config["data"][key] for key in LOADER},
    )
    device = {"gpu": "cuda"}.get(pick_accelerator(loaded.config["trainer"]["accelerator"]), "cpu")
    model, objective = loaded.model.to(device), loaded.objective
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    with torch.inference_mode():
        for batch in module.loader(split):
            on_device = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
            measures = objective.evaluate(model, on_device)
            for name, (total, count) in {"loss": (measures.loss, measures.n_targets), **measures.ratios}.items():
                sums[name] = sums.get(name, 0.0) + float(total)
                counts[name] = counts.get(name, 0) + count
    means = {name: sums[name] / counts[name] for name in sums if counts[name]}
    n_bytes = prepared.splits[split].n_bytes if prepared.kind == "text" else None
    return split, means | objective.derive(means["loss"], counts["loss"], n_bytes)
