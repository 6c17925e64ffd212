"""`triform verify NAME`."""

from triform.commands.parser import Parser, config_folders
from triform.training.codes import FAILED, FINISHED


def main(arguments: list[str]) -> int:
    """Run a recipe's short form, and say whether its curve lies where it is recorded to; 0: it does, 1: it does not."""
    made = Parser(
        prog="triform verify",
        description="Run a recipe's short form again (a minute or two) and compare its losses with those recorded. "
        "Exit code 0: as recorded; 1: not, and what differs of versions, threads, processor, data and config is said.",
        allow_abbrev=False,
    )
    made.add_argument("name", nargs="?", metavar="NAME", help="a recipe of conf/experiment; none: list those recorded")
    made.add_argument(
        "overrides", nargs="*", metavar="key=value", help="as for train.py: files of the data (data.train_files=FILE)"
    )
    made.add_argument(
        "--record",
        type=int,
        metavar="N",
        help="write the record anew: run N seeds, from the recipe's own on, of the short form that key=value make of "
        "it (none: as it was)",
    )
    made.add_argument("--config-dir", metavar="DIR", help="your own recipes, as for train.py")
    options = made.parse_intermixed_args([word for word in arguments if not word.startswith("traceback=")])

    from triform.analysis.bands import LEAST_SEEDS, LEVEL
    from triform.analysis.verify import record, recorded, verify
    from triform.run.errors import BadInput

    if options.name is None:
        print("\n".join(recorded()))
        return FINISHED
    if options.record is not None and options.record < LEAST_SEEDS:
        raise BadInput(
            f"--record {options.record}: a band of {LEVEL:.0%} is made of {LEAST_SEEDS} seeds or more; give at least "
            f"{LEAST_SEEDS}, such as 5"
        )
    folders = config_folders(options.config_dir)
    if options.record is None:
        found = verify(options.name, options.overrides, folders)
    else:
        found = record(options.name, options.overrides, folders, options.record)
    if found.code != FINISHED:
        return found.code
    for line in found.lines:
        print(line)
    return FINISHED if found.good else FAILED
