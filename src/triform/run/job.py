"""The one runner, for single runs, jobs of a sweep and resumed runs."""

import dataclasses
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from triform.run.again import continued, keep
from triform.run.check import check, check_keys, devices
from triform.run.errors import BadInput, one_line, place, report
from triform.run.folder import Finish, RunFolder, check_inside, create, write_whole
from triform.run.garbage import look_again
from triform.run.log import recorded
from triform.run.match import matched, said
from triform.run.ranks import Rendezvous, is_one_of_several, launch, leave_slurm
from triform.run.relations import check_reach
from triform.run.secrets import check_typed
from triform.run.values import WHOLE
from triform.training.codes import BAD_INPUT, FAILED, FINISHED, PREEMPTED
from triform.training.stop import Preempted, stop

if TYPE_CHECKING:
    from triform.data.prepare import Origin, Prepared

log = logging.getLogger(__name__)

STOPPED = "stopped"
"""What the first rank tells the others in place of a folder when it has been asked to stop."""

PARTNER_SECONDS = 10.0
"""Time in which a rank that has lost another one hears that this one was asked to stop."""


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
    check_keys(config)
    config = settled(config)
    check_reach(config, overrides)
    if not is_one_of_several():
        check_machines(config)
        config = matched(config, overrides)
        prepared = checked(config)
        return start(created(config, overrides, prepared, folder), config, prepared, False, finish)
    meeting = Rendezvous()
    config["trainer"] |= {"devices": meeting.devices, "num_nodes": meeting.nodes}

    def make() -> tuple[RunFolder, "Prepared"]:
        from triform.training.hardware import check_granted, device_type

        typed = {key: value for key, _, value in (word.lstrip("+").partition("=") for word in overrides)}
        asked: dict[str, str] = {key: typed[key] for key in ("trainer.devices", "trainer.num_nodes") if key in typed}
        device = device_type(config["trainer"]["accelerator"])
        check_granted(asked, meeting.devices, meeting.nodes, device, os.environ)
        own = matched(config, overrides)
        prepared = checked(own)
        return created(own, overrides, prepared, folder), prepared

    return start_launched(meeting, make, False, finish, config)


def check_machines(config: Mapping[str, Any]) -> None:
    """Refuse several machines where nobody has started their ranks.

    Raises:
        BadInput: with who can start them.
    """
    if config["trainer"]["num_nodes"] != 1:
        raise BadInput(
            f"trainer.num_nodes={config['trainer']['num_nodes']}: several machines are started by torchrun or srun, "
            "which then say how many there are; start train.py with one of them or set trainer.num_nodes=1"
        )


def resume(
    folder: RunFolder, trust: Sequence[str] = (), finish: Finish | None = None, overrides: Sequence[str] = ()
) -> int:
    """Go on with a run from its newest checkpoint, and return the exit code.

    On as many ranks as before it ends as if it never had stopped; on other ones, each remaining example is read once
    and the loss is the same to rounding, but for dropout, which is drawn anew.

    Args:
        trust: packages besides triform's own that its config may name.
        overrides: keys of `trainer` in `triform.run.again.CHANGEABLE`; the run's folder keeps them.

    Raises:
        ValueError: the config no longer passes the checks, or the data has changed.
    """
    from triform.run.parts import read_origin

    config = {**continued(folder.read_config(), overrides), "trust": list(trust)}
    check_keys(config)
    if not is_one_of_several():
        check_machines(config)
        return start(folder, config, checked(config, (folder, read_origin(folder))), True, finish)
    meeting = Rendezvous()
    config["trainer"] |= {"devices": meeting.devices, "num_nodes": meeting.nodes}

    def find() -> tuple[RunFolder, "Prepared"]:
        return folder, checked(config, (folder, read_origin(folder)))

    return start_launched(meeting, find, True, finish, config)


def created(
    config: Mapping[str, Any], overrides: Sequence[str], prepared: "Prepared", path: Path | None = None
) -> RunFolder:
    """The run's folder, with all that is known before training."""
    check_typed(list(overrides))
    with stop.held():  # no half folder
        return _made(config, overrides, prepared, path)


def _made(config: Mapping[str, Any], overrides: Sequence[str], prepared: "Prepared", path: Path | None) -> RunFolder:
    from triform.training.environment import environment

    if path is None:
        outputs = Path(config["paths"]["outputs"])
        check_inside(outputs / config["name"], outputs)
        folder = create(outputs / config["name"], config, overrides)
    else:
        folder = create(path.parent, config, overrides, path.name)
    write_whole(folder.environment, json.dumps(environment(config["seed"]), indent=2) + "\n")
    result = config["match"].get("result")
    if result is not None:
        write_whole(folder.summary, json.dumps({"match": result}, indent=2) + "\n")
        print(f"match: {said(config)}", file=sys.stderr)
    assert prepared.origin is not None
    write_whole(folder.data, json.dumps(dataclasses.asdict(prepared.origin), indent=2) + "\n")
    prepared.tokenizer.save(folder.tokenizer)
    if prepared.labels is not None:
        write_whole(folder.labels, json.dumps(prepared.labels, ensure_ascii=False) + "\n")
    return folder


def settled(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with absolute paths, so that it means the same from any folder, and whole numbers as such."""
    config = {key: dict(value) if isinstance(value, Mapping) else value for key, value in config.items()}
    paths: Any = config.get("paths")
    for name, path in paths.items() if isinstance(paths, dict) else ():
        if isinstance(path, str) and path:
            paths[name] = os.path.abspath(os.path.expanduser(path))
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
    trainer = config.get("trainer", {})
    if data.get("streaming") is True and any(trainer.get(key) for key in ("max_steps", "max_tokens", "max_hours")):
        trainer["max_epochs"] = None  # likewise: of a stream it is not known when they end
    if isinstance(data.get("sources"), Mapping):  # of a mixture
        data["sources"] = {name: dict(source) for name, source in data["sources"].items()}
    for source in (data, *data.get("sources", {}).values()):
        _name_files(source)
    return config


def _name_files(data: dict[str, Any]) -> None:
    """Absolute paths for the files of a source."""
    for name in ("train_files", "validation_files", "test_files"):
        if data.get(name) is not None:
            files = data[name]
            data[name] = [_absolute(file) for file in files] if isinstance(files, list) else _absolute(files)
    if isinstance(data.get("path"), str) and os.path.isdir(os.path.expanduser(data["path"])):  # else a name on the hub
        data["path"] = _absolute(data["path"])


def _absolute(file: Any) -> Any:
    return os.path.abspath(os.path.expanduser(file)) if isinstance(file, str) and "://" not in file else file


def checked(config: Mapping[str, Any], kept: "tuple[RunFolder, Origin] | None" = None) -> "Prepared":
    """Check a config, prepare its data, check what only then is known, and build the model once without memory.

    Args:
        kept: of a run that goes on, its folder and what its data was made from, which must be as it was.

    Raises:
        ValueError: bad input.
    """
    check(config)

    import torch

    from triform.layers.block import Block
    from triform.layers.recompute import recompute
    from triform.run.parts import check_same, data, model_factory, origin, parts
    from triform.training.averages import check_averages
    from triform.training.strategies import check_sharding

    if kept is not None:
        check_same(*kept, origin(config))
    with torch.device("meta"):
        model_factory(config, 1)()  # a wrong size is refused before minutes of tokenising
    prepared = data(config, progress=sys.stderr.isatty())
    made = parts(config, prepared)
    with torch.device("meta"):
        model = made.model_factory()
    if kept is None and config["model"].get("path") is not None:
        from triform.run.initial import check_tokenizer, fill

        check_tokenizer(config["model"]["path"], prepared.tokenizer)
        fill(model, config["model"]["path"], config["trust"], say=False)
    try:
        optimizer = made.optimizer(model)
        made.schedule(0, 1)
    except (TypeError, ValueError) as error:
        raise BadInput(f"optimizer, scheduler: {one_line(error)}; see python train.py --help optimizer") from error
    check_averages(made.callbacks, optimizer)
    recompute(
        [module for module in model.modules() if isinstance(module, Block)], made.settings.activation_checkpointing
    )
    check_sharding(made.settings.strategy, made.settings.tensor_parallel, model, optimizer)
    return prepared


def start(
    folder: RunFolder, config: Mapping[str, Any], prepared: "Prepared", resume: bool, finish: Finish | None
) -> int:
    """Start the run's ranks, in this process when there is one, and return the exit code."""
    _, count = devices(config)
    with training(folder):
        if resume:
            keep(folder, config)
        if count == 1:
            return rank_main(folder, resume, prepared, finish, config["trust"])
        killed: dict[int, str] = {}
        try:
            stop.check()
            code = launch(count, rank_main, (folder, resume, None, finish, config["trust"]), killed.setdefault)
        except Preempted:
            code = PREEMPTED
        if killed:
            rank, name = next(iter(killed.items()))
            fail(folder, rank, f"rank {rank} was ended by {name}", first=True)
        if code == PREEMPTED:
            preempt(folder)
        return code


def start_launched(
    meeting: Rendezvous,
    make: Callable[[], tuple[RunFolder, "Prepared"]],
    resume: bool,
    finish: Finish | None,
    config: Mapping[str, Any],
) -> int:
    """One rank's part of a run whose ranks torchrun or srun has started, and its exit code.

    Args:
        make: called on the first rank, gives the run's folder and data; the others wait for it.
    """
    if meeting.rank != 0:
        told = meeting.told()
        if told in ("", STOPPED):
            return PREEMPTED if told else BAD_INPUT
        return rank_main(RunFolder(Path(told)), resume, None, finish, config["trust"])
    with ExitStack() as stack:
        try:
            folder, prepared = make()
            stack.enter_context(training(folder))
            if resume:
                keep(folder, config)
        except Preempted:
            meeting.tell(STOPPED)
            raise
        except BaseException:
            meeting.tell("")
            raise
        meeting.tell(str(folder.path))
        return rank_main(folder, resume, prepared, finish, config["trust"])


@contextmanager
def training(folder: RunFolder, wait: float = 0.0) -> Iterator[None]:
    """While a run trains: no other process may train it, no failure is known; at last, its folder is printed.

    Args:
        wait: seconds that another process gets to end.

    Raises:
        BadInput: another process trains it.
    """
    lock = FileLock(folder.lock)
    try:
        lock.acquire(timeout=wait)
    except Timeout as error:
        raise BadInput(f"{folder.path}: another process is training this run; wait for it or end it") from error
    try:
        folder.failure.unlink(missing_ok=True)
        shutil.rmtree(folder.dossier, ignore_errors=True)
        yield
    finally:
        lock.release()
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
    from triform.run.parts import loggers, own_data, parts
    from triform.training.fit import fit
    from triform.training.hardware import device_type, rank
    from triform.training.memory import keep_memory
    from triform.training.saving import no_room

    leave_slurm()
    config = {**folder.read_config(), "trust": list(trust)}
    trackers: list[Any] = []
    code = FAILED
    try:
        with stop.listening(), recorded(folder.log(rank())):
            stop.last_words = lambda: preempt(folder)
            stop.check()
            if device_type(config["trainer"]["accelerator"]) == "cpu":
                keep_memory()
            trackers = loggers(config, folder)
            prepared = own_data(folder, config) if prepared is None else prepared
            made = parts(config, prepared)
            look_again()
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
                fill=made.fill,
                resume=resume,
            )
            if code == FINISHED and finish is not None and rank() == 0 and finished(folder):
                conclude(folder, trust, finish, trackers)
    except Preempted:  # before training, which would have saved a checkpoint
        code = PREEMPTED
        preempt(folder)
        if rank() == 0:
            print(f"stopped outside training; go on with: triform resume {folder.path}", file=sys.stderr, flush=True)
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        code = PREEMPTED if lost_by_stop(error) else FAILED
        if code == FAILED:
            where = place(error)
            error = no_room(error, folder.path) or error
            with suppress(OSError):  # a full disk has no room for this either
                fail(folder, rank(), f"{type(error).__name__}: {one_line(error)}", where=where)
            if rank() == 0 or not getattr(error, "agreed", False):
                report(error, config["traceback"])
    finally:
        for tracker in trackers:
            close = getattr(tracker, "close", None)
            if close is not None:
                with suppress(Preempted):
                    close(failed=code == FAILED)
    return code


def lost_by_stop(error: BaseException) -> bool:
    """Whether a rank has failed because another one, asked to stop, left it alone; then it is asked to stop as well."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not isinstance(error, RuntimeError):
        return False
    lost = re.search(r"connection closed|connection reset|broken pipe|gloo|nccl|(?<!re)store", str(error).lower())
    return lost is not None and stop.wait(PARTNER_SECONDS)


def conclude(folder: RunFolder, trust: Sequence[str], finish: Finish, trackers: Sequence[Any]) -> None:
    """Do what remains when a run has finished. It has, whatever happens here."""
    try:
        finish(folder, trust)
        publish(folder, trackers)
    except (Exception, KeyboardInterrupt, Preempted) as error:
        log.warning("the report of the finished run failed", exc_info=True)
        reason = f"{type(error).__name__}: {one_line(error)}"
        print(f"warning: the run has finished, its report has not ({reason})", file=sys.stderr, flush=True)


def publish(folder: RunFolder, trackers: Sequence[Any]) -> None:
    """Show the trackers the run's pictures, where they have a place for them."""
    for tracker in trackers:
        if hasattr(tracker, "log_image"):
            for picture in sorted(folder.plots.glob("*.png")):
                tracker.log_image(picture.stem, picture)


def finished(folder: RunFolder) -> bool:
    """Whether a run that has ended well did all its steps, and was not pruned."""
    return folder.read_summary().get("status") == "finished"


def fail(folder: RunFolder, rank: int, error: str, first: bool = False, where: str | None = None) -> None:
    """Mark a run failed by its first error: what the other ranks say after it, such as of a lost partner, follows.

    Args:
        first: the error was before any that is known.
        where: file and line that it comes from.
    """
    found = json.dumps({"error": error, "rank": rank} | ({"where": where} if where is not None else {}))
    try:
        with folder.failure.open("w" if first else "x", encoding="utf-8") as file:
            file.write(found)
    except FileExistsError:
        found = folder.failure.read_text(encoding="utf-8") or found
    mark(folder, status="failed", **json.loads(found))


def preempt(folder: RunFolder) -> None:
    """Mark a run preempted that was ended too early to say so itself."""
    if folder.config.exists() and folder.read_summary().get("status") not in ("finished", "failed", "pruned"):
        mark(folder, status="preempted", error=None)


def mark(folder: RunFolder, **values: Any) -> None:
    """Write how a run ended into its summary."""
    write_whole(folder.summary, json.dumps(folder.read_summary() | values, indent=2) + "\n")
