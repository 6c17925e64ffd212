"""What a run prints when it is over: its figures beside those of simple baselines, and examples of its output."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from triform.tasks.objective import Sample

WIDEST = 160  # characters of a text in the table of samples


def metrics_table(metrics: Mapping[str, float], baselines: Mapping[str, Mapping[str, float]]) -> Table:
    """Final metrics, one row each, with a column per baseline that has the same metric.

    Args:
        baselines: baseline name to its metrics, such as `{"majority": {"accuracy": 0.2}}`.
    """
    table = _table()
    table.add_column("metric")
    table.add_column("this run", justify="right", style="bold")
    for name in baselines:
        table.add_column(escape(name), justify="right")
    for name, value in metrics.items():
        others = [number(known[name]) if name in known else "" for known in baselines.values()]
        table.add_row(escape(name), number(value), *others)
    return table


def samples_table(samples: Sequence[Sample]) -> Table:
    """Samples that are right or wrong; what was expected stands beside an output that is wrong."""
    table = _table()
    for heading in ("", "given", "written", "expected"):
        table.add_column(heading, overflow="fold")
    for sample in samples:
        mark = "[green]right[/]" if sample.correct else "[red]wrong[/]"
        expected = sample.target if sample.target is not None and not sample.correct else ""
        table.add_row(mark, *(escape(shortened(text)) for text in (sample.source, sample.output, expected)))
    return table


def as_text(samples: Sequence[Sample]) -> str:
    """Samples in full, one after the other."""
    blocks = []
    for sample in samples:
        parts = {"given": sample.source, "written": sample.output, "expected": sample.target}
        lines = [f"{name + ':':<10}{text}" for name, text in parts.items() if text is not None]
        if sample.correct is not None:
            lines.append("right" if sample.correct else "WRONG")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def choose(samples: Sequence[Sample], right: int, wrong: int) -> list[Sample]:
    """The first `right` samples that are correct or not judged, then the first `wrong` others, if there are so many."""
    others = [sample for sample in samples if sample.correct is False]
    rest = [sample for sample in samples if sample.correct is not False]
    return rest[:right] + others[:wrong]


def print_report(
    console: Console,
    metrics: Mapping[str, float],
    baselines: Mapping[str, Mapping[str, float]],
    samples: Sequence[Sample],
) -> None:
    """Print the metrics and the samples, where there are any."""
    console.print(metrics_table(metrics, baselines))
    if not samples:
        return
    console.print()
    if any(sample.correct is not None for sample in samples):
        console.print(samples_table(samples))
    else:  # running text, whose line ends matter
        console.print(as_text(samples[:2]), markup=False, highlight=False, end="")


def shortened(text: str) -> str:
    """The beginning of a text on one line; samples.txt has all of it."""
    line = " ".join(text.split())
    return line if len(line) <= WIDEST else line[:WIDEST].rstrip() + " ..."


def number(value: float) -> str:
    """Four significant digits; a whole number in full, digits in threes."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
