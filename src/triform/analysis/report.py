"""What a run prints when it is over: its figures beside baselines, outputs right and wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True)
class Sample:
    """One held-out example: what was given, what was expected, what the model wrote."""

    source: str
    target: str
    output: str

    @property
    def right(self) -> bool:
        return self.output == self.target


def metrics_table(metrics: Mapping[str, float], baselines: Mapping[str, Mapping[str, float]]) -> Table:
    """Final metrics, one row each, with a column per baseline that has the same metric.

    Args:
        baselines: baseline name to its metrics, such as `{"majority": {"accuracy": 0.197}}`.
    """
    table = Table(show_edge=False, pad_edge=False, box=None)
    table.add_column("metric")
    table.add_column("this run", justify="right", style="bold")
    for name in baselines:
        table.add_column(escape(name), justify="right", style="dim")
    for name, value in metrics.items():
        others = [number(known[name]) if name in known else "" for known in baselines.values()]
        table.add_row(escape(name), number(value), *others)
    return table


def samples_table(samples: Sequence[Sample]) -> Table:
    """Samples with a mark each; the expected target is shown where the output differs from it."""
    table = Table(show_edge=False, pad_edge=False, box=None)
    table.add_column("")
    for heading in ("given", "written", "expected"):
        table.add_column(heading, overflow="fold")
    for sample in samples:
        mark = "[green]right[/]" if sample.right else "[red]wrong[/]"
        expected = "" if sample.right else escape(sample.target)
        table.add_row(mark, escape(sample.source), escape(sample.output), expected)
    return table


def choose(samples: Sequence[Sample], right: int, wrong: int) -> list[Sample]:
    """The first `right` correct samples, then the first `wrong` others, or as many as there are."""
    correct = [sample for sample in samples if sample.right]
    others = [sample for sample in samples if not sample.right]
    return correct[:right] + others[:wrong]


def print_report(
    console: Console,
    metrics: Mapping[str, float],
    baselines: Mapping[str, Mapping[str, float]],
    samples: Sequence[Sample],
) -> None:
    """Print the metrics and, where there are any, up to four samples right and four wrong."""
    console.print(metrics_table(metrics, baselines))
    if samples:
        console.print()
        console.print(samples_table(choose(samples, right=4, wrong=4)))


def number(value: float) -> str:
    """Four significant digits; whole numbers in full."""
    if isinstance(value, int) or (value == value and abs(value) != float("inf") and value == int(value)):
        return f"{int(value):,}"
    return f"{value:.4g}"
