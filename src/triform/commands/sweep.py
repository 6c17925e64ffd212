"""`triform sweep status|resume|retry|extend|wandb FOLDER ...`."""

import argparse

from triform.commands.parser import Parser
from triform.run.errors import BadInput, nearest

ACTIONS = {
    "status": "show how far each run of a sweep is",
    "resume": "go on with what has not ended, from its checkpoints",
    "retry": "the same, and once more with what failed",
    "extend": "add values (seed=3,4) or, to a search, runs (--trials 20), and run them",
    "wandb": "write the same sweep as one of Weights & Biases",
}


def main(arguments: list[str]) -> int:
    """Look at a sweep, or go on with it."""
    made = Parser(
        prog="triform sweep",
        description="Many runs from one command: python train.py -m key=a,b begins a sweep. "
        + "; ".join(f"{name}: {what}" for name, what in ACTIONS.items())
        + ".",
        allow_abbrev=False,
    )
    made.add_argument("action", metavar="ACTION", help=", ".join(ACTIONS))
    made.add_argument("folder", metavar="FOLDER", help="the sweep's folder, or that of one of its runs")
    made.add_argument("values", nargs="*", metavar="key=a,b", help="extend: further values of keys that vary")
    made.add_argument("--trials", type=int, default=0, metavar="N", help="extend: runs to add to a search")
    made.add_argument("--jobs", default=None, metavar="N", help="runs at once, or auto (default: as before)")
    made.add_argument("--launcher", default=None, metavar="NAME", help="local or slurm (default: as before)")
    made.add_argument("--out", default=None, metavar="FILE", help="wandb: where to write it (default: standard output)")
    made.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="a package of your own whose classes the runs' configs may name; may be given more than once",
    )
    options = made.parse_intermixed_args(arguments)
    if options.action not in ACTIONS:
        raise BadInput(f"{options.action}: no such action{nearest(options.action, ACTIONS)}; use {', '.join(ACTIONS)}")
    if options.values and options.action not in ("extend", "wandb"):
        raise BadInput(f"{options.values[0]}: only extend takes values; triform sweep --help shows how it is used")
    if options.action == "extend" and not options.values and options.trials < 1:
        raise BadInput("extend: nothing to add; give further values of a key, as seed=3,4, or --trials N")
    if options.action == "wandb":
        return _wandb(options)

    from triform.sweeps.manifest import find

    folder = find(options.folder)
    if options.action == "status":
        from triform.sweeps.view import status

        status(folder)
        return 0

    from triform.sweeps.run import go_on, settings_of

    return go_on(
        folder,
        options.trust,
        retry=options.action == "retry",
        launcher=settings_of(options.launcher, options.jobs),
        widen=options.values,
        trials=options.trials,
    )


def _wandb(options: argparse.Namespace) -> int:
    from pathlib import Path

    from triform.sweeps.wandb import definition

    text = definition(options.folder, options.values)
    if options.out is None:
        print(text, end="")
    else:
        Path(options.out).write_text(text, encoding="utf-8")
        print(f"start it with: wandb sweep {options.out}")
    return 0
