"""`triform plan key=value ... [-m]`."""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from triform.commands.parser import Parser, config_folders
from triform.run.errors import BadInput, one_line
from triform.training.codes import BAD_INPUT, FINISHED

if TYPE_CHECKING:
    from triform.analysis.plan import Machine, Plan

MFU = 0.4
"""Share of the FLOP/s of large matrix products that training is taken to reach where nothing is said."""


def main(arguments: list[str]) -> int:
    """Print what a run, or each run of a sweep, will be: sizes, work, memory and time. Nothing is written."""
    made = Parser(
        prog="triform plan",
        description="What train.py would do with the same arguments: every run is composed, checked and built without "
        "memory; sizes, steps, memory of a device, expected hours. Nothing is written, no data prepared.",
        allow_abbrev=False,
    )
    made.add_argument("overrides", nargs="*", metavar="key=value", help="what would be typed after train.py")
    made.add_argument("-m", "--multirun", action="store_true", help="every combination of the values, as for train.py")
    made.add_argument(
        "--flops",
        type=float,
        metavar="N",
        help="FLOP/s of a device at matrix products, such as 4e14 (default: measured)",
    )
    made.add_argument("--mfu", type=float, metavar="SHARE", help=f"of these that training reaches (default: {MFU})")
    made.add_argument("--devices", type=int, metavar="N", help="on each machine (default: trainer.devices)")
    made.add_argument("--memory", type=float, metavar="GIB", help="of a device; a run that needs more is refused")
    made.add_argument(
        "--link", type=float, metavar="N", help="bytes/s that a device sends within its machine, such as 4e11"
    )
    made.add_argument(
        "--network", type=float, metavar="N", help="bytes/s that it sends to other machines, such as 5e10"
    )
    made.add_argument("--json", action="store_true", help="print the figures as JSON")
    made.add_argument("--config-dir", metavar="DIR", help="your own options, as for train.py")
    options = made.parse_intermixed_args(arguments)
    for name, fits, wanted in (
        ("flops", lambda value: 0 < value < float("inf"), "above 0"),
        ("mfu", lambda value: 0 < value <= 1, "above 0 and at most 1"),
        ("devices", lambda value: value >= 1, "at least 1"),
        ("memory", lambda value: 0 < value < float("inf"), "above 0"),
        ("link", lambda value: 0 < value < float("inf"), "above 0"),
        ("network", lambda value: 0 < value < float("inf"), "above 0"),
    ):
        value = getattr(options, name)
        if value is not None and not fits(value):
            raise BadInput(f"--{name} {value:g}: set it to a number {wanted}, or leave it out")

    from triform.analysis.plan import Machine, Plan, plan
    from triform.run.jobs import jobs
    from triform.sweeps.ahead import foreseen

    machine = Machine(options.flops, options.mfu or MFU, options.devices, options.memory, options.link, options.network)
    folders = config_folders(options.config_dir)
    plans: list[Plan] = []
    refused: dict[str, list[str]] = {}
    alike: dict[tuple[str, ...], Plan | str] = {}
    trials: int | None = None
    ahead = jobs(options.overrides, False)
    if options.multirun:
        ahead, trials = foreseen(options.overrides, folders)
    for job in ahead:
        unseeded = tuple(word for word in job.overrides if not word.startswith("seed="))  # which changes no size
        if unseeded not in alike:
            try:
                alike[unseeded] = plan(job.overrides, folders, machine)
            except ValueError as error:
                alike[unseeded] = one_line(error)
        found = alike[unseeded]
        if isinstance(found, str):
            refused.setdefault(found, []).append(job.varied)
        else:
            plans.append(found.of(job.varied))
    if options.json:
        print(json.dumps([one.figures() for one in plans], indent=2))
    elif plans and options.multirun:
        _table(plans, machine, trials)
    elif plans:
        for line in [*_page(plans[0], machine), *_start(plans[0], options.overrides)]:
            print(line)
    for reason, runs in refused.items():
        more = f", and {len(runs) - 1} more" if len(runs) > 1 else ""
        print(f"error: {reason}{f' (in the run with {runs[0]}{more})' if runs[0] else ''}", file=sys.stderr, flush=True)
    return BAD_INPUT if refused else FINISHED


def _page(plan: "Plan", machine: "Machine") -> Iterator[str]:
    from triform.analysis.anatomy import mib

    memory = plan.memory
    yield f"parameters       {plan.parameters:,}, shared ones counted once"
    if plan.matched is not None:
        yield f"match            {plan.matched}"
    yield f"FLOPs per token  {plan.flops_per_token:.4g}, forward and backward, rows of {plan.seq_len} tokens"
    yield f"training         {_steps(plan)} steps, {_tokens(plan)} tokens, {_number(plan.flops)} FLOPs"
    yield f"memory           {mib(memory.total)} of each device, which holds {_share(plan)}:"
    more = {
        "activations": f", estimated in {plan.precision} for {plan.rows} x {plan.seq_len} tokens",
        "gathered": ", of weights and gradients that are whole at a time",
    }
    for name in ("weights", "gradients", "optimizer", "gathered", "activations", "logits"):
        if name == "gathered" and not memory.gathered:
            continue
        yield f"  {name:<13}  {mib(getattr(memory, name))}{more.get(name, '')}"
    if plan.checkpointed is not None and plan.activation_checkpointing == "none":
        yield f"                 activations {mib(plan.checkpointed)} with trainer.activation_checkpointing=block"
    if memory.attention:
        yield f"                 and {mib(memory.attention)} more where attention has no fused kernel"
    if plan.devices > 1:
        yield f"each step sends  {_sent(plan)}"
        yield f"step             {plan.step_seconds:.3g} s, MFU {plan.mfu:.1%}; {_counted(machine)}"
    yield f"time             {_hours(plan)} on {plan.devices} x {plan.device}, {_speed(plan, machine)}"
    yield from plan.notes


def _table(plans: Sequence["Plan"], machine: "Machine", trials: int | None) -> None:
    """Print the runs; of a search those that its space is checked by, which has so many trials."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from triform.analysis.anatomy import mib

    table = Table(show_edge=False, pad_edge=False, box=None)
    for heading in ("", "run", "parameters", "FLOPs/token", "steps", "tokens", "FLOPs", "memory", "time", "match"):
        left = heading in ("run", "match")
        table.add_column(heading, justify="left" if left else "right", overflow="fold" if left else "ellipsis")
    for number, one in enumerate(plans):
        sizes = (f"{one.parameters:,}", f"{one.flops_per_token:.4g}", _steps(one), _tokens(one), _number(one.flops))
        matched = (one.matched or "").partition(":")[0]
        difference = "" if one.difference is None else f" {one.difference:+.2%}"
        table.add_row(
            str(number), escape(one.varied), *sizes, mib(one.memory.total), _hours(one), escape(matched + difference)
        )
    if not any(one.matched for one in plans):
        table.columns.pop()
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    hours = [one.hours for one in plans]
    known = [hour for hour in hours if hour is not None]
    if trials is not None:
        points = f"{len(plans)} point{'s' * (len(plans) > 1)}"
        print(f"The space is checked at {points}: its corners, and the middle of each branch.")
        mean = f"{_time(trials * sum(known) / len(known))} one after the other, by the mean" if known else None
        lengths = [mean or "of unknown length"]
    else:
        lengths = [f"{_time(sum(known))} one after the other"] if known else []
        lengths += [f"{hours.count(None)} of unknown length"] if None in hours else []
    speeds = dict.fromkeys(f"{one.devices} x {one.device}, {_speed(one, machine)}" for one in plans)
    print(f"{trials or len(plans)} runs, {', '.join(lengths)}; on {'; on '.join(speeds)}")
    print(f"memory: of each device, which holds {' or '.join(dict.fromkeys(_share(one) for one in plans))}")
    for note in dict.fromkeys(note for one in plans for note in one.notes):
        print(note)


def _steps(plan: "Plan") -> str:
    if plan.effort.steps is None:
        return "?"
    return f"{'' if plan.effort.is_exact else '<= '}{plan.effort.steps:,}"


def _tokens(plan: "Plan") -> str:
    return "?" if plan.tokens is None else f"{'' if plan.is_exact else '~ '}{plan.tokens:,}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"


def _hours(plan: "Plan") -> str:
    return "unknown" if plan.hours is None else _time(plan.hours)


def _time(hours: float) -> str:
    """Two significant digits of the unit that fits."""
    for unit, size in (("days", 24.0), ("hours", 1.0), ("minutes", 1 / 60)):
        if hours >= 2 * size:
            return f"{hours / size:.3g} {unit}"
    return f"{hours * 3600:.2g} seconds"


def _speed(plan: "Plan", machine: "Machine") -> str:
    source = "measured here" if machine.flops is None else "given"
    return f"each at {machine.mfu:.0%} of {plan.rate:.3g} FLOP/s ({source})"


def _share(plan: "Plan") -> str:
    """What a device has of the weights."""
    cut = plan.cut
    if cut.fully:
        return f"1/{cut.data} of {'the weights' if cut.tensor == 1 else f'its 1/{cut.tensor} of the layers'}"
    return "all weights" if cut.tensor == 1 else f"its 1/{cut.tensor} of the layers"


def _sent(plan: "Plan") -> str:
    """Bytes that a device sends."""
    gib = {name: getattr(plan.traffic, name) / 2**30 for name in ("data", "tensor")}
    data = f"{gib['data']:.3g} GiB of weights and gradients from each device to the other {plan.cut.data - 1} groups"
    if plan.cut.tensor == 1:
        data = f"{gib['data']:.3g} GiB of {'weights and ' * plan.cut.fully}gradients from each device"
    parts = [data] * (plan.cut.data > 1)
    parts += [f"{gib['tensor']:.3g} GiB of sums within its group of {plan.cut.tensor}"] * (plan.cut.tensor > 1)
    return ", ".join(parts)


def _counted(machine: "Machine") -> str:
    """Which communication the time of a step counts."""
    rates = ((machine.link, "--link", "within a machine"), (machine.network, "--network", "between machines"))
    told = [f"{rate:.3g} bytes/s {where}" for rate, _, where in rates if rate is not None]
    free = [f"{where} it is taken to be free ({name} N counts it)" for rate, name, where in rates if rate is None]
    return f"communication at {' and '.join(told)}{'; ' * bool(free)}{'; '.join(free)}" if told else "; ".join(free)


def _start(plan: "Plan", overrides: Sequence[str]) -> Iterator[str]:
    """The commands that start a run of several machines."""
    if plan.nodes == 1:
        return
    import shlex

    words = shlex.join(overrides)
    yield (
        f"start it with:   torchrun --nnodes={plan.nodes} --nproc-per-node={plan.devices // plan.nodes} "
        f"--rdzv-backend=c10d --rdzv-endpoint=HOST:29500 train.py {words}"
    )
    yield f"under SLURM:     triform submit {words}"
