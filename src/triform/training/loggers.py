"""Experiment trackers that never block a run, ask it anything or end it.

Both factories return at once. A thread starts the tracker while data and model are made ready, and
passes on what is logged, so that neither a slow import nor a dead network costs a training step.
"""

import os
import queue
import secrets
import string
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from triform.training.hardware import rank

REACH_SECONDS = 3  # for the server to know us
INIT_SECONDS = 20.0  # for the server to open a run; after that the run is recorded offline
FINISH_SECONDS = 20.0  # for the rest of the upload when the run is over
WANDB_MODES = ("auto", "online", "offline", "disabled")


def wandb_logger(
    project: str,
    entity: str | None,
    group: str | None,
    tags: list[str],
    mode: str,
    folder: Path,
    config: Mapping[str, Any],
    name: str | None = None,
    id: str | None = None,
) -> "Background":
    """Record a run with Weights & Biases, online where that is possible without asking.

    Args:
        mode: `auto`: the environment variable WANDB_MODE where set, else online when this machine
            is logged in and the server answers within seconds, else offline; `online`: as auto, but
            whatever WANDB_MODE says; `offline`: never use the network; `disabled`: record nothing.
        group: of W&B; None: the sweep that the run belongs to, if any.
        folder: the run folder; everything lands in `folder/wandb`, the id in `folder/wandb_id`.
        config: the resolved configuration, without secrets.
        name: of the W&B run; None: the last two parts of the folder's path.
        id: of the W&B run; None: the one in `folder/wandb_id`, so that a resumed run continues the
            same W&B run, or a new one.

    Raises:
        ValueError: `mode` is none of the four.
    """
    if mode not in WANDB_MODES:
        raise ValueError(
            f"wandb_logger: mode={mode!r} is not known; set logger.mode to one of {', '.join(WANDB_MODES)}"
        )
    about = {
        "project": project,
        "entity": entity,
        "group": group if group is not None else sweep_of(folder),
        "tags": tags,
        "name": name or "/".join(folder.absolute().parts[-2:]),
        "config": dict(config),
    }

    def start() -> tuple[Logger, str | None]:
        return _start_wandb(about | {"id": id or wandb_id(folder)}, mode, folder)

    return Background("wandb", start)


def sweep_of(folder: Path) -> str | None:
    """Name of the sweep that a run folder belongs to; None: it is in none."""
    return folder.absolute().parent.name if (folder.parent / "manifest.json").is_file() else None


def wandb_id(folder: Path) -> str:
    """The id in `folder/wandb_id`, which is written on the first call."""
    file = folder / "wandb_id"
    if not file.exists() or not file.read_text().strip():  # a kill may leave an empty one
        alphabet = string.ascii_lowercase + string.digits
        file.write_text("".join(secrets.choice(alphabet) for _ in range(8)) + "\n")
    return file.read_text().strip()


def tensorboard_logger(folder: Path, config: Mapping[str, Any]) -> "Background":
    """Write events for TensorBoard to `folder/tensorboard`; needs `pip install triform[tensorboard]`.

    `config` is taken as every logger is given it, and not recorded: the run folder has it.
    """

    def start() -> tuple[Logger, str | None]:
        logger = TensorBoardLogger(save_dir=folder, name="", version="tensorboard")
        logger.experiment  # noqa: B018  the property opens the file; a failure belongs to the start
        return logger, None

    return Background("tensorboard", start)


class Background(Logger):
    """Passes every call to a logger that lives in a thread of its own.

    Calls made before that logger has started wait in a queue. If it fails, at its start or later,
    one warning line says so and the rest of what is logged is dropped. Ranks other than the first
    record nothing.

    Args:
        name: of the tracker, for messages.
        start: builds the logger, in the thread; also gives the line to print when the run is over.
    """

    def __init__(self, name: str, start: Callable[[], tuple[Logger, str | None]]) -> None:
        super().__init__()
        self._name = name
        self._start = start
        self._calls: queue.Queue[Callable[[Logger], None] | None] = queue.Queue()
        self._advice: str | None = None
        self._thread: threading.Thread | None = None
        if rank() == 0:
            self._thread = threading.Thread(target=self._work, name=f"{name} logger", daemon=True)
            self._thread.start()

    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> str:
        return ""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self._call(lambda logger: logger.log_metrics(metrics, step))

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        self._call(lambda logger: logger.log_hyperparams(params))

    def log_image(self, key: str, path: Path) -> None:
        """Add the picture in `path` where the tracker shows pictures; elsewhere do nothing."""

        def call(logger: Logger) -> None:
            if isinstance(logger, WandbLogger):
                logger.log_image(key, [str(path)])

        self._call(call)

    def log_table(self, key: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table where the tracker shows tables; elsewhere do nothing."""

        def call(logger: Logger) -> None:
            if isinstance(logger, WandbLogger):
                logger.log_table(key, columns=list(headings), data=[list(row) for row in rows])

        self._call(call)

    def log_summary(self, values: Mapping[str, Any]) -> None:
        """Set the run's final figures where the tracker has a place for them."""

        def call(logger: Logger) -> None:
            if isinstance(logger, WandbLogger):
                logger.experiment.summary.update(dict(values))

        self._call(call)

    def close(self, failed: bool = False) -> None:
        """Finish the record, waiting a bounded time for it; then say how to upload it, if it is offline."""
        if self._thread is None:
            return

        def call(logger: Logger) -> None:
            logger.finalize("failed" if failed else "success")
            if isinstance(logger, WandbLogger):
                logger.experiment.finish(exit_code=int(failed))

        self._call(call)
        self._calls.put(None)
        self._thread.join(INIT_SECONDS + FINISH_SECONDS)
        if self._thread.is_alive():
            _say(f"warning: {self._name} did not finish in time; what it has not sent stays in the run folder")
        elif self._advice is not None:
            _say(self._advice)
        self._thread = None

    def _call(self, call: Callable[[Logger], None]) -> None:
        if self._thread is not None and self._thread.is_alive():  # a failed one would only fill memory
            self._calls.put(call)

    def _work(self) -> None:
        try:
            logger, self._advice = self._start()
            while (call := self._calls.get()) is not None:
                call(logger)
        except Exception as error:  # whatever a tracker does, the run goes on
            reason = _one_line(error)
            _say(f"warning: {self._name} stopped recording ({reason}); the run folder has the full record")


def _start_wandb(about: dict[str, Any], mode: str, folder: Path) -> tuple[Logger, str | None]:
    import wandb  # half a second, spent in the thread

    settings = wandb.Settings(
        silent=True,
        console="off",  # the run folder has the log; wrapping stdout from a thread would disturb rich
        init_timeout=INIT_SECONDS,
        finish_timeout=FINISH_SECONDS,
        # names of machine and user, command line and remotes stay here; environment.json has what explains a result
        host="",
        disable_git=True,
        x_disable_meta=True,
    )

    def init(mode: str) -> Any:
        return wandb.init(
            **about,
            mode=mode,  # type: ignore[arg-type]
            dir=folder,
            resume="allow",
            settings=settings,
            reinit="create_new",  # another run of this process, as in a notebook, is left alone
        )

    if mode == "auto":
        mode = os.environ.get("WANDB_MODE", "online")
    offline_because = "as asked"
    with _inside(folder / "wandb"):
        if mode == "online":
            try:
                wandb.setup(settings=wandb.Settings(silent=True, mode="online"))
                if wandb.login(prompt=False, verify=True):
                    return _with_steps(init("online")), None
                offline_because = "not logged in"
            except wandb.errors.AuthenticationError:
                offline_because = "the server did not accept the login in time"
            except Exception as error:  # such as an unknown entity
                offline_because = _one_line(error)
                wandb.teardown()  # its service would go on holding the id
        if mode == "disabled":
            return WandbLogger(experiment=init("disabled")), None
        logger = _with_steps(init("offline"))
    where = os.path.relpath(folder / "wandb")
    return (
        logger,
        f"wandb: recorded offline ({offline_because}); upload with: wandb sync {where}/offline-run-*",
    )


def _with_steps(run: Any) -> Logger:
    run.define_metric("trainer/global_step")
    run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    return WandbLogger(experiment=run)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Keep W&B's caches and service logs in `folder`, not in a home that may be read-only; wait briefly."""
    variables = {
        "WANDB_CACHE_DIR": str(folder / "cache"),
        "WANDB_DATA_DIR": str(folder / "data"),
        "WANDB_HTTP_TIMEOUT": str(REACH_SECONDS),
    }
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
