"""Runs compared with each other: a table, curves, a page. Imports nothing that takes time until it is asked to."""

import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triform.analysis.compare.comparison import Comparison
    from triform.analysis.compare.gather import Entry


@dataclass(frozen=True)
class Report:
    """A comparison and the files that tell of it, `page` for people."""

    comparison: "Comparison"
    folder: Path
    page: Path
    files: tuple[Path, ...]


def report(
    places: Sequence[str | Path],
    out: Path | None = None,
    metric: str | None = None,
    mode: str | None = None,
    baseline: str | None = None,
    wandb: bool = False,
) -> Report:
    """Compare runs and write report.html, report.md, table.csv, table.tex and plots/*.png.

    Needs neither torch nor a network, and changes nothing in the runs' folders.

    Args:
        places: run folders, folders of them (a sweep, say), or patterns.
        out: where to; None: the one folder of runs in `places`, else `compare/<date>_<time>_<id>` where runs go.
        metric: figure to judge by; None: what the sweep judges its jobs by (on test data where it tuned its variants on
            validation data), else what picked the runs' best checkpoints.
        mode: "min" or "max", where less or more of it is better; None: as the runs or its name say.
        baseline: label, folder or KEY=VALUE of the variant that others are compared with; None: the first.

        wandb: also show the table and pictures in Weights & Biases, if it has any of the runs.

    Raises:
        BadInput: no run is there, none has logged the figure, no variant is the baseline, or `out` cannot be
            written to.
    """
    from triform.analysis.compare.charts import charts
    from triform.analysis.compare.columns import as_csv, as_latex
    from triform.analysis.compare.comparison import compared
    from triform.analysis.compare.document import document
    from triform.analysis.compare.figures import names
    from triform.analysis.compare.gather import gather, only_folder, sweep_monitor
    from triform.analysis.compare.page import page
    from triform.analysis.compare.pictures import draw, draw_importance
    from triform.analysis.compare.tracker import publish
    from triform.analysis.compare.variants import short
    from triform.run.errors import BadInput
    from triform.run.folder import write_whole

    entries = gather(places)
    sweep = sweep_monitor(only_folder(places)) if metric is None else None
    if sweep is not None:
        logged = names([entry.run for entry in entries if entry.run is not None and entry.counts])
        on_test = f"test/{sweep[0].rpartition('/')[2]}"
        tuned = any(entry.stage for entry in entries)  # by validation data, which is of no use for a judgement any more
        found_names = [name for name in ((on_test, sweep[0]) if tuned else sweep[:1]) if name in logged]
        metric, mode = (found_names[0], mode or sweep[1]) if found_names else (None, mode)
    found = compared(entries, metric, mode, baseline)
    folder = Path(out).expanduser() if out is not None else only_folder(places) or _new_folder(entries)
    drawn = charts(found)
    plots = folder / "plots"
    pictures = {f"{_slug(name)}.png": list(by.values()) for name, by in drawn.curves.items()}
    if drawn.fronts:
        pictures["front.png"] = list(drawn.fronts)
    if drawn.tunings:
        pictures["trials.png"] = list(drawn.tunings)
    if drawn.slices:
        pictures["slices.png"] = list(drawn.slices)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for name, panels in pictures.items():
            draw(panels, plots / name)
            written.append(plots / name)
        if found.importance is not None and found.importance.shares:
            keys = short(found.varied)
            draw_importance(found.importance, [keys[key] for key in found.importance.shares], plots / "importance.png")
            written.append(plots / "importance.png")
        texts = {
            "table.csv": as_csv(found),
            "table.tex": as_latex(found),
            "report.md": document(found, [picture.relative_to(folder) for picture in written]),
            "report.html": page(found, drawn),
        }
        for name, text in texts.items():
            write_whole(folder / name, text)
    except OSError as error:
        raise BadInput(f"--out {folder}: cannot write the report there: {error.strerror or error}") from error
    if wandb:
        publish(found, folder, written)
    return Report(found, folder, folder / "report.html", (*(folder / name for name in texts), *written))


def _new_folder(entries: Sequence["Entry"]) -> Path:
    outputs = Path("outputs")
    for entry in entries:
        kept = Path() if entry.run is None else Path(str(entry.run.config.get("paths", {}).get("outputs", "")))
        if kept.is_absolute() and kept.is_dir():
            outputs = kept
            break
    return outputs / "compare" / (time.strftime("%Y-%m-%d_%H-%M-%S_") + secrets.token_hex(2))


def _slug(name: str) -> str:
    return re.sub(r"[^\w]+", "_", name)
