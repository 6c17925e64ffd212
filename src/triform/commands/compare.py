"""`triform compare FOLDER...`."""

from triform.commands.parser import Parser


def main(arguments: list[str]) -> int:
    """Compare runs, write the report, and print its table and where it is."""
    made = Parser(
        prog="triform compare",
        description="Compare runs: a table with intervals over seeds and differences to a baseline, curves, what "
        "differs, what failed, outputs side by side. Writes report.html, report.md, table.csv, table.tex and plots/.",
        allow_abbrev=False,
    )
    made.add_argument(
        "places", nargs="+", metavar="FOLDER", help="runs, a sweep, a folder of runs, or a pattern of these"
    )
    made.add_argument("--metric", metavar="NAME", help="figure to judge by (default: what picked the best checkpoints)")
    made.add_argument("--mode", choices=("min", "max"), help="which way it is better, where its name does not tell")
    made.add_argument(
        "--baseline", metavar="KEY=VALUE", help="variant to compare with: a value, label or folder (default: the first)"
    )
    made.add_argument(
        "--out",
        metavar="DIR",
        help="where to write (default: the folder of runs that was named, else outputs/compare/...)",
    )
    made.add_argument("--wandb", action="store_true", help="show it in Weights & Biases, too, if that has the runs")
    options = made.parse_args(
        [word for word in arguments if not word.startswith("traceback=")]
    )  # which is for who calls

    from pathlib import Path

    from rich.console import Console

    from triform.analysis.compare import report
    from triform.analysis.compare.document import terminal_table

    found = report(
        options.places,
        Path(options.out) if options.out else None,
        options.metric,
        options.mode,
        options.baseline,
        options.wandb,
    )
    console = Console()
    console.print(terminal_table(found.comparison, console.width))
    for note in found.comparison.notes:
        console.print(note, style="dim", markup=False, highlight=False)
    print(f"report: {found.page}")
    return 0
