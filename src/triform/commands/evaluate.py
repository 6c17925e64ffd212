"""`triform evaluate RUN`."""

from triform.commands.parser import parser


def main(arguments: list[str]) -> int:
    """Print what a trained model scores on a split."""
    made = parser("evaluate", "Loss and measures of a run's best checkpoint over a split, each example once.")
    made.add_argument("--split", default=None, help="train, validation or test (default: test where there is one)")
    made.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = made.parse_args(arguments)

    import json

    from rich.console import Console

    from triform.analysis.report import metrics_table
    from triform.run.evaluate import evaluate

    split, figures = evaluate(options.run, options.split, options.trust)
    if options.json:
        print(json.dumps({f"{split}/{name}": value for name, value in figures.items()}))
    else:
        Console().print(metrics_table({f"{split}/{name}": value for name, value in figures.items()}, {}))
    return 0
