"""The table of variants, for all that show it."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from triform.analysis.compare.axes import brief, plus_minus
from triform.analysis.compare.comparison import Comparison, Row
from triform.analysis.compare.figures import SIZES
from triform.analysis.compare.statistics import Estimate


@dataclass(frozen=True)
class Column:
    """One column: for each variant what is read, and the number by which it is sorted (None: last)."""

    heading: str
    meaning: str
    cells: tuple[str, ...]
    keys: tuple[float | str | None, ...]

    @property
    def is_text(self) -> bool:
        """Whether it is read from the left."""
        return any(isinstance(key, str) for key in self.keys)


HEADINGS = {
    "parameters": ("parameters", "shared ones counted once; in brackets against the baseline"),
    "flops_per_token": ("FLOPs/token", "forward and backward; in brackets against the baseline"),
    "tokens": ("tokens", "read in training; in brackets against the baseline"),
    "flops": ("FLOPs", "of all training"),
    "seconds": ("seconds", "of training"),
    "tokens_per_second": ("tokens/s", "tokens over seconds of training"),
    "peak_memory_bytes": ("memory", "largest, of the GPU or else of the process"),
    "mfu": ("MFU", "share of the device's floating-point operations that the model's are"),
}


def columns(found: Comparison) -> list[Column]:
    """The columns that have any entry; the variant's label is the first."""
    rows = found.rows
    made = [
        _texts("variant", "what sets it apart", [row.variant.label for row in rows]),
        *_tuned(rows),
        _estimates(found.metric.name, "mean over seeds ± half of the 95 % interval", [row.figure for row in rows]),
        Column(
            "difference",
            "mean difference to the baseline at the same seeds ± half of the 95 % interval",
            tuple(_difference(row) for row in rows),
            tuple(row.difference.mean if row.difference else None for row in rows),
        ),
        Column(
            "p", "paired t test, Holm's correction", tuple(p_value(row.p) for row in rows), tuple(row.p for row in rows)
        ),
        _texts("verdict", "at 5 %, after the correction", [row.verdict for row in rows]),
        _estimates(found.metric.on_test.name, "the same on test data", [row.test for row in rows]),
        Column(
            "n",
            "finished runs with this figure, one for each seed",
            tuple(str(_count(row)) for row in rows),
            tuple(float(_count(row)) for row in rows),
        ),
    ]
    for name, (heading, meaning) in HEADINGS.items():
        if name != found.metric.name:
            values = [row.sizes.get(name) for row in rows]
            cells = tuple(_size(row, name) for row in rows)
            made.append(Column(heading, meaning, cells, tuple(values)))
    return [column for column in made if any(column.cells)]


def _tuned(rows: Sequence[Row]) -> list[Column]:
    """The value at which each variant is judged, of every key that was tuned."""
    made = []
    for key in dict.fromkeys(row.tuned[0] for row in rows if row.tuned[0]):
        values = tuple(row.tuned[1] if row.tuned[0] == key else "" for row in rows)
        try:
            keys: tuple[float | str | None, ...] = tuple(float(value) if value else None for value in values)
        except ValueError:
            keys = values
        made.append(Column(key, "chosen on validation data, by trials of each variant's own", values, keys))
    return made


def p_value(p: float | None) -> str:
    """Three decimals."""
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> str:
    """A table of Markdown."""
    sides = [right[i] if i < len(right) else False for i in range(len(headings))]
    lines = [headings, ["---:" if side else "---" for side in sides], *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def as_markdown(found: Comparison) -> str:
    """The table of variants as Markdown."""
    table = columns(found)
    rows = [
        [
            f"**{column.cells[i]}** (baseline)" if not j and row.is_baseline else column.cells[i]
            for j, column in enumerate(table)
        ]
        for i, row in enumerate(found.rows)
    ]
    return markdown([column.heading for column in table], rows, [not column.is_text for column in table])


def as_csv(found: Comparison) -> str:
    """Every number in full: a row for each variant, with what was varied, all figures, and its runs' folders."""
    file = io.StringIO()
    name, test = found.metric.name, found.metric.on_test.name
    others = list(dict.fromkeys(other for row in found.rows for other in row.others if other != test))
    sizes = [size for size in (*SIZES, "flops") if any(size in row.sizes for row in found.rows)]
    tuned = _tuned(found.rows)
    headings = ["variant", "baseline", *found.varied, *(column.heading for column in tuned)]
    headings += ["n", name, f"{name} half_width_95"]
    headings += ["difference", "difference half_width_95", "difference n", "p", "p_holm"]
    headings += [test, f"{test} half_width_95"] * (test != name)
    for size in sizes:
        headings += [size, f"{size} relative"]
    for other in others:
        headings += [other, f"{other} half_width_95"]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*headings, "runs"])
    for i, row in enumerate(found.rows):
        cells: list[object] = [
            row.variant.label,
            int(row.is_baseline),
            *(values[i] for values in found.varied.values()),
            *(column.cells[i] for column in tuned),
        ]
        cells += [_count(row), *_pair(row.figure)]
        apart = row.difference
        cells += [None] * 5 if apart is None else [apart.mean, apart.half, apart.n, apart.p, row.p]
        cells += _pair(row.test) * (test != name)
        for size in sizes:
            cells += [row.sizes.get(size), row.relative.get(size)]
        for other in others:
            cells += _pair(row.others.get(other))
        writer.writerow([*cells, " ".join(str(run.folder) for run in row.variant.finished)])
    return file.getvalue()


def as_latex(found: Comparison) -> str:
    """The table of variants for a paper that uses booktabs."""
    table = [column for column in columns(found) if column.heading not in ("verdict", "seconds", "memory", "MFU")]
    sides = "".join("l" if column.is_text else "r" for column in table)
    best = found.rows[0].figure.mean if found.rows and found.rows[0].figure else None
    lines = [
        "% \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{{sides}}}",
        "\\toprule",
        " & ".join(_tex(column.heading) for column in table) + r" \\",
        "\\midrule",
    ]
    for i, row in enumerate(found.rows):
        cells = [_tex(column.cells[i]) for column in table]
        if best is not None and row.figure is not None and row.figure.mean == best:
            cells[1] = f"\\textbf{{{cells[1]}}}"
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _texts(heading: str, meaning: str, texts: Sequence[str]) -> Column:
    return Column(heading, meaning, tuple(texts), tuple(texts))


def _estimates(heading: str, meaning: str, known: Sequence[Estimate | None]) -> Column:
    cells = tuple("" if one is None else plus_minus(one.mean, one.half) for one in known)
    return Column(heading, meaning, cells, tuple(None if one is None else one.mean for one in known))


def _difference(row: Row) -> str:
    if row.is_baseline:
        return "baseline"
    return "" if row.difference is None else plus_minus(row.difference.mean, row.difference.half, sign=True)


def _count(row: Row) -> int:
    return 0 if row.figure is None else row.figure.n


def _size(row: Row, name: str) -> str:
    value = row.sizes.get(name)
    if value is None:
        return ""
    if name == "mfu":
        return f"{100 * value:.3g} %"
    if name == "peak_memory_bytes":
        return f"{value / 2**20:,.0f} MiB"
    text = f"{value:,.0f}" if name == "parameters" else brief(value)
    share = row.relative.get(name, 0.0) if name in ("parameters", "flops_per_token", "tokens") else 0.0
    return f"{text} ({100 * share:+.3g} %)" if abs(share) >= 5e-4 else text


def _pair(one: Estimate | None) -> list[float | None]:
    return [None, None] if one is None else [one.mean, one.half]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def _tex(text: str) -> str:
    text = text.replace("\\", "\0")
    for letter in "&%$#_{}":
        text = text.replace(letter, f"\\{letter}")
    for letter, made in {
        "\0": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "<": "$<$",
        ">": "$>$",
        "…": r"\ldots{}",
    }.items():
        text = text.replace(letter, made)
    return text
