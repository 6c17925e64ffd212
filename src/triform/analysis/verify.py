"""Whether a recipe still does what it did: its short form, run again.

A recipe `conf/experiment/NAME.yaml` may have a record `NAME.json` beside it: the overrides of the short form, and what
some seeds of it did.
"""

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triform.analysis.bands import Made, Record, curves, is_unrecorded, judge, made, page, read_record, same_seed
from triform.analysis.runs import read_run
from triform.run import job
from triform.run.compose import compose
from triform.run.errors import BadInput, nearest
from triform.run.folder import RunFolder
from triform.run.help import conf_dir
from triform.run.parts import own_data
from triform.training.codes import FINISHED


@dataclass(frozen=True)
class Verdict:
    """Of `verify`.

    Attributes:
        code: of the run that was made for it; with any but 0 there is no verdict.
    """

    code: int
    good: bool = False
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ran:
    """What a run that has finished did."""

    seed: int
    curves: dict[str, dict[int, float]]
    made: Made


def verify(name: str, overrides: Sequence[str], folders: Sequence[Path]) -> Verdict:
    """Run the short form of a recipe, and judge its curve.

    Args:
        overrides: besides those of the short form.
        folders: config folders of the user's own.

    Raises:
        BadInput: there is no such recipe or no record, or the recipe can't be run.
    """
    record = read_record(record_file(name, folders))
    ran = _run(name, [*record.overrides, *overrides], folders)
    if isinstance(ran, int):
        return Verdict(ran)
    points = judge(record, ran.curves)
    lines = page(name, record, points, ran.seed, ran.made, same_seed(record, ran.seed, ran.curves))
    return Verdict(FINISHED, all(point.inside for point in points), tuple(lines))


def record(name: str, overrides: Sequence[str], folders: Sequence[Path], n_seeds: int) -> Verdict:
    """Run some seeds of the short form of a recipe, from the recipe's own on, and write its record.

    Args:
        overrides: the short form, besides where the data is; none: as it was recorded before.

    Raises:
        BadInput: there is no such recipe, it can't be run, or there is nothing to record.
    """
    file = record_file(name, folders)
    short = [word for word in overrides if not is_unrecorded(word.partition("=")[0].lstrip("+~"))]
    if not short and file.is_file():
        short = read_record(file).overrides
    words = [*short, *(word for word in overrides if word not in short)]
    seen: list[Ran] = []
    for i in range(n_seeds):
        ran = _run(name, [*words, f"seed={seen[0].seed + i}"] if seen else words, folders)
        if isinstance(ran, int):
            return Verdict(ran)
        seen.append(ran)
    values = {
        metric: {
            step: [ran.curves[metric][step] for ran in seen]
            for step in points
            if all(step in ran.curves[metric] for ran in seen)  # another seed may have stopped earlier
        }
        for metric, points in seen[0].curves.items()
    }
    if not any(values.values()):
        raise BadInput(
            f"{name}: the {n_seeds} seeds have no point of a curve in common; let all train for as many steps "
            "(trainer.max_steps) and stop none early"
        )
    Record(short, [ran.seed for ran in seen], values, seen[0].made).write(file)
    return Verdict(FINISHED, True, (f"{file}: {n_seeds} seeds recorded",))


def _run(name: str, words: Sequence[str], folders: Sequence[Path]) -> Ran | int:
    """What a run of a recipe did; its exit code where it has not finished."""
    typed = [f"experiment={name}", "logger=csv", "trainer.test=false", f"name=verify_{name}", *words]
    config = compose(typed, folders)
    outputs = Path(config["paths"]["outputs"]) / config["name"]
    folder = RunFolder((outputs / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{secrets.token_hex(2)}").absolute())
    code = job.run(config, typed, folder=folder.path)
    if code != FINISHED:
        return code
    run, environment = read_run(folder.path), json.loads(folder.environment.read_text(encoding="utf-8"))
    return Ran(config["seed"], curves(run.metrics), made(run, own_data(folder, run.config), environment))


def record_file(name: str, folders: Sequence[Path] = ()) -> Path:
    """Where the record of a recipe is: beside it.

    Args:
        folders: config folders of the user's own, searched first.

    Raises:
        BadInput: there is no such recipe.
    """
    places = [folder / "experiment" for folder in (*folders, conf_dir())]
    for place in places:
        if name and (place / f"{name}.yaml").is_file():
            return place / f"{name}.json"
    known = sorted({file.stem for place in places for file in place.glob("*.yaml")} - {"none"})
    raise BadInput(f"{name}: no such recipe{nearest(name, known)}; conf/experiment has {', '.join(known)}")


def recorded() -> list[str]:
    """Names of triform's recipes that have a record."""
    return sorted(file.stem for file in (conf_dir() / "experiment").glob("*.json"))
