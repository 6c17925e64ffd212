"""`triform evaluate RUN`."""

from triform.commands.parser import parser


def main(arguments: list[str]) -> int:
    """Print what a trained model scores on a split, or on other data."""
    made = parser(
        "evaluate",
        "Loss and measures of a run's best checkpoint over a split, each example once: of the run's own data, or of "
        "other data of its kind (data.test_files=FILE).",
    )
    made.add_argument("overrides", nargs="*", metavar="data.KEY=VALUE", help="other data, as for train.py")
    made.add_argument("--split", default=None, help="train, validation or test (default: test where there is one)")
    made.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = made.parse_intermixed_args(arguments)

    import json

    from rich.console import Console

    from triform.analysis.report import metrics_table
    from triform.run.evaluate import evaluate

    split, figures = evaluate(options.run, options.split, options.trust, options.overrides)
    if options.json:
        print(json.dumps({f"{split}/{name}": value for name, value in figures.items()}))
    else:
        Console().print(metrics_table({f"{split}/{name}": value for name, value in figures.items()}, {}))
    return 0
