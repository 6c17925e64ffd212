"""What is drawn, before it is drawn as PNG or SVG."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from triform.analysis.compare.comparison import Comparison, Row
from triform.analysis.compare.figures import LOSS, number
from triform.analysis.compare.search import by_logarithm
from triform.analysis.compare.statistics import front, half_width
from triform.analysis.compare.tuning import Tuning
from triform.analysis.compare.variants import short, shown
from triform.analysis.runs import Run, series

LIGHT = ("#2a78d6", "#eb6834", "#1baf7a", "#4a3aa7", "#e34948", "#eda100", "#e87ba4", "#008300")
DARK = ("#3987e5", "#d95926", "#199e70", "#9085e9", "#e66767", "#c98500", "#d55181", "#30a030")
"""Hues that are told apart on white and on black; variants beyond these, worst first, are grey."""
COLOURS = len(LIGHT)
GREYS = 24
"""Grey curves at most: more would only be a blot."""
POINTS, GREY_POINTS = 120, 30
"""Points of a curve at most."""
SPAN = 20
"""Largest over smallest figure from which on an axis is logarithmic, as in a run's own picture."""
ALONG = {"tokens": "tokens", "seconds": "seconds", "FLOPs": "FLOPs"}
TRAIN = "train/loss"
SAME = 1.001
"""Largest over smallest FLOPs up to which variants cost the same, and have no front."""


@dataclass(frozen=True)
class Series:
    """One curve, or points.

    Attributes:
        colour: number of a hue; None: grey.
        low, high: edges of a band; None: it has none.
        names: of each point, for whoever looks at it; empty: `label` says it.
        line: whether points are joined; `marks`: whether they are shown.
        whole: False: of runs that have not finished.
    """

    label: str
    colour: int | None
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    names: tuple[str, ...] = ()
    line: bool = True
    marks: bool = False
    whole: bool = True


@dataclass(frozen=True)
class Chart:
    """A picture with two axes. `ticks`: words on the x axis at 0, 1, 2, ..., instead of numbers."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_log: bool = False
    y_log: bool = False
    ticks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Charts:
    """All pictures of a comparison; `curves` by figure, then by what they are drawn along."""

    colours: Mapping[str, int] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, Chart]] = field(default_factory=dict)
    fronts: tuple[Chart, ...] = ()
    slices: tuple[Chart, ...] = ()
    tunings: tuple[Chart, ...] = ()


def charts(found: Comparison) -> Charts:
    """Everything that can be drawn of it; what has no data is left out."""
    colours = hues(found)
    metrics = dict.fromkeys((TRAIN, found.metric.name, LOSS))
    curves: dict[str, dict[str, Chart]] = {}
    for name in metrics:
        drawn = {along: chart for along in ALONG if (chart := curve_chart(found, colours, name, along)) is not None}
        if drawn:
            curves[name] = drawn
    fronts = [front_chart(found, colours, name, mode) for name, mode in _judged(found).items()]
    slices = slice_charts(found, colours) if found.is_search else []
    tried = [chart for tuning in found.tunings if (chart := tuning_chart(tuning, colours)) is not None]
    return Charts(colours, curves, tuple(chart for chart in fronts if chart is not None), tuple(slices), tuple(tried))


def hues(found: Comparison) -> dict[str, int]:
    """Label to number of a hue: the best variants and the baseline, in the order in which they were given."""
    kept = [row.variant.label for row in found.rows[:COLOURS]]
    if found.baseline is not None and found.baseline.label not in kept:
        kept[-1:] = [found.baseline.label]
    first = {entry.folder: i for i, entry in enumerate(found.entries)}
    in_order = sorted(found.rows, key=lambda row: first[row.variant.entries[0].folder])
    labels = [row.variant.label for row in in_order if row.variant.label in kept]
    return {label: i for i, label in enumerate(labels)}


def curve_chart(found: Comparison, colours: Mapping[str, int], name: str, along: str) -> Chart | None:
    """Means of a figure over seeds with their 95 % t intervals, while variants trained."""
    drawn, greys = [], 0
    for row in found.rows:
        colour = colours.get(row.variant.label)
        greys += colour is None
        if greys > GREYS and colour is None:
            continue
        points = POINTS if colour is not None else GREY_POINTS
        made = mean_curve(row.variant.finished or _begun(row), name, along, points)
        if made is not None:
            x, mean, low, high = made
            whole = bool(row.variant.finished)
            drawn.append(Series(row.variant.label, colour, x, mean, low, high, marks=len(x) < 16, whole=whole))
    if not drawn:
        return None
    drawn.sort(key=lambda one: one.colour is not None)  # grey ones below
    values = np.concatenate([one.y for one in drawn])
    wide = bool(values.min() > 0 and values.max() / values.min() > SPAN)
    return Chart(name, along, name, tuple(drawn), y_log=wide)


def mean_curve(
    runs: Sequence[Run], name: str, along: str, points: int = POINTS
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None] | None:
    """x, mean and the edges of the 95 % t interval over runs, from where all have begun until the first ends.

    Between what a run logged, it is a straight line. One run has no interval.

    Args:
        along: "tokens", "seconds" or "FLOPs".
    """
    lines = [line for run in runs if (line := _line(run, name, along)) is not None]
    if not lines:
        return None
    begin, end = max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines)
    if begin > end:
        return None
    x = np.unique(np.concatenate([[begin, end], lines[0][0]]))
    x = x[(x >= begin) & (x <= end)]
    if len(x) > points:
        x = x[np.unique(np.linspace(0, len(x) - 1, points).round().astype(int))]
    values = np.stack([np.interp(x, *line) for line in lines])
    mean = values.mean(axis=0)
    if len(lines) == 1:
        return x, mean, None, None
    half = np.array([half_width(column) for column in values.T.tolist()])
    return x, mean, mean - half, mean + half


def front_chart(found: Comparison, colours: Mapping[str, int], name: str, mode: str) -> Chart | None:
    """A figure against the FLOPs of all training, and the variants that no other beats in both."""
    rows = [row for row in found.rows if "flops" in row.sizes and _figure(found, row, name) is not None]
    if len(rows) < 2:
        return None
    x = np.array([row.sizes["flops"] for row in rows])
    if x.max() < x.min() * SAME:
        return None
    y = np.array([_figure(found, row, name) for row in rows], dtype=float)
    best = front(x.tolist(), y.tolist(), mode)
    drawn = [Series("not beaten in both", None, x[best], y[best], names=tuple(rows[i].variant.label for i in best))]
    for row, cost, value in zip(rows, x, y, strict=True):
        label = row.variant.label
        drawn.append(
            Series(
                label, colours.get(label), np.array([cost]), np.array([value]), names=(label,), line=False, marks=True
            )
        )
    drawn.sort(key=lambda one: (not one.line, one.colour is not None))
    way = "lower" if mode == "min" else "higher"
    title = f"{name} against FLOPs ({way} and further left is better)"
    return Chart(title, "FLOPs of all training", name, tuple(drawn), x_log=bool(x.min() > 0 and x.max() / x.min() > 3))


def slice_charts(found: Comparison, colours: Mapping[str, int]) -> list[Chart]:
    """The figure against each key that varied, a point for each variant."""
    rows = [(i, row) for i, row in enumerate(found.rows) if row.figure is not None]
    names = short(found.varied)
    made = []
    for key, all_values in found.varied.items():
        values = [all_values[i] for i, _ in rows]
        texts = list(dict.fromkeys(_word(value) for value in values))
        if len(texts) < 2:
            continue
        numbers = [number(value) for value in values]
        known = [value for value in numbers if value is not None]
        as_numbers = len(known) == len(numbers)
        x = np.array(known if as_numbers else [texts.index(_word(value)) for value in values], dtype=float)
        points = [
            Series(
                row.variant.label,
                colours.get(row.variant.label),
                x[j : j + 1],
                np.array([row.figure.mean]),
                names=(row.variant.label,),
                line=False,
                marks=True,
            )
            for j, (_, row) in enumerate(rows)
            if row.figure is not None
        ]
        points.sort(key=lambda one: one.colour is not None)
        y = np.concatenate([one.y for one in points])
        made.append(
            Chart(
                names[key],
                key,
                found.metric.name,
                tuple(points),
                x_log=as_numbers and by_logarithm(known),
                y_log=bool(y.min() > 0 and y.max() / y.min() > SPAN),
                ticks=() if as_numbers else tuple(texts),
            )
        )
    return made


def tuning_chart(tuning: Tuning, colours: Mapping[str, int]) -> Chart | None:
    """The figure against the tuned key, a curve for each variant; None: no trial has ended."""
    words = list(dict.fromkeys(value for one in tuning.tried for value in one.values))
    try:
        places = {word: float(word) for word in words}
        as_numbers = True
    except ValueError:
        places = {word: float(i) for i, word in enumerate(words)}
        as_numbers = False
    drawn = []
    for one in tuning.tried:
        known = sorted(
            (places[value], figure) for value, figure in zip(one.values, one.figures, strict=True) if figure is not None
        )
        if known:
            x, y = (np.array(column) for column in zip(*known, strict=True))
            drawn.append(Series(one.label, colours.get(one.label), x, y, marks=True))
    if not drawn:
        return None
    y = np.concatenate([one.y for one in drawn])
    return Chart(
        f"trials of {tuning.key}",
        tuning.key,
        tuning.metric,
        tuple(drawn),
        x_log=as_numbers and by_logarithm(list(places.values())),
        y_log=bool(y.min() > 0 and y.max() / y.min() > SPAN),
        ticks=() if as_numbers else tuple(words),
    )


def _judged(found: Comparison) -> dict[str, str]:
    return {LOSS: "min", found.metric.name: found.metric.mode}


def _figure(found: Comparison, row: Row, name: str) -> float | None:
    known = row.figure if name == found.metric.name else row.others.get(name)
    return None if known is None else known.mean


def _word(value: object) -> str:
    return "default" if value is None else shown(value)


def _begun(row: Row) -> list[Run]:
    return [entry.run for entry in row.variant.entries if entry.run is not None]


def _line(run: Run, name: str, along: str) -> tuple[np.ndarray, np.ndarray] | None:
    x, y = series(run.metrics, name, along="tokens" if along == "FLOPs" else along)
    if along == "FLOPs":
        each = number(run.summary.get("flops_per_token"))
        if each is None:
            return None
        x = x * each
    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    if not x.size:
        return None
    order = np.argsort(x, kind="stable")
    return x[order], y[order]
