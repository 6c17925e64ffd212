"""The one runner, for single runs, jobs of a sweep and resumed runs."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triform.run.check import check, devices
from triform.run.errors import FAILED, BadInput, one_line
from triform.run.folder import RunFolder, create, write_whole

if TYPE_CHECKING:
    from triform.data.prepare import Prepared


def run(config: dict[str, Any], overrides: Sequence[str]) -> int:
    """Train what a resolved config says, from checks to the last line on standard output, `run: FOLDER`.

    Nothing is on disk until every check has passed, but for the cache of prepared data.

    Args:
        overrides: what the user typed, for the record.

    Raises:
        ValueError: bad input; no run folder was made.
    """
    config = settled(config)
    prepared = checked(config)
    folder = create(Path(config["paths"]["outputs"]) / config["name"], config, overrides)
    return start(folder, config, prepared, resume=False)


def settled(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with absolute paths, so that it means the same from any folder."""
    config = {key: dict(value) if isinstance(value, Mapping) else value for key, value in config.items()}
    for name, path in config.get("paths", {}).items():
        if isinstance(path, str) and path:
            config["paths"][name] = os.path.abspath(os.path.expanduser(path))
    data = config.get("data", {})
    for name in ("train_files", "validation_files", "test_files"):
        if data.get(name) is not None:
            files = data[name]
            data[name] = [_absolute(file) for file in files] if isinstance(files, list) else _absolute(files)
    return config


def _absolute(file: Any) -> Any:
    return os.path.abspath(os.path.expanduser(file)) if isinstance(file, str) and "://" not in file else file


def checked(config: Mapping[str, Any]) -> "Prepared":
    """Check a config, prepare its data, check what only then is known, and build the model once without memory.

    Raises:
        ValueError: bad input.
    """
    check(config)

    import torch

    from triform.run.parts import data, model_factory, parts

    with torch.device("meta"):
        model_factory(config, 1)()  # a wrong size is refused before minutes of tokenising
    prepared = data(config, progress=sys.stderr.isatty())
    if prepared.kind == "text":
        for name, split in prepared.splits.items():
            if len(split.tokens) <= config["data"]["seq_len"]:
                raise BadInput(
                    f"data: the {name} text has {len(split.tokens)} tokens, fewer than one block of "
                    f"data.seq_len={config['data']['seq_len']} and the token after it; "
                    "give more text or set data.seq_len lower"
                )
    made = parts(config, prepared)
    with torch.device("meta"):
        made.model_factory()
    return prepared


def start(folder: RunFolder, config: Mapping[str, Any], prepared: "Prepared", resume: bool) -> int:
    """Start the run's ranks, in this process when there is one, and return the exit code."""
    _, count = devices(config)
    try:
        if count == 1:
            return rank_main(folder, resume, prepared)
        from triform.run.ranks import launch

        return launch(folder, count, resume)
    finally:
        print(f"run: {folder.path}", flush=True)


def rank_main(folder: RunFolder, resume: bool, prepared: "Prepared | None" = None) -> int:
    """Do one rank's part of a run, which reads its config from the folder, and return the exit code.

    Args:
        prepared: the run's data where this process has it open already.
    """
    from triform.run.errors import report
    from triform.run.parts import data, parts
    from triform.training.fit import fit

    config = folder.read_config()
    try:
        prepared = data(config) if prepared is None else prepared
        made = parts(config, prepared)
        return fit(
            config=config,
            folder=folder,
            prepared=prepared,
            model_factory=made.model_factory,
            objective=made.objective,
            optimizer=made.optimizer,
            schedule=made.schedule,
            logger=made.logger,
            callbacks=made.callbacks,
            resume=resume,
        )
    except (Exception, KeyboardInterrupt) as error:
        mark_failed(folder, error)
        return report(error, config["traceback"]) and FAILED


def mark_failed(folder: RunFolder, error: BaseException) -> None:
    """Write why a run failed into its summary."""
    try:
        summary = json.loads(folder.summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        summary = {}
    summary |= {"status": "failed", "error": f"{type(error).__name__}: {one_line(error)}"}
    write_whole(folder.summary, json.dumps(summary, indent=2) + "\n")
