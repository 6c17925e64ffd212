"""`triform rerun RUN key=value ...`."""

from triform.commands.parser import parser
from triform.commands.train import finish


def main(arguments: list[str]) -> int:
    """Start a run anew with its config, changed where asked for."""
    made = parser("rerun", "The same run again in a new folder; with key=value or group=option, that alone changed.")
    made.add_argument("overrides", nargs="*", metavar="key=value", help="what to change, as for train.py")
    options = made.parse_args(arguments)

    from triform.run.folder import resolve_run
    from triform.run.job import run
    from triform.run.rerun import changed

    config, typed = changed(resolve_run(options.run), options.overrides)
    return run({**config, "trust": [*options.trust]}, typed, finish)
