"""`triform submit key=value ...|RUN`."""

import time

from triform.commands.parser import Parser
from triform.run.errors import BadInput
from triform.training.codes import FINISHED


def main(arguments: list[str]) -> int:
    """Give a run to SLURM, and say where it is."""
    made = Parser(
        prog="triform submit",
        description="Submit to SLURM what train.py would do with the same arguments, or go on with RUN there. All is "
        "checked and data is prepared here, so that no job waits in the queue for a mistake. hydra.launcher.hours=8 "
        "and the other keys of hydra/launcher=slurm say what is asked for. The same command again goes on with its "
        "run, unless that has ended or is in the queue.",
        allow_abbrev=False,
    )
    made.add_argument("words", nargs="*", metavar="key=value", help="what would be typed after train.py, or a run")
    made.add_argument("--dry-run", action="store_true", help="print the script; write and submit nothing")
    made.add_argument(
        "--prepare",
        action="store_true",
        help="make the run's folder and submit nothing: any scheduler then starts triform resume RUN on every rank",
    )
    made.add_argument("--config-dir", metavar="DIR", help="your own options, as for train.py")
    made.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="with RUN: a package of your own whose classes its config may name; may be given more than once",
    )
    if {"-m", "--multirun"} & set(arguments):
        raise BadInput("submit: for one run; a sweep submits its own jobs: python train.py -m ... hydra/launcher=slurm")
    options = made.parse_intermixed_args(arguments)
    runs = [word for word in options.words if "=" not in word and not word.startswith("~")]
    settings = [word for word in options.words if word not in runs]

    if len(runs) > 1 or (runs and any(not word.startswith("hydra.launcher.") for word in settings)):
        raise BadInput(
            f"{' '.join(options.words)}: give a run's folder, with hydra.launcher.KEY=VALUE at most, or overrides as "
            "for train.py; a run with changes is triform rerun's"
        )

    from triform.sweeps.submission import log_of, of_overrides, of_run, prepared, submit

    if runs:
        asked = of_run(runs[0], settings, options.trust)
    else:
        asked = of_overrides(settings + ([f"--config-dir={options.config_dir}"] if options.config_dir else []))
    if options.dry_run:
        unborn = asked.parent / time.strftime("%Y-%m-%d_%H-%M-%S_xxxx")
        print(asked.script(unborn if asked.folder is None else asked.folder.path), end="")
        return FINISHED
    if options.prepare:
        print(f"run: {prepared(asked).path}", flush=True)
        return FINISHED
    job, folder = submit(asked)
    goes_on = "" if asked.folder is None else ", goes on with its run"
    each = f"{asked.devices} {'GPU' if asked.device == 'cuda' else 'process'}{_s(asked.devices, asked.device)}"
    where = each if asked.nodes == 1 else f"{asked.nodes} machines with {each} each"
    print(f"job {job}{goes_on}: {where}, {asked.batch.hours:g} hours at a time")
    print(f"watch: squeue --jobs={job}; tail -F {log_of(folder)}")
    print(f"end:   scancel {job}, which saves a checkpoint; go on: triform submit {folder.path}")
    print(f"run: {folder.path}", flush=True)
    return FINISHED


def _s(count: int, device: str) -> str:
    """The end of a plural."""
    return "" if count == 1 else "s" if device == "cuda" else "es"
