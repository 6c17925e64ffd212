"""The same table and pictures for Weights & Biases, beside the runs that it has."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from triform.analysis.compare.columns import columns
from triform.analysis.compare.comparison import Comparison

TARGET = "triform.training.loggers.wandb_logger"


def settings(found: Comparison) -> dict[str, Any] | None:
    """Project, entity and mode of the first run that W&B has recorded; None: there is none."""
    for entry in found.entries:
        logger = None if entry.run is None else entry.run.config.get("logger")
        if isinstance(logger, dict) and logger.get("_target_") == TARGET:
            return {key: logger[key] for key in ("project", "entity", "mode")}
    return None


def publish(found: Comparison, folder: Path, pictures: Sequence[Path]) -> bool:
    """Show the comparison as a run of its own in the group that is called as its folder; False: no run is in W&B.

    Offline where the runs were, or where nobody is logged in; then it says how to upload it. Called again for the
    folder, it goes on with the same W&B run.
    """
    where = settings(found)
    if where is None:
        return False
    from triform.training.loggers import wandb_logger  # and with it Lightning

    about = {"metric": found.metric.name, "runs": [str(entry.folder) for entry in found.entries]}
    tracker = wandb_logger(
        **where, group=folder.name, tags=["comparison"], folder=folder, config=about, name=f"{folder.name}/comparison"
    )
    table = columns(found)
    rows = [[column.cells[i] for column in table] for i in range(len(found.rows))]
    tracker.log_table("variants", [column.heading for column in table], rows)
    for picture in pictures:
        tracker.log_image(picture.stem, picture)
    tracker.close()
    return True
