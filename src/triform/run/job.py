"""The one runner, for single runs, jobs of a sweep and resumed runs."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from triform.run.check import WHOLE, check, check_reach, devices
from triform.run.errors import BAD_INPUT, FAILED, FINISHED, PREEMPTED, BadInput, one_line, report
from triform.run.folder import RunFolder, create, write_whole
from triform.run.log import recorded
from triform.run.ranks import Launcher, launch

if TYPE_CHECKING:
    from triform.data.prepare import Prepared


Finish = Callable[[RunFolder, Sequence[str]], None]
"""What the first rank does with a finished run's folder (and the packages that its config may name): pictures, samples,
the printed report."""


def run(
    config: Mapping[str, Any], overrides: Sequence[str], finish: Finish | None = None, folder: Path | None = None
) -> int:
    """Train what a resolved config says, from checks to the last line on standard output, `run: FOLDER`.

    Nothing is on disk until every check has passed, but for the cache of prepared data.

    Args:
        overrides: what the user typed, for the record.
        finish: called with the folder when training has finished; an importable function.
        folder: of the run; None: a new one in `paths.outputs`.

    Raises:
        ValueError: bad input; no run folder was made.
    """
    config = settled(config)
    check_reach(config, overrides)
    if Launcher.started_us():
        return _run_launched(config, overrides, finish)
    if config["trainer"]["num_nodes"] != 1:
        raise BadInput(
            f"trainer.num_nodes={config['trainer']['num_nodes']}: several machines are started by torchrun or srun, "
            "which then say how many there are; start train.py with one of them or set trainer.num_nodes=1"
        )
    prepared = checked(config)
    return start(created(config, overrides, prepared, folder), config, prepared, False, finish)


def _run_launched(config: dict[str, Any], overrides: Sequence[str], finish: Finish | None) -> int:
    """A run whose ranks torchrun or srun has started; they say how many devices and machines there are."""
    launcher = Launcher()
    config["trainer"] |= {"devices": launcher.devices, "num_nodes": launcher.nodes}
    if launcher.rank != 0:
        told = launcher.told()
        return rank_main(RunFolder(Path(told)), False, None, finish, config["trust"]) if told else BAD_INPUT
    try:
        prepared = checked(config)
        folder = created(config, overrides, prepared)
    except BaseException:
        launcher.tell("")
        raise
    launcher.tell(str(folder.path))
    try:
        return rank_main(folder, False, prepared, finish, config["trust"])
    finally:
        print(f"run: {folder.path}", flush=True)


def resume(folder: RunFolder, trust: Sequence[str] = (), finish: Finish | None = None) -> int:
    """Go on with a run from its newest checkpoint, and return the exit code.

    Args:
        trust: packages besides triform's own that its config may name.

    Raises:
        ValueError: the config no longer passes the checks, or the data has changed.
    """
    config = {**folder.read_config(), "trust": list(trust)}
    prepared = checked(config)
    if not Launcher.started_us():
        return start(folder, config, prepared, True, finish)
    launcher = Launcher()
    if (launcher.devices, launcher.nodes) != (config["trainer"]["devices"], config["trainer"]["num_nodes"]):
        raise BadInput(
            f"{folder.path} ran on {config['trainer']['num_nodes']} machines with {config['trainer']['devices']} ranks "
            f"each, but {launcher.nodes} with {launcher.devices} each were started; start as many as before"
        )
    return rank_main(folder, True, prepared, finish, trust)


def created(
    config: Mapping[str, Any], overrides: Sequence[str], prepared: "Prepared", path: Path | None = None
) -> RunFolder:
    """The run's folder, with all that is known before training."""
    from triform.training.environment import environment

    if path is None:
        folder = create(Path(config["paths"]["outputs"]) / config["name"], config, overrides)
    else:
        folder = create(path.parent, config, overrides, path.name)
    write_whole(folder.environment, json.dumps(environment(config["seed"]), indent=2) + "\n")
    prepared.tokenizer.save(folder.tokenizer)
    if prepared.labels is not None:
        write_whole(folder.labels, json.dumps(prepared.labels, ensure_ascii=False) + "\n")
    return folder


def settled(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with absolute paths, so that it means the same from any folder, and whole numbers as such."""
    config = {key: dict(value) if isinstance(value, Mapping) else value for key, value in config.items()}
    for name, path in config.get("paths", {}).items():
        if isinstance(path, str) and path:
            config["paths"][name] = os.path.abspath(os.path.expanduser(path))
    if isinstance(config.get("name"), int | float):
        config["name"] = str(config["name"])  # name=3
    for key in WHOLE:  # 1e9 is a whole number, too
        section, _, name = key.rpartition(".")
        value = config.get(section, {}).get(name)
        if isinstance(value, float) and value.is_integer():
            config[section][name] = int(value)
    data = config.get("data", {})
    if data.get("batch_tokens") is not None:
        data["batch_size"] = None  # the default of which need not be taken back
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
    from triform.training.averages import check_averages

    with torch.device("meta"):
        model_factory(config, 1)()  # a wrong size is refused before minutes of tokenising
    prepared = data(config, progress=sys.stderr.isatty())
    made = parts(config, prepared)
    with torch.device("meta"):
        model = made.model_factory()
    try:
        optimizer = made.optimizer(model)
        made.schedule(0, 1)
    except (TypeError, ValueError) as error:
        raise BadInput(f"optimizer, scheduler: {one_line(error)}; see python train.py --help optimizer") from error
    check_averages(made.callbacks, optimizer)
    return prepared


def start(
    folder: RunFolder, config: Mapping[str, Any], prepared: "Prepared", resume: bool, finish: Finish | None
) -> int:
    """Start the run's ranks, in this process when there is one, and return the exit code."""
    _, count = devices(config)
    lock = FileLock(folder.lock)
    try:
        with lock.acquire(timeout=0):
            if count == 1:
                return rank_main(folder, resume, prepared, finish, config["trust"])
            return launch(count, rank_main, (folder, resume, None, finish, config["trust"]))
    except Timeout as error:
        raise BadInput(f"{folder.path}: another process is training this run; wait for it or end it") from error
    finally:
        print(f"run: {folder.path}", flush=True)


def rank_main(
    folder: RunFolder,
    resume: bool,
    prepared: "Prepared | None" = None,
    finish: Finish | None = None,
    trust: Sequence[str] = (),
) -> int:
    """Do one rank's part of a run, which reads its config from the folder, and return the exit code.

    Args:
        prepared: the run's data where this process has it open already.
        finish: called on the first rank when training has finished.
        trust: packages besides triform's own that the config may name, as who started the run says.
    """
    from triform.run.parts import data, loggers, parts
    from triform.training.fit import fit
    from triform.training.hardware import rank
    from triform.training.signals import Preempted, Preemption

    config = {**folder.read_config(), "trust": list(trust)}
    is_first = rank() == 0
    trackers: list[Any] = []
    code = FAILED
    try:
        with Preemption(), recorded(folder.log) if is_first else nullcontext():
            trackers = loggers(config, folder)
            prepared = data(config) if prepared is None else prepared
            made = parts(config, prepared)
            code = fit(
                settings=made.settings,
                folder=folder.path,
                data=made.data,
                prepared=prepared,
                model_factory=made.model_factory,
                objective=made.objective,
                optimizer=made.optimizer,
                schedule=made.schedule,
                seed=config["seed"],
                loggers=trackers,
                callbacks=made.callbacks,
                resume=resume,
            )
            if code == FINISHED and finish is not None and is_first:
                finish(folder, trust)
                publish(folder, trackers)
    except Preempted:  # before training, which would have saved a checkpoint
        code = PREEMPTED
        mark(folder, status="preempted", error=None)
    except (Exception, KeyboardInterrupt) as error:
        code = FAILED
        mark(folder, status="failed", error=f"{type(error).__name__}: {one_line(error)}")
        report(error, config["traceback"])
    finally:
        for tracker in trackers:
            close = getattr(tracker, "close", None)
            if close is not None:
                close(failed=code == FAILED)
    return code


def publish(folder: RunFolder, trackers: Sequence[Any]) -> None:
    """Show the trackers the run's pictures, where they have a place for them."""
    for tracker in trackers:
        if hasattr(tracker, "log_image"):
            for picture in sorted(folder.plots.glob("*.png")):
                tracker.log_image(picture.stem, picture)


def mark(folder: RunFolder, **values: Any) -> None:
    """Write how a run ended into its summary."""
    try:
        summary = json.loads(folder.summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        summary = {}
    write_whole(folder.summary, json.dumps(summary | values, indent=2) + "\n")
