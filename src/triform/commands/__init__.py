"""The `triform` program: one file per command."""

import atexit
import gc
import sys
from contextlib import nullcontext
from importlib import import_module

from triform.run.errors import BadInput, nearest, report
from triform.run.releases import check_releases
from triform.training.codes import FAILED, FINISHED, PREEMPTED
from triform.training.stop import Preempted, stop

COMMANDS = {
    "train": "train a model; the same as python train.py",
    "resume": "go on with a run that was stopped",
    "rerun": "the same run again, with a change",
    "replay": "the step once more in which a run failed",
    "submit": "give a run to a cluster under SLURM",
    "sweep": "how far a sweep is, go on with it, retry what failed, add to it",
    "verify": "does a recipe still do what it did? its short form against recorded curves",
    "evaluate": "measure a trained model on a split of its data",
    "generate": "let a trained model write",
    "attention": "where a model looks, as pictures and a page",
    "chat": "talk with a model that has learnt conversations",
    "translate": "the target of each line of standard input",
    "classify": "the class of each line of standard input",
    "export": "write a trained model as transformers reads it",
    "compare": "several runs or a sweep: table, curves, one page",
    "inspect": "the modules of a model, its size, and what training it takes",
    "plan": "what a run or a whole sweep will be and take, before it begins",
    "explain": "where a key's value is from, and what else there is",
    "help": "this page; the keys of a group: triform help trainer",
}

RUNS = ("train", "resume", "rerun", "replay", "verify")
"""Commands that signals ask to stop, from their first import on."""


def main(arguments: list[str] | None = None) -> int:
    """Do what the command line says and return the exit code."""
    atexit.register(gc.freeze)  # a process that ends would look for garbage first, for a second of torch's objects
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    name, rest = (arguments[0], arguments[1:]) if arguments else ("help", [])
    if name in ("-h", "--help", "help"):
        return _help(rest)
    if name not in COMMANDS:
        hint = nearest(name, COMMANDS)
        return report(BadInput(f"{name}: no such command{hint}; there are {', '.join(COMMANDS)}"))
    try:
        with stop.listening() if name in RUNS else nullcontext():
            check_releases()
            return int(import_module(f"triform.commands.{name}").main(rest))
    except Preempted:
        print("stopped before the run began", file=sys.stderr, flush=True)
        return PREEMPTED
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        return FAILED
    except Exception as error:
        return report(error, traceback="traceback=true" in arguments)


def _help(topics: list[str]) -> int:
    if topics:
        from triform.run.cli import show_help

        return show_help(topics)
    print("Train Transformers of three forms from one set of parts, and use them.\n")
    for name, what in COMMANDS.items():
        print(f"  triform {name:<9} {what}")
    print("\n`triform COMMAND --help` says more.")
    print("RUN is the folder that a run prints as its last line, or a checkpoint in it.")
    return FINISHED
