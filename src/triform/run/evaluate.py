"""What a trained model scores on a split of its data."""

from collections.abc import Sequence
from pathlib import Path

import torch

from triform.data.module import DataModule
from triform.data.prepare import Origin
from triform.data.sources.files import content_hash
from triform.run.errors import BadInput, nearest
from triform.run.folder import RunFolder
from triform.run.load import open_run
from triform.run.parts import loader, own_data, read_origin
from triform.tasks.figures import Figures
from triform.training.hardware import device_type


def evaluate(run: str | Path, split: str | None = None, trust: Sequence[str] = ()) -> tuple[str, dict[str, float]]:
    """The split, with loss and the task's measures over every example of it, each once; loss in nats per target.

    Args:
        run: the run's folder or one of its checkpoints; the best one where it is the folder.
        split: `train`, `validation` or `test`; None: `test` where there is one, else `validation`.
        trust: packages of your own that the config names.

    Raises:
        ValueError: no such run or split, or the data is gone or not the run's own any more.
    """
    loaded = open_run(run, trust)
    check_files(loaded.folder, read_origin(loaded.folder))
    prepared = own_data(loaded.folder, loaded.config)
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
        **loader(loaded.config, loaded.objective),
    )
    device = device_type(loaded.config["trainer"]["accelerator"])
    model, figures = loaded.model.to(device), Figures(loaded.objective)
    figures.reset(device)
    with torch.inference_mode():
        for batch in module.loader(split):
            batch = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
            figures.add(model, batch, final=True)
    return split, figures.means(prepared.spelt_bytes(split))


def check_files(folder: RunFolder, kept: Origin) -> None:
    """Refuse files that are not as the run read them.

    Raises:
        BadInput: it names the file.
    """
    for name, content in kept.files.items():
        if Path(name).is_file() and content_hash(Path(name)) != content:
            raise BadInput(
                f"{name} has changed since {folder.path} began, whose figures are of what was there; "
                f"put it back as it was, or train on it: triform rerun {folder.path}"
            )
