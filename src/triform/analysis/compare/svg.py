"""The charts as SVG for the page, with what its script needs to tell the values under a pointer."""

import json
from html import escape

import numpy as np

from triform.analysis.compare.axes import brief, spread, ticks
from triform.analysis.compare.charts import Chart, Series

WIDTH, HEIGHT = 400, 270
"""In its own units, which a phone shows as about one pixel each: letters of 12 stay readable there."""
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 10, 42


def svg(chart: Chart) -> str:
    """One chart; hues are the classes `c0`, `c1`, ... and `grey` of the page's style."""
    all_x = np.concatenate([one.x for one in chart.series])
    all_y = np.concatenate([one.y for one in chart.series])
    x_range = (-0.5, len(chart.ticks) - 0.5) if chart.ticks else spread(all_x, chart.x_log)
    y_range = spread(all_y, chart.y_log)

    def across(x: np.ndarray) -> np.ndarray:
        return LEFT + _share(x, x_range, chart.x_log) * (WIDTH - LEFT - RIGHT)

    def down(y: np.ndarray) -> np.ndarray:
        return HEIGHT - BOTTOM - _share(np.clip(y, *y_range), y_range, chart.y_log) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for value in ticks(*y_range, chart.y_log):
        level = float(down(np.array([value]))[0])
        parts.append(f'<path class="grid" d="M{LEFT} {level:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{brief(value, 4)}</text>')
    base = HEIGHT - BOTTOM
    marks: list[tuple[float, str]] = list(enumerate(chart.ticks)) or [
        (value, brief(value, 4)) for value in ticks(*x_range, chart.x_log, 4)
    ]
    for value, word in marks:
        middle = float(across(np.array([float(value)]))[0])
        parts.append(f'<path class="axis" d="M{middle:.1f} {base}v4"/>')
        parts.append(
            f'<text x="{middle:.1f}" y="{base + 17}" text-anchor="middle">{escape(_cut(word, len(marks)))}</text>'
        )
    parts.append(f'<path class="axis" d="M{LEFT} {base}H{WIDTH - RIGHT}"/>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(chart.x_label)}</text>'
    )
    data = []
    for one in chart.series:
        x, y = across(one.x), down(one.y)
        hue = "grey" if one.colour is None else f"c{one.colour}"
        if one.low is not None and one.high is not None:
            edge = [*zip(x, down(one.high), strict=True), *zip(x[::-1], down(one.low)[::-1], strict=True)]
            parts.append(f'<path class="band {hue}" d="M{_path(edge)}Z"/>')
        if one.line:
            parts.append(
                f'<path class="line {hue}{"" if one.whole else " dashed"}" d="M{_path(list(zip(x, y, strict=True)))}"/>'
            )
        if one.marks:
            size = 3 if one.line else 5
            parts += [
                f'<circle class="mark {hue}" cx="{a:.1f}" cy="{b:.1f}" r="{size}"/>' for a, b in zip(x, y, strict=True)
            ]
        data.append(_told(one, x, y, hue))
    told = {"x": chart.x_label, "ticks": chart.ticks, "series": data}
    name = f"{chart.title}: {chart.y_label} against {chart.x_label}"
    return (
        f'<figure class="chart"><figcaption>{escape(chart.title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">{"".join(parts)}</svg>'
        f'<script type="application/json">{as_data(told)}</script>'
        "</figure>"
    )


def as_data(value: object) -> str:
    """JSON that may stand in a script element, whatever texts it holds."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _told(one: Series, x: np.ndarray, y: np.ndarray, hue: str) -> dict[str, object]:
    told: dict[str, object] = {
        "label": one.label,
        "hue": hue,
        "line": one.line and not one.names,
        "px": [round(float(value), 1) for value in x],
        "py": [round(float(value), 1) for value in y],
        "x": [_four(value) for value in one.x],
        "y": [_four(value) for value in one.y],
    }
    if one.high is not None:
        told["half"] = [_four(value) for value in one.high - one.y]
    if one.names and one.line:  # the points of a front are shown by their own series
        return {**told, "px": []}
    return told


def _share(values: np.ndarray, limits: tuple[float, float], log: bool) -> np.ndarray:
    low, high = limits
    if log:
        return (np.log(values) - np.log(low)) / (np.log(high) - np.log(low))
    return (values - low) / (high - low)


def _path(points: list[tuple[float, float]]) -> str:
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _four(value: float) -> float:
    return float(f"{float(value):.4g}")


def _cut(word: str, n: int) -> str:
    room = max((WIDTH - LEFT - RIGHT) // (7 * max(n, 1)), 3)
    return word if len(word) <= room else word[: room - 1] + "…"
