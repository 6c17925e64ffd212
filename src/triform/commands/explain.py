"""`triform explain KEY [key=value ...] [-m]`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from triform.commands.parser import Parser, config_folders

if TYPE_CHECKING:
    from triform.run.explain import Explanation

SHOWN = 4
"""Runs that are named of those in which a key has one value."""


def main(arguments: list[str]) -> int:
    """Print a key's value, which file or override set it, and what else it may be."""
    made = Parser(
        prog="triform explain",
        description="Where the value of a key is from, and what it may be. The last place named is the one that holds.",
        allow_abbrev=False,
    )
    made.add_argument("key", metavar="KEY", help="such as optimizer.lr, or a group: model/attention")
    made.add_argument("overrides", nargs="*", metavar="key=value", help="what would be typed after train.py")
    made.add_argument("-m", "--multirun", action="store_true", help="in every run of a sweep, as for train.py")
    made.add_argument("--config-dir", metavar="DIR", help="your own options, as for train.py")
    options = made.parse_intermixed_args(arguments)

    from triform.run.errors import BadInput, one_line
    from triform.run.explain import explain_key
    from triform.run.jobs import jobs
    from triform.sweeps.ahead import branches, explain_searched

    folders = config_folders(options.config_dir)
    searched = explain_searched(options.key, options.overrides, folders) if options.multirun else []
    for explanation, _ in searched:
        print("\n".join(_lines(explanation)))
    if searched:
        return 0
    runs = branches(options.overrides, folders) if options.multirun else jobs(options.overrides, False)
    found: list[tuple["Explanation", list[str]]] = []
    for run in runs:
        try:
            explanation = explain_key(options.key, run.overrides, folders)
        except ValueError as error:
            raise BadInput(f"{one_line(error)} (in the run with {run.varied})" if run.varied else str(error)) from error
        same = next((varied for other, varied in found if other == explanation), None)
        if same is None:
            found.append((explanation, [run.varied]))
        else:
            same.append(run.varied)
    for explanation, varied in found:
        print("\n".join(_lines(explanation)))
        if len(runs) > 1:
            more = f" and {len(varied) - SHOWN} more" if len(varied) > SHOWN else ""
            print(f"  in {len(varied)} of {len(runs)} runs: {'; '.join(varied[:SHOWN])}{more}")
    return 0


def _lines(found: "Explanation") -> Iterator[str]:
    yield f"{found.key}={found.value}"
    wide = max((len(source.place) for source in found.sources), default=0)
    long = max((len(source.text) for source in found.sources), default=0)
    for source in found.sources:
        yield f"  {source.place:<{wide}}  {source.text:<{long}}  {source.comment}".rstrip()
    if found.choices is not None:
        yield f"  choices: {found.choices}"
