"""The report as Markdown, and as the lines that a terminal shows."""

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from triform.analysis.compare.columns import as_markdown, columns, markdown
from triform.analysis.compare.comparison import Comparison
from triform.analysis.compare.samples import aligned
from triform.analysis.compare.tuning import Tuning
from triform.analysis.compare.variants import short

ACROSS = 6
SHOWN = 40
"""Rows of a terminal's table at most: the page has all."""
LABEL, GAP = 28, 2
"""Characters that a label may take before it is folded, and between columns."""


def document(found: Comparison, pictures: Sequence[Path]) -> str:
    """The whole report. Every word of a run stands in code or a table's cell.

    Args:
        pictures: relative to the file.
    """
    parts = [f"# {found.title}\n", "\n".join(f"- {note}" for note in found.notes) + "\n"]
    if found.rows:
        parts.append(as_markdown(found))
    for tuning in found.tunings:
        parts += [f"## Trials of {tuning.key}\n", markdown(*tuning_table(tuning), (False, True, True, True))]
    if found.unfinished:
        rows = [
            (item.label, item.entry.status, item.entry.error or "", f"`{item.command}`", f"`{item.entry.name}`")
            for item in found.unfinished
        ]
        parts += ["## Without a result\n", markdown(("variant", "status", "error", "repeat it", "folder"), rows)]
    if pictures:
        parts += ["## Pictures\n", "\n".join(f"![{picture.stem}]({picture.as_posix()})\n" for picture in pictures)]
    if found.is_search and found.importance is not None:
        parts += ["## Hyperparameters\n", _importance(found)]
    if found.differing:
        labels = [row.variant.label for row in found.rows]
        if len(labels) <= ACROSS:
            table = markdown(("key", *labels), [(key, *values) for key, values in found.differing.items()])
        else:
            columns_of = list(found.differing.values())
            table = markdown(
                ("variant", *found.differing),
                [(label, *(values[i] for values in columns_of)) for i, label in enumerate(labels)],
            )
        parts += ["## What differs in the configuration\n", table]
    if found.samples:
        parts += ["## Outputs of each variant's best run\n", _samples(found)]
    return "\n".join(parts)


def tuning_table(tuning: Tuning) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings and rows of what was chosen for each variant."""
    rows: list[tuple[str, ...]] = []
    for one in tuning.tried:
        figure = "" if one.best is None else f"{one.best:.4g}"
        ended = sum(known is not None for known in one.figures)
        count = f"{len(one.values)}" if ended == len(one.values) else f"{len(one.values)}, {ended} ended"
        where = f"the {one.edge} that was tried" if one.edge else ""
        rows.append((one.label, one.chosen or "none", figure, count, where))
    return ("variant", f"chosen {tuning.key}", tuning.metric, "trials", ""), rows


def terminal_table(found: Comparison, width: int) -> Table:
    """As many columns of the table as fit, the first ones first; best variants on top.

    Args:
        width: of the terminal, in characters.
    """
    shown = columns(found)
    if not shown:
        return Table(box=None)
    room = width - min(max(len(text) for text in (shown[0].heading, *shown[0].cells)), LABEL) - GAP
    fitting = shown[:1]
    for column in shown[1:]:
        room -= GAP + max(len(text) for text in (column.heading, *column.cells[:SHOWN]))
        if room < 0:
            break
        fitting.append(column)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    for i, column in enumerate(fitting):
        table.add_column(escape(column.heading), justify="left" if column.is_text else "right", no_wrap=i > 0)
    for i, row in enumerate(found.rows[:SHOWN]):
        style = {"better": "green", "worse": "red"}.get(row.verdict, "")
        table.add_row(*(escape(column.cells[i]) for column in fitting), style="bold" if row.is_baseline else style)
    return table


def _importance(found: Comparison) -> str:
    assert found.importance is not None
    if not found.importance.shares:
        return f"No importances: {found.importance.missing}.\n"
    names = short(found.varied)
    rows = [(names[key], f"{100 * share:.0f} %") for key, share in found.importance.shares.items()]
    return "Share of the variance that each key explains by itself (functional ANOVA).\n\n" + markdown(
        ("key", "share"), rows, (False, True)
    )


def _samples(found: Comparison) -> str:
    kept = dict(list(found.samples.items())[:ACROSS])
    given = aligned(kept)
    if not given:
        return "".join(
            f"**{label}**\n\n" + "".join(_fenced(sample.written) for sample in samples[:2])
            for label, samples in kept.items()
        )
    first = next(iter(kept.values()))
    rows = [
        (_code(text), *(_code(samples[i].written) for samples in kept.values()), _code(first[i].expected))
        for i, text in enumerate(given)
    ]
    return markdown(("given", *kept, "expected"), rows)


def _code(text: str) -> str:
    line = " ".join(text.split()).replace("`", "'")
    return f"`{line}`" if line else ""


def _fenced(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines()) + "\n"
