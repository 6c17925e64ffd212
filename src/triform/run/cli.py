"""`python train.py ARGUMENTS`: Hydra reads the arguments, the runner does the rest."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from triform.run.errors import BadInput, report
from triform.run.folder import Finish
from triform.run.releases import check_releases
from triform.training.codes import FINISHED, PREEMPTED
from triform.training.stop import Preempted, stop

_NOT_OURS = ("hydra.run.dir", "hydra.output_subdir", "hydra.job.chdir")


def main(arguments: Sequence[str] | None = None, finish: Finish | None = None) -> int:
    """Run what `arguments` (default: this process's own) say and return the exit code.

    Args:
        finish: called with the folder of a run that has finished.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not {"-h", "--help"}.isdisjoint(arguments):
        return show_help(arguments)
    traceback = any(argument.lstrip("+").lower() == "traceback=true" for argument in arguments)
    return stoppable(lambda: _hydra(arguments, finish), traceback)


def stoppable(work: Callable[[], int], traceback: bool = False) -> int:
    """The exit code of `work`, or what an error or a signal before the run has begun means."""
    try:
        with stop.listening():
            check_releases()
            return work()
    except Preempted:
        print("stopped before the run began", file=sys.stderr, flush=True)
        return PREEMPTED
    except Exception as error:
        return report(error, traceback)


def show_help(arguments: Sequence[str]) -> int:
    """Print the help page, or that of the group named beside `--help`."""
    from triform.run.help import page

    topics = [argument for argument in arguments if not argument.startswith("-")]
    try:
        print(page(topics[0] if topics else None), flush=True)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ValueError as error:
        return report(error)
    return FINISHED


def parsed(arguments: Sequence[str]) -> Namespace:
    """The command line as Hydra reads it: its flags, and `overrides`.

    Raises:
        BadInput: a flag that Hydra does not know, or a key that would take a run's files elsewhere.
    """
    from hydra._internal.utils import get_args_parser

    def complain(message: str) -> NoReturn:
        raise BadInput(f"{message}; python train.py --help shows what there is")

    parser = get_args_parser()
    parser.error = complain  # type: ignore[method-assign]
    found = parser.parse_intermixed_args(list(arguments))
    for override in found.overrides:
        key = override.partition("=")[0].lstrip("+")
        if key in _NOT_OURS or key.startswith("hydra.sweep."):
            raise BadInput(f"{override}: a run has one folder, in paths.outputs; set paths.outputs or name instead")
    return found


def typed(arguments: Sequence[str]) -> list[str]:
    """The command line as a record that can be repeated from any folder: overrides, and where else configs are."""
    found = parsed(arguments)
    record = list(found.overrides)
    if found.config_dir is not None:
        record.append(f"--config-dir={os.path.abspath(found.config_dir)}")
    if found.config_name is not None:
        record.append(f"--config-name={found.config_name}")
    return record


def flags(arguments: Sequence[str]) -> list[str]:
    """The arguments that are not overrides, in their order."""
    overrides = iter(parsed(arguments).overrides)
    following = next(overrides, None)
    found = []
    for argument in arguments:
        if argument == following:
            following = next(overrides, None)
        else:
            found.append(argument)
    return found


def config_folders(arguments: Sequence[str]) -> list[Path]:
    """Folders given by `--config-dir` (`-cd`)."""
    folder = parsed(arguments).config_dir
    return [] if folder is None else [Path(folder)]


def _hydra(arguments: Sequence[str], finish: Finish | None) -> int:
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    from triform.run.compose import VERSION_BASE, plain
    from triform.run.help import conf_dir
    from triform.run.recipe import CONFIG_NAME, with_recipe
    from triform.run.refusal import explain

    folders = config_folders(arguments)
    code = FINISHED
    failure: Exception | None = None

    def task(config: DictConfig) -> None:
        nonlocal code, failure
        try:
            from triform.run.job import run

            if HydraConfig.get().sweeper.get("space"):
                raise BadInput(
                    f"search={HydraConfig.get().runtime.choices.get('search')}: one run searches nothing; add -m"
                )
            if (config.get("compare") or {}).get("tune") is not None:
                raise BadInput(f"compare.tune={config.compare.tune}: one run compares nothing; add -m")
            result = run(plain(config, HydraConfig.get()), typed(arguments), finish)
            code = code or result  # hydra/sweeper=basic calls this for each of its jobs
        except SystemExit as stop:  # somebody else's: a run returns its code
            left = RuntimeError(f"the run was left by sys.exit({'' if stop.code is None else repr(stop.code)})")
            left.__cause__ = stop
            failure = failure or left
        except Exception as error:  # Hydra would wrap it; it is reported below as it is
            failure = failure or error

    words = with_recipe(parsed(arguments).overrides, folders)
    argv, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [argv[0], *flags(arguments), *words]  # Hydra wants them apart
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise instead of printing a traceback and exiting
    try:
        hydra.main(version_base=VERSION_BASE, config_path=str(conf_dir()), config_name=CONFIG_NAME)(task)()
    except SystemExit as stop:  # argparse, which has said why, or one of Hydra's pages
        return stop.code if isinstance(stop.code, int) else FINISHED
    except Exception as error:
        raise explain(error, words, folders) from error
    finally:
        sys.argv = argv
        if full is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full
    if failure is not None:
        raise failure
    return code
