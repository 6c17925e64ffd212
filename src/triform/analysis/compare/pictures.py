"""The charts as PNG, by matplotlib, without a display."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from triform.analysis.compare.axes import brief, spread, ticks
from triform.analysis.compare.charts import LIGHT, Chart, Series
from triform.analysis.compare.search import Importance

GREY, PALE, GRID = "#666666", "#b5b5b5", "#e4e4e4"
WIDTH, HEIGHT = 4.4, 3.3  # inches of one panel
LETTER = 0.075  # inches of a letter of the legend
ACROSS = 3


def draw(panels: Sequence[Chart], out: Path) -> None:
    """Draw charts side by side, `ACROSS` in a row, with one legend."""
    across = min(len(panels), ACROSS)
    down = -(-len(panels) // across)
    labels = _legend(panels)
    columns = max(int(WIDTH * across / (LETTER * max(map(len, labels), default=0) + 0.5)), 1)
    rows = -(-len(labels) // columns) if len(labels) > 1 else 0
    figure = Figure(figsize=(WIDTH * across, HEIGHT * down + 0.24 * rows), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    places = figure.subplots(down, across, squeeze=False).ravel()
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    for axes, chart in zip(places, panels, strict=False):
        _panel(axes, chart)
    if rows:
        handles = [places[0].plot([], [], color=_hue(colour), linewidth=2)[0] for colour in labels.values()]
        figure.legend(handles, list(labels), loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    _save(figure, out)


def draw_importance(found: Importance, names: Sequence[str], out: Path) -> None:
    """A bar for each key, the most important one on top."""
    shares = list(found.shares.values())
    figure = Figure(figsize=(5.5, 0.6 + 0.34 * len(shares)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    bars = axes.barh(range(len(shares)), shares, color=LIGHT[0], height=0.66)
    axes.bar_label(bars, [f"{100 * share:.0f} %" for share in shares], padding=3, fontsize=8)
    axes.set_yticks(range(len(shares)), [_literal(name) for name in names])
    axes.invert_yaxis()
    axes.set_xlim(0, max(shares) * 1.15)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    _save(figure, out)


def _panel(axes: Axes, chart: Chart) -> None:
    for one in chart.series:
        _series(axes, one)
    every = chart.series
    low, high = spread(np.concatenate([one.x for one in every]), chart.x_log)
    if chart.x_log:
        axes.set_xscale("log")
    if chart.ticks:
        axes.set_xticks(range(len(chart.ticks)), [_literal(word) for word in chart.ticks])
        low, high = -0.5, len(chart.ticks) - 0.5
    else:
        axes.set_xticks(ticks(low, high, chart.x_log, 4))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: brief(value, 4)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(low, high)
    low, high = spread(np.concatenate([one.y for one in every]), chart.y_log)
    if chart.y_log:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(ticks(low, high, chart.y_log))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: brief(value, 4)))
    axes.set_ylim(low, high)
    axes.set_xlabel(_literal(chart.x_label))
    axes.set_ylabel(_literal(chart.y_label))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)


def _series(axes: Axes, one: Series) -> None:
    if one.low is not None and one.high is not None:
        axes.fill_between(one.x, one.low, one.high, color=_hue(one.colour), alpha=0.18, linewidth=0)
    axes.plot(
        one.x,
        one.y,
        color=_hue(one.colour),
        linestyle="none" if not one.line else "-" if one.whole else "--",
        linewidth=1.0 if one.colour is None else 1.5,
        marker="o" if one.marks else "",
        markersize=4 if one.line else 6,
    )


def _legend(panels: Sequence[Chart]) -> dict[str, int | None]:
    every = [one for chart in panels for one in chart.series]
    hues = {one.colour: one.label for one in every if one.colour is not None}
    labels: dict[str, int | None] = {hues[colour]: colour for colour in sorted(hues)}
    if labels and any(one.colour is None and (one.marks or not one.names) for one in every):
        labels["others"] = None
    return {_literal(label): colour for label, colour in labels.items()}


def _hue(colour: int | None) -> str:
    return PALE if colour is None else LIGHT[colour]


def _literal(text: str) -> str:
    # A dollar sign would start a formula.
    return text.replace("$", r"\$")


def _save(figure: Figure, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)
