"""What the commands over a run have in common."""

import argparse
from pathlib import Path
from typing import NoReturn

from triform.run.errors import BadInput


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line, like any other bad input."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{self.prog}: {message}; {self.prog} --help shows how it is used")


def parser(command: str, description: str) -> Parser:
    """A parser of `triform COMMAND RUN`."""
    made = Parser(prog=f"triform {command}", description=description, allow_abbrev=False)
    made.add_argument("run", metavar="RUN", help="the run's folder, or one of its checkpoints")
    made.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="a package of your own whose classes the run's config may name; may be given more than once",
    )
    return made


def config_folders(config_dir: str | None) -> list[Path]:
    """The folder that `--config-dir` names, if any.

    Raises:
        BadInput: there is none.
    """
    if not config_dir:
        return []
    if not Path(config_dir).is_dir():
        raise BadInput(f"--config-dir {config_dir}: there is no such folder; name the one that your options are in")
    return [Path(config_dir)]
